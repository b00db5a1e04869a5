"""What an attention mask means whose sizes are symbols.

A mask is followed back to the ``arange`` calls that it is made from. Integers become linear
functions of the position along each dimension, comparisons inequalities of those, and ``and`` their
conjunction, so that the meaning holds for every size. Dimensions are counted from the last one, as
broadcasting does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

aten = torch.ops.aten
END = torch.iinfo(torch.int64).max
SAME = {
    aten.clone.default, aten.alias.default, aten.detach.default, aten.expand.default,
    aten._to_copy.default, aten.lift_fresh_copy.default,
}  # fmt: skip
SAME_KINDS = {torch.bool, torch.int32, torch.int64}


@dataclass(frozen=True, slots=True)
class Linear:
    """``constant`` plus, for each dimension, its factor times the position along it."""

    factors: dict[int, int] = field(default_factory=dict)
    constant: int = 0

    def plus(self, other: Linear, scale: int = 1) -> Linear:
        """The sum with ``scale`` times another."""
        factors = dict(self.factors)
        for dim, factor in other.factors.items():
            factors[dim] = factors.get(dim, 0) + scale * factor
        kept = {dim: factor for dim, factor in factors.items() if factor}
        return Linear(kept, self.constant + scale * other.constant)

    def moved(self, dim: int) -> Linear:
        """With a dimension inserted behind ``dim``, which counts from the last one."""
        return Linear({d - (d < dim): f for d, f in self.factors.items()}, self.constant)


All = tuple[Linear, ...]
"""A mask that is true where none of these is positive."""
CAUSAL = Linear({-1: 1, -2: -1})
COMPARISONS = {"le": (1, 0), "lt": (1, 1), "ge": (-1, 0), "gt": (-1, 1)}
"""Sign of the difference of the operands, and what is added, for an inequality ``<= 0``."""


def meaning_of(node: torch.fx.Node) -> dict[str, Any] | None:
    """Arguments of ``scaled_dot_product_attention`` that replace the mask ``node``; None if there
    are none.
    """
    terms = _value(node, {})
    if not isinstance(terms, tuple):
        return None
    left = [term for term in terms if term.factors or term.constant > 0]
    if not left:
        return {"attn_mask": None}
    is_causal = all(term == CAUSAL for term in left) and node.meta["val"].dim() >= 2
    return {"attn_mask": None, "is_causal": True} if is_causal else None


def _value(node: Any, known: dict[torch.fx.Node, Linear | All | None]) -> Linear | All | None:
    """The meaning of a node or number; None if it has none here."""
    if type(node) is int:
        return Linear(constant=node)
    if not isinstance(node, torch.fx.Node):
        return None
    if node not in known:
        known[node] = _computed(node, known)
    return known[node]


def _computed(
    node: torch.fx.Node, known: dict[torch.fx.Node, Linear | All | None]
) -> Linear | All | None:
    value, target = node.meta.get("val"), node.target
    if not isinstance(value, torch.Tensor) or value.dtype not in SAME_KINDS:
        return None
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return None
    name = target.name().removeprefix("aten::").partition(".")[0]
    if name == "arange":
        return _arange(node, value)
    if name in ("ones", "new_ones", "full") and value.dtype == torch.bool:
        is_true = name != "full" or node.args[1] is True
        return () if is_true else None
    operands = [_value(arg, known) for arg in node.args[:2]]
    first = operands[0] if operands else None
    if first is None:
        return None
    if target in SAME or (name == "slice" and _is_whole(node)):
        return first if node.args[0].meta["val"].dtype == value.dtype else None  # type: ignore[union-attr]
    if name == "unsqueeze":
        return _unsqueezed(first, int(node.args[1]), value.dim())  # type: ignore[arg-type]
    return _combined(name, first, operands[-1]) if not node.kwargs and len(operands) == 2 else None


def _arange(node: torch.fx.Node, value: torch.Tensor) -> Linear | None:
    start, step = 0, 1
    if len(node.args) > 1:
        start, _, step = (*node.args, 1)[:3]  # type: ignore[assignment]
    if type(start) is not int or type(step) is not int:
        return None
    is_one = type(value.shape[0]) is int and value.shape[0] == 1
    return Linear({} if is_one else {-1: step}, start)


def _is_whole(node: torch.fx.Node) -> bool:
    _, dim, start, end, step = (*node.args, *(0, 0, END, 1)[len(node.args) - 1 :])
    return (start, end, step) == (0, END, 1) and isinstance(dim, int)


def _unsqueezed(value: Linear | All, dim: int, rank: int) -> Linear | All:
    place = dim - rank if dim >= 0 else dim
    if isinstance(value, Linear):
        return value.moved(place + 1)
    return tuple(term.moved(place + 1) for term in value)


def _combined(name: str, a: Linear | All, b: Linear | All | None) -> Linear | All | None:
    if isinstance(a, tuple) and isinstance(b, tuple):
        return (*a, *b) if name in ("bitwise_and", "logical_and") else None
    if not isinstance(a, Linear) or not isinstance(b, Linear):
        return None
    if name in ("add", "sub"):
        return a.plus(b, 1 if name == "add" else -1)
    if name not in COMPARISONS:
        return None
    sign, more = COMPARISONS[name]
    difference = a.plus(b, -1) if sign > 0 else b.plus(a, -1)
    return (difference.plus(Linear(constant=more)),)
