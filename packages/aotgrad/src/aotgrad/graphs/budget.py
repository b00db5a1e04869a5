"""Partitions within a memory budget, a share of the bytes that the default minimum cut saves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from aotgrad.errors import UserError
from aotgrad.tracing.joint import Joint

from .partition import MAX_CHAIN, MinCut, ParetoPoint, Partition, partition_min_cut
from .split import JointAnalysis

_LONG_CHAIN = 4 * MAX_CHAIN  # a few layers, which bounds what backward holds at once
_LOWEST, _HIGHEST = -16.0, 6.0  # powers of two: the prices that are considered
_STEPS = 9
_CLOSE = 0.97  # of the limit


def check_budget(budget: object) -> float:
    """``budget`` as a float. Raises UserError unless it is a number from 0 to 1."""
    if isinstance(budget, bool) or not isinstance(budget, (int, float)) or not 0 <= budget <= 1:
        raise UserError(
            f"activation_memory_budget is {budget!r}; it must be a number from 0 (recompute what "
            f"is allowed) to 1 (min_cut)"
        )
    return float(budget)


def partition_within(joint: Joint | JointAnalysis, budget: float) -> Partition:
    """The cheapest partition found that keeps at most ``budget`` times the bytes of
    ``partition_min_cut``.

    Below 1, heavy ops may be repeated, in chains of bounded length. If even the smallest partition
    keeps more, returns that one. The report's ``pareto`` lists what was considered.
    """
    view = JointAnalysis.of(joint)
    base = partition_min_cut(view)
    if check_budget(budget) == 1:
        return base
    limit = budget * base.saved_bytes
    cut = MinCut(view, _LONG_CHAIN, heavy=True)
    found = {0.0: cut.choose(0.0, "min_cut")}
    best, low, high = found[0.0], _LOWEST, _HIGHEST
    for _ in range(_STEPS if best.saved_bytes < limit else 0):
        price = 2.0 ** ((low + high) / 2)
        found[price] = tried = cut.choose(price, "min_cut")
        if tried.saved_bytes <= limit:
            best, low = tried, (low + high) / 2
        else:
            high = (low + high) / 2
        if _CLOSE * limit <= best.saved_bytes:
            break
    return replace(
        best, name=f"min_cut, memory budget {budget:g}", pareto=_curve([base, *found.values()])
    )


def memory_pareto(joint: Joint | JointAnalysis, points: int = 8) -> tuple[ParetoPoint, ...]:
    """The trade-off between saved bytes and recompute cost, by falling bytes.

    Holds what ``partition_min_cut`` chooses and the best choice at each of ``points`` prices of
    memory, without repeats.
    """
    view = JointAnalysis.of(joint)
    base = partition_min_cut(view)
    cut = MinCut(view, _LONG_CHAIN, heavy=True)
    prices = [
        2.0 ** (_LOWEST + i * (_HIGHEST - _LOWEST) / max(points - 2, 1)) for i in range(points - 1)
    ]
    return _curve([base, *(cut.choose(price, "min_cut") for price in (0.0, *prices))])


def _curve(partitions: Iterable[Partition]) -> tuple[ParetoPoint, ...]:
    distinct = {(p.saved_bytes, p.cost) for p in partitions}
    return tuple(ParetoPoint(*c) for c in sorted(distinct, reverse=True))
