"""Custom operators whose backward formula can't be traced: it runs as one operator instead.

``torch.library.register_autograd`` takes any Python function. One that reads numbers of its tensors
(``offsets.tolist()``) works in eager mode only. What computes the gradients is then an operator of
its own, which calls the custom operator again, in grad mode, on the tensors of the running program.
"""

from __future__ import annotations

from functools import cache
from traceback import walk_tb
from typing import Any

import torch
from torch.utils import _pytree as pytree

from aotgrad.errors import Unsupported

from .functional_ops import resolve_overload

_LIBRARY = torch.library.Library("aotgrad", "FRAGMENT")
_C: Any = torch._C
_FORMULAS = "torch._library.autograd"
"""The module that calls the formulas; a call's frame holds the operator."""
_opaque: set[torch._ops.OpOverload] = set()


def learn_opaque_backward(error: BaseException) -> bool:
    """Whether ``error`` comes from the backward formula of a custom operator that is now treated as
    opaque, so that another trace may succeed.
    """
    for frame, _ in walk_tb(error.__traceback__):
        if frame.f_code.co_name == "backward" and frame.f_globals["__name__"] == _FORMULAS:
            op = frame.f_locals["op"]
            if op in _opaque or torch.Tag.nondeterministic_seeded in op.tags:
                return False  # random numbers would be drawn again
            _opaque.add(op)
            return True
    return False


def has_opaque_backward(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call is one of an operator that ``learn_opaque_backward`` has met."""
    return bool(_opaque) and resolve_overload(function, args, kwargs) in _opaque


def call_with_opaque_backward(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls a custom operator, recorded for autograd with a backward pass of one operator."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    return _OpaqueBackward.apply(resolve_overload(function, args, kwargs), spec, *leaves)


class _OpaqueBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, op: torch._ops.OpOverload, spec: pytree.TreeSpec, *leaves: Any) -> Any:
        is_tensor = [isinstance(leaf, torch.Tensor) for leaf in leaves]
        ctx.op, ctx.spec = op, spec
        ctx.others = [None if held else leaf for held, leaf in zip(is_tensor, leaves)]
        ctx.save_for_backward(*(leaf if held else None for held, leaf in zip(is_tensor, leaves)))
        ctx.set_materialize_grads(False)
        args, kwargs = pytree.tree_unflatten(list(leaves), spec)
        return op(*args, **kwargs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        saved = zip(ctx.saved_tensors, ctx.others)
        leaves = [other if tensor is None else tensor for tensor, other in saved]
        args, kwargs = pytree.tree_unflatten(leaves, ctx.spec)
        found = iter(_backward_of(ctx.op)([*gradients], *args, **kwargs))
        return (None, None, *(next(found) if _has_gradient(leaf) else None for leaf in leaves))


def _has_gradient(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex())


def _recorded_by_autograd() -> Any:
    """A context for an operator's kernel, in which autograd sees what it calls."""
    excluded = _C._dispatch_tls_local_exclude_set() & _C._after_autograd_keyset
    return _C._ForceDispatchKeyGuard(_C._dispatch_tls_local_include_set(), excluded)


@cache
def _backward_of(op: torch._ops.OpOverload) -> torch._ops.OpOverload:
    """The operator ``(gradients of the results, arguments of op) -> gradients of the arguments``,
    one for each tensor of a dtype that has gradients.
    """
    name = f"{op._schema.name}_{op._overloadname}_backward".replace("::", "_")
    arguments = str(op._schema).partition("(")[2].rpartition(") ->")[0]
    _LIBRARY.define(f"{name}(Tensor?[] gradients, {arguments}) -> Tensor[]")

    def run(gradients: list[torch.Tensor | None], *args: Any, **kwargs: Any) -> list[torch.Tensor]:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        with torch.enable_grad(), _recorded_by_autograd():
            leaves = [x.detach().requires_grad_() if _has_gradient(x) else x for x in leaves]
            args, kwargs = pytree.tree_unflatten(leaves, spec)
            results = pytree.tree_leaves(op(*args, **kwargs))
        wanted = [leaf for leaf in leaves if _has_gradient(leaf)]
        pairs = [(r, g) for r, g in zip(results, gradients) if g is not None and r.requires_grad]
        found = torch.autograd.grad(
            [r for r, _ in pairs], wanted, [g for _, g in pairs], materialize_grads=True
        )
        return [torch.empty(x.shape, dtype=x.dtype, device=x.device).copy_(x) for x in found]

    def sizes(gradients: object, *args: Any, **kwargs: Any) -> list[torch.Tensor]:
        wanted = filter(_has_gradient, pytree.tree_leaves((args, kwargs)))
        return [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in wanted]

    def refuse_second(keys: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled() and _C._any_requires_grad(*args, **kwargs):
            what = f"create_graph=True through {op}, whose backward formula can't be traced"
            raise Unsupported("AG030", f"{what}; run it eagerly")
        with _C._AutoDispatchBelowAutograd():
            return overload.redispatch(keys & _C._after_autograd_keyset, *args, **kwargs)

    _LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    _LIBRARY.impl(name, sizes, "Meta")
    _LIBRARY.impl(name, refuse_second, "Autograd", with_keyset=True)
    overload: torch._ops.OpOverload = getattr(torch.ops.aotgrad, name).default
    return overload
