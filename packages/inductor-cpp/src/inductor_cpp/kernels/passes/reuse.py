"""Scratch rows with values for later passes over a row: softmax takes each exponential once.

Bodies share no values but reductions (C4.2), so fused kernels repeat expressions. The first body
that computes an expensive repeated value stores it; later bodies load it, and drop what only that
value needs.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import partial

import sympy
import torch
from loopir import Instruction, Kernel, Value, choose, kernel_label

from inductor_cpp.kernels.access import stored_buffers
from inductor_cpp.kernels.kernel_plan import Plan, Role, cost, hint_of

LONGEST_ROW = 1 << 16
LEAST_COST = 8
IMPURE = ("store", "reduce", "scan")


@dataclass
class RowCache:
    """Values in scratch rows.

    ``saved`` has the row of each value that its body stores, ``loaded`` the row of each value that
    a later body loads, ``dropped`` values that are not computed, ``dtypes`` the type of each row.
    """

    saved: dict[str, str] = field(default_factory=dict)
    loaded: dict[str, str] = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)
    dtypes: dict[str, torch.dtype] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Known:
    name: str
    body: int
    cost: int


def plan_row_cache(kernel: Kernel, plan: Plan) -> RowCache:
    """What to store in scratch rows; nothing unless lanes run along the reduction and a row fits in
    the processor's cache.
    """
    cache = RowCache()
    if plan.role is not Role.REDUCTION or plan.axis is None:
        return cache
    length = math.prod(hint_of(kernel, item.extent) for item in kernel.reduction)
    preferred = str(LEAST_COST) if length <= LONGEST_ROW else "none"
    label = partial(kernel_label, kernel)
    least = choose("row caches from cost", label, preferred, lambda x: x.isdigit() or x == "none")
    if least == "none":
        return cache
    keys = Keys(kernel, plan.axis.symbol, int(least))
    seen: dict[Hashable, _Known] = {}
    for number, body in enumerate(kernel.bodies):
        if not body.inner:
            continue
        needed = _needed(body.instructions, keys, seen)
        for step in body.instructions:
            if step.result is None or step.op in IMPURE:
                continue
            known = seen.get(keys.of(step))
            if step.result not in needed:
                cache.dropped.add(step.result)
            elif known is not None and keys.worth(step):
                row = cache.saved.setdefault(known.name, f"row{len(cache.saved)}")
                cache.loaded[step.result] = row
                cache.dtypes[row] = step.dtype  # type: ignore[assignment]
            elif known is None:
                seen[keys.of(step)] = _Known(step.result, number, keys.cost[step.result])
    return cache


class Keys:
    """Structural identity of the values of inner bodies, what they cost, and whether they differ
    along the row.
    """

    def __init__(self, kernel: Kernel, axis: sympy.Symbol | None, least: int = LEAST_COST) -> None:
        self.axis, self.stored, self.least = axis, stored_buffers(kernel), least
        self.keys: dict[str, Hashable] = {}
        self.numbers: dict[Hashable, int] = {}
        self.cost: dict[str, int] = {}
        self.varies: dict[str, bool] = {}
        for body in kernel.bodies:
            for step in body.instructions if body.inner else ():
                self._add(step)

    def _add(self, step: Instruction) -> None:
        if step.result is None:
            return
        operands = [name for name in step.reads if name in self.keys]
        impure = step.op in IMPURE or (step.op == "load" and step.args[0] in self.stored)
        key = (step.op, tuple(map(self._key, step.args)), step.dtype)
        self.keys[step.result] = (
            step.result if impure else self.numbers.setdefault(key, len(self.numbers))
        )
        gathered = step.op == "load" and len(operands) > (step.args[2] is not None)
        self.cost[step.result] = (LEAST_COST if gathered else cost(step)) + sum(
            self.cost[name] for name in set(operands)
        )
        own = any(self.axis in expr.free_symbols for expr in step.expressions)
        self.varies[step.result] = step.op != "reduce" and (
            own or any(self.varies[name] for name in operands)
        )

    def of(self, step: Instruction) -> Hashable:
        """The key of a step's result."""
        assert step.result is not None
        return self.keys[step.result]

    def worth(self, step: Instruction) -> bool:
        """Whether loading the value is cheaper than computing it."""
        if step.result is None or step.op == "indirect":
            return False
        return self.varies[step.result] and self.cost[step.result] >= self.least

    def _key(self, arg: object) -> Hashable:
        if isinstance(arg, Value):
            return self.keys.get(arg.name, arg.name)
        if isinstance(arg, sympy.Expr):
            bound = (s for s in arg.free_symbols if s.name in self.keys)  # type: ignore[attr-defined]
            return arg.xreplace({s: sympy.Symbol(f"[{self.keys[s.name]}]") for s in bound})  # type: ignore[attr-defined]
        return (type(arg).__name__, repr(arg)) if isinstance(arg, int | float) else arg  # type: ignore[return-value]


def _needed(steps: tuple[Instruction, ...], keys: Keys, seen: dict[Hashable, _Known]) -> set[str]:
    """Values that are computed although others are loaded from scratch rows. The first use of an
    index checks it.
    """
    needed: set[str] = set()
    for step in reversed(steps):
        effect = (
            step.result is None
            or step.op in IMPURE
            or (step.op == "indirect" and keys.of(step) not in seen)
        )
        if not effect and step.result not in needed:
            continue
        if effect and step.result:
            needed.add(step.result)
        loadable = not effect and keys.of(step) in seen and keys.worth(step)
        if not loadable:
            needed.update(step.reads)
    return needed
