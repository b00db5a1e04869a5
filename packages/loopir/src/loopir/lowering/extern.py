"""Extern calls: calls of ATen operators, and of a prim's reference implementation where loops can't
express the prim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from primops import Prim, TensorMeta
from torch._ops import OpOverload

from loopir.ir.node import Bind, Symbolic

from .context import LoweringContext
from .elementwise import is_tensor
from .scalar import symbolic
from .tensor import Strided

# The results of these operators depend on the strides of their operands, so the operands get the
# strides that the graph states. The same applies to custom operators, which may pass strides to a
# kernel as numbers, and to attention on GPUs, which needs an aligned bias.
STRIDE_SENSITIVE = {
    "aten::as_strided",
    "aten::view",
    "aten::_unsafe_view",
    "aten::view_as_complex",
    "aten::view_as_real",
}


def lower_extern(
    ctx: LoweringContext, node: torch.fx.Node, op: Callable[..., Any], args: Sequence, kwargs: dict
) -> Any:
    """Adds a call of ``op``; returns tensors, sizes or None, nested like ``node.meta["val"]``."""
    exact = isinstance(op, OpOverload) and _reads_strides(op)
    read = tuple(
        _argument(ctx, arg, given if exact else None)
        for arg, given in zip(args, node.args, strict=True)
    )
    named = tuple(
        (name, _argument(ctx, arg, node.kwargs[name] if exact else None))
        for name, arg in kwargs.items()
    )
    value = node.meta.get("val")
    single = not isinstance(value, tuple | list)
    metas = [value] if single else list(value)
    results = [_result(ctx, meta) for meta in metas]
    names = tuple(result.buffer if isinstance(result, Strided) else None for result in results)
    binds = tuple(_binds(ctx, metas))
    ctx.add_extern(op, read, names, named, single, binds, may_alias(op))
    return results[0] if single else results


def may_alias(op: Callable[..., Any]) -> bool:
    """Whether results of ``op`` can share memory with its arguments."""
    if isinstance(op, Prim):
        return "movement" in op.tags
    if not isinstance(op, OpOverload):
        return True
    aliased = any(result.alias_info is not None for result in op._schema.returns)
    return aliased or op.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)


def _reads_strides(op: OpOverload) -> bool:
    name = op.name().split(".")[0]
    is_attention = "_attention" in name and not name.endswith(("_for_cpu", "_for_cpu_backward"))
    return (
        op.namespace not in ("aten", "prims", "mkldnn", "mkl")
        or name in STRIDE_SENSITIVE
        or is_attention
    )


def _argument(ctx: LoweringContext, arg: Any, given: Any = None) -> Any:
    """Converts ``arg`` to an argument of an extern call: tensors are stored in memory, with the
    strides in the graph if these are given.
    """
    if is_tensor(arg):
        meta = given.meta.get("val") if isinstance(given, torch.fx.Node) else None
        stride = ctx.shape(meta.stride()) if isinstance(meta, TensorMeta) else None
        tensor = ctx.realize(arg) if stride is None else ctx.lay_out(arg, stride)
        if any(ctx.facts.hint(step) < 0 for step in tensor.stride):  # torch has no negative strides
            tensor = ctx.copy(tensor)
        return tensor.view
    if isinstance(arg, tuple | list):
        several = given if isinstance(given, tuple | list) else [None] * len(arg)
        return type(arg)(_argument(ctx, item, own) for item, own in zip(arg, several, strict=True))
    if isinstance(arg, dict):
        return {key: _argument(ctx, item) for key, item in arg.items()}
    if isinstance(arg, torch.SymFloat | torch.SymBool):
        expr = symbolic(arg, ctx)
        if any(not free.is_integer for free in expr.free_symbols):
            raise ctx.fail(f"an operator takes the number {expr}, which only the device knows")
        return Symbolic(expr)
    return Symbolic(ctx.expr(arg)) if isinstance(arg, torch.SymInt | sympy.Expr) else arg


def _result(ctx: LoweringContext, meta: Any) -> Any:
    if meta is None or isinstance(meta, bool | int | float):
        return meta
    if isinstance(meta, torch.SymInt):
        return ctx.expr(meta)
    if isinstance(meta, torch.SymBool):
        return meta
    if hasattr(meta, "shape"):
        shape = ctx.shape(meta.shape)
        return ctx.whole(ctx.new_buffer(meta.dtype, meta.device, shape, ctx.shape(meta.stride())))
    raise ctx.fail(f"an extern call can't return {meta!r} yet")


def _binds(ctx: LoweringContext, metas: Sequence[Any]) -> list[Bind]:
    """The size symbols that are not inputs and that this call's results define."""
    found: dict[sympy.Symbol, Bind] = {}
    for position, meta in enumerate(metas):
        sizes = list(enumerate(getattr(meta, "shape", ())))
        if isinstance(meta, torch.SymInt | torch.SymBool):
            sizes = [(None, meta)]
        for dim, size in sizes:
            expr = symbolic(size, ctx) if isinstance(size, torch.SymBool) else ctx.expr(size)
            # a symbolic bool tests a symbol that is 0 or 1
            expr = expr.lhs if isinstance(expr, sympy.Eq) else expr
            if not isinstance(expr, sympy.Symbol) or expr in ctx.facts.hints:
                continue
            if expr not in ctx.bound_sizes and expr not in ctx.graph.inputs:
                found.setdefault(expr, Bind(expr, position, dim))
    return [*found.values()]
