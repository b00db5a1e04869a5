"""Tensors of wrapper subclasses: the graph has them as they are, and their fakes are the class around fakes.

What ``__torch_dispatch__`` does to the tensors inside is no matter of the program that is captured: compilers take it apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from symshapes import FakeTensorError, fake_wrapper, inner_tensor, inner_tensors, is_wrapper

from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.guards import GuardKind
from bytecode_dynamo.source import Source
from bytecode_dynamo.tensor_facts import TensorFacts

from .base import VariableTracker
from .constant import is_constant_value

if TYPE_CHECKING:
    from bytecode_dynamo.context import Context

    from .tensor import TensorVariable

_DEFAULT: Any = torch.Tensor.__torch_function__
_NO_OVERRIDE = torch._C._disabled_torch_function_impl  # pyright: ignore
_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


@dataclass(frozen=True, slots=True)
class WrapperFacts:
    """What a guard knows of a tensor of a wrapper subclass: its metadata, and that of the tensors in it."""

    facts: TensorFacts
    names: tuple[str, ...]
    context: Any
    inner: tuple[Any, ...]

    @classmethod
    def of(cls, value: Any) -> Any:
        """The facts of a real tensor."""
        if not is_wrapper(value):
            return TensorFacts.of(value)
        names, context = value.__tensor_flatten__()
        return cls(TensorFacts.of(value), tuple(names), context, tuple(cls.of(getattr(value, name)) for name in names))

    def hold(self, value: Any) -> bool:
        """Whether a value is alike."""
        return _alike(self, value)


def _alike(known: Any, value: Any) -> bool:
    facts = known.facts if isinstance(known, WrapperFacts) else known
    if type(value) is not facts.type or TensorFacts.of(value) != facts:
        return False
    if not isinstance(known, WrapperFacts):
        return True
    names, context = value.__tensor_flatten__()
    same = getattr(type(value), "__metadata_guard__", None)
    alike = context == known.context if same is None else same(known.context, context)
    if tuple(names) != known.names or alike is not True:
        return False
    return all(_alike(inner, getattr(value, name)) for name, inner in zip(names, known.inner))


def refusal(value: Any) -> str | None:
    """Why a tensor with ``__torch_dispatch__`` cannot be in a graph; None if it can."""
    cls = type(value)
    if not is_wrapper(value):
        return "it has __torch_dispatch__"
    if (cls.__module__ or "").startswith(("torch.distributed", "torch.nested")) or value.layout is not torch.strided:
        return "it has __torch_dispatch__ and is a class of torch's"
    override = cls.__torch_function__
    if override is not _NO_OVERRIDE and getattr(override, "__func__", None) is not _DEFAULT.__func__:
        return "it has __torch_dispatch__ and __torch_function__"
    for inner in inner_tensors(value):
        if type(inner) not in _PLAIN or inner.requires_grad or inner.is_neg() or inner.is_conj():
            return f"it has __torch_dispatch__, and a {type(inner).__name__} in it that is not a plain tensor"
    return None


def make_fake(ctx: Context, value: torch.Tensor, source: Source) -> Any:
    """The fake of an input, guarded."""
    try:
        fake = fake_wrapper(ctx.mode, value, source.name)
        facts = WrapperFacts.of(value)
        if not facts.hold(value):
            raise TypeError("what __tensor_flatten__ gives is not equal to itself")
    except (FakeTensorError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise GraphBreak("BD007", f"{source.name}, a {type(value).__name__}: {error}") from error
    ctx.guards.require(source, GuardKind.TYPE_IS, type(value))
    for name in ("__torch_dispatch__", "__tensor_flatten__", "__tensor_unflatten__"):
        ctx.require_class_attribute(type(value), name)
    ctx.guards.require(source, GuardKind.CUSTOM, facts.hold)
    return fake


def attribute(ctx: Context, x: TensorVariable, name: str) -> VariableTracker:
    """An attribute of a tensor that the graph computes."""
    fake: Any = x.fake
    held = fake.__dict__.get(name)
    if isinstance(held, torch.Tensor):
        if name not in fake.__tensor_flatten__()[0]:
            raise GraphBreak("BD014", f"attribute {name!r} of {x.describe()}, which __tensor_flatten__ does not name")
        old = ctx.modes.set_overrides_off(ctx, True)
        try:
            return ctx.torch_call("call_function", inner_tensor, [x, ctx.constant(name)], {})
        finally:
            ctx.modes.set_overrides_off(ctx, old)
    if name in fake.__dict__ and is_constant_value(held):
        return ctx.constant(held)
    raise GraphBreak("BD014", f"attribute {name!r} of {x.describe()}")
