"""Custom operators whose backward formula can't be traced: it runs as one operator instead.

``torch.library.register_autograd`` takes any Python function. One that reads numbers of its tensors
(``offsets.tolist()``) works in eager mode only. What computes the gradients is then an operator of
its own, which calls the custom operator again, in grad mode, on the tensors of the running program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
        if frame.f_code.co_name == "backward" and frame.f_globals.get("__name__") == _FORMULAS:
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
    call = _Call(resolve_overload(function, args, kwargs), spec)
    results = _OpaqueBackward.apply(call, *leaves)
    return pytree.tree_unflatten(list(results), call.result_spec)


@dataclass(slots=True)
class _Call:
    """An operator and how its arguments and results are nested."""

    op: torch._ops.OpOverload
    spec: pytree.TreeSpec
    result_spec: Any = None

    def __call__(self, leaves: Sequence[Any]) -> tuple[Any, ...]:
        args, kwargs = pytree.tree_unflatten(list(leaves), self.spec)
        results, self.result_spec = pytree.tree_flatten(self.op(*args, **kwargs))
        return tuple(results)


class _OpaqueBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Call, *leaves: Any) -> tuple[Any, ...]:
        is_tensor = [isinstance(leaf, torch.Tensor) for leaf in leaves]
        ctx.call = call
        ctx.others = [None if held else leaf for held, leaf in zip(is_tensor, leaves)]
        ctx.save_for_backward(*(leaf if held else None for held, leaf in zip(is_tensor, leaves)))
        ctx.set_materialize_grads(False)
        return call(leaves)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        saved = zip(ctx.saved_tensors, ctx.others)
        leaves = [other if tensor is None else tensor for tensor, other in saved]
        args, kwargs = pytree.tree_unflatten(leaves, ctx.call.spec)
        wanted = [i for i, needed in enumerate(ctx.needs_input_grad[1:]) if needed]
        found = backward_of(ctx.call.op)([*gradients], wanted, *args, **kwargs)
        result: list[torch.Tensor | None] = [None] * (1 + len(leaves))
        for i, gradient in zip(wanted, found):
            result[1 + i] = gradient
        return tuple(result)


def _recorded_by_autograd() -> Any:
    """A context for an operator's kernel, in which autograd sees what it calls."""
    excluded = _C._dispatch_tls_local_exclude_set() & _C._after_autograd_keyset
    return _C._ForceDispatchKeyGuard(_C._dispatch_tls_local_include_set(), excluded)


def backward_name(op: torch._ops.OpOverload) -> str:
    """The name of ``backward_of``."""
    return f"{op._schema.name}_{op._overloadname}_backward".replace("::", "_")


@cache
def backward_of(op: torch._ops.OpOverload) -> torch._ops.OpOverload:
    """The operator ``(gradients of the results, wanted, arguments of op) -> gradients`` of those of
    the flat arguments that are wanted, contiguous.
    """
    name = backward_name(op)
    arguments = str(op._schema).partition("(")[2].rpartition(") ->")[0]
    _LIBRARY.define(f"{name}(Tensor?[] gradients, int[] wanted, {arguments}) -> Tensor[]")

    def run(
        gradients: Sequence[torch.Tensor | None], wanted: Sequence[int], *args: Any, **kwargs: Any
    ) -> list[torch.Tensor]:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        with torch.enable_grad(), _recorded_by_autograd():
            for i in wanted:
                leaves[i] = leaves[i].detach().requires_grad_()
            results = _Call(op, spec)(leaves)
        pairs = [(r, g) for r, g in zip(results, gradients) if g is not None and r.requires_grad]
        given = [leaves[i] for i in wanted]
        outputs, tangents = zip(*pairs)
        found = torch.autograd.grad(outputs, given, tangents, allow_unused=True)
        if any(gradient is None for gradient in found):
            raise RuntimeError(
                f"the backward formula of {op} gives None for an argument that requires grad, and "
                f"can't be traced; detach the argument, or run the operator eagerly"
            )
        return [torch.empty(x.shape, dtype=x.dtype, device=x.device).copy_(x) for x in found]

    def sizes(
        gradients: object, wanted: Sequence[int], *args: Any, **kwargs: Any
    ) -> list[torch.Tensor]:
        leaves = pytree.tree_leaves((args, kwargs))
        given = [leaves[i] for i in wanted]
        return [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in given]

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
