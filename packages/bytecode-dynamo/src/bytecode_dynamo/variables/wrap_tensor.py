"""Trackers of tensors that a frame reads."""

from __future__ import annotations

from typing import Any

import torch
from symshapes import FakeTensorError
from torch.nn.parameter import is_lazy

from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.guards.records import GuardKind
from bytecode_dynamo.guards.source import AttrSource, ItemSource, Source
from bytecode_dynamo.guards.tensor_facts import TensorFacts
from bytecode_dynamo.guards.tensor_source import PlainTensorSource, SizeSource, as_plain
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.requirements import remember_tensor, require_tensor
from bytecode_dynamo.state.tracker import VariableTracker

from . import wrapper_tensor
from .input_state import TENSOR_TYPES
from .tensor import TensorVariable
from .userobject import wrap_opaque
from .wrap import tracker_for


def is_static(value: torch.Tensor, source: Source) -> bool:
    """Whether a tensor's sizes never change: a parameter or buffer."""
    if isinstance(value, (torch.nn.Parameter, torch.nn.Buffer)):
        return True
    base = source.parent
    return (
        isinstance(source, ItemSource)
        and isinstance(base, AttrSource)
        and base.attribute in ("_buffers", "_parameters")
    )


def wrap_subclass(ctx: Context, value: torch.Tensor, source: Source) -> VariableTracker:
    """A tensor of a Python class with ``__torch_function__``: the graph gets a plain tensor."""
    plain, cls = as_plain(value), type(value)
    fake = ctx.mode.from_real(plain, source=source.name, symbols={})
    ctx.guards.require(source, GuardKind.TYPE_IS, cls)
    same = wrapper_tensor.WrapperFacts(TensorFacts.of(value))
    ctx.guards.require(source, GuardKind.CUSTOM, same)
    node = ctx.graph.add_input(PlainTensorSource(source), plain, fake)
    tracker = TensorVariable(node, fake, cls, source=source)
    remember_tensor(ctx, tracker, value)
    return ctx.effects.remember(value, tracker)


@tracker_for(torch.Tensor)
def wrap_tensor(ctx: Context, value: torch.Tensor, source: Source) -> VariableTracker:
    cls: Any = type(value)
    if is_lazy(value):
        return wrap_opaque(ctx, value, source, "a tensor that is not initialized")
    if cls.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl:  # pyright: ignore
        refusal = wrapper_tensor.refusal(value)
        if refusal is not None:
            return wrap_opaque(ctx, value, source, f"a {cls.__name__}: {refusal}")
        static = is_static(value, source)
        return _wrap_input(
            ctx, value, source, wrapper_tensor.make_fake(ctx, value, source, static), static
        )
    if value.layout is not torch.strided or value.is_quantized or value.is_nested:
        return wrap_opaque(ctx, value, source, f"a tensor of layout {value.layout}")
    if _has_names(value):
        return wrap_opaque(ctx, value, source, "a tensor whose dims have names")
    if (
        cls not in TENSOR_TYPES
        and cls.__torch_function__ is not torch._C._disabled_torch_function_impl
    ):
        return wrap_subclass(ctx, value, source)
    static = is_static(value, source)
    symbols: dict[int, torch.SymInt] = {}
    dims = ctx.dynamic.dims(value, source, static)
    for dim in dims:
        symbols[dim] = ctx.dynamic.new_size(ctx, value, SizeSource(source, dim))
    sizes = [symbols.get(dim, size) for dim, size in enumerate(value.shape)]
    strides = ctx.dynamic.strides(ctx, value, source, sizes, static)
    try:
        fake = ctx.mode.from_real(value, source=source.name, symbols=symbols, strides=strides)
    except FakeTensorError as error:
        raise GraphBreak("BD007", f"{source.shown}: {error}") from error
    for dim, size in symbols.items():
        ctx.bind_symbol(size, SizeSource(source, dim), int(value.shape[dim]))
    require_tensor(ctx, source, value, fake, dims)
    if wrapper_tensor.may_be_offsets(value):
        wrapper_tensor.share_ragged_size(ctx, value, source, fake, jagged=False)
    return _wrap_input(ctx, value, source, fake, static)


def _has_names(value: torch.Tensor) -> bool:
    """Whether dims have names, which fakes don't; torch 2.13 has no such tensors."""
    has_names = getattr(torch.Tensor, "has_names", None)
    with torch._C.DisableTorchFunction():
        return has_names is not None and has_names(value)


def _wrap_input(
    ctx: Context, value: torch.Tensor, source: Source, fake: Any, static: bool
) -> VariableTracker:
    node = ctx.graph.add_input(source, value, fake, static=static)
    tracker = TensorVariable(node, fake, type(value), source=source)
    remember_tensor(ctx, tracker, value)
    return ctx.effects.remember(value, tracker)
