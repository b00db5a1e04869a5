"""Reproduces the order in which gradients arrive at leaves, which is visible to parameter hooks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch


@contextmanager
def record_arrivals(leaves: dict[int, torch.Tensor]) -> Iterator[dict[int, None]]:
    """Collects the keys of ``leaves`` in the order in which gradients arrive; if backward runs
    several times, the last arrival counts.
    """
    arrived: dict[int, None] = {}
    hooks = []

    def arrive(key: int) -> None:
        arrived.pop(key, None)
        arrived[key] = None

    for key, leaf in leaves.items():
        # a hook that returns None does not change the gradient
        hooks.append(leaf.register_hook(lambda _, key=key: arrive(key)))
    try:
        yield arrived
    finally:
        for hook in hooks:
            hook.remove()


def engine_handover_order(
    wanted: Sequence[int], leaves: Sequence[int], arrived: Iterable[int]
) -> tuple[int, ...]:
    """Orders ``wanted`` as one autograd node must return the gradients, so that they arrive
    at leaves in the order ``arrived``.

    Args:
        wanted: the inputs that get gradients.
        leaves: the leaves among them.
        arrived: the leaves that a gradient arrives at, in order.
    """
    ordered = [*dict.fromkeys([*arrived, *leaves])]
    known = set(leaves)
    others = [i for i in wanted if i not in known]
    places = [*ordered, *others]
    for place, leaf in zip(_engine_order(len(ordered), len(others)), ordered):
        places[place] = leaf
    return tuple(places)


def _engine_order(urgent: int, others: int) -> list[int]:
    """The order in which autograd's engine runs ``urgent`` nodes of one priority that became ready
    at once, before the others.

    The engine's queue is a ``std::priority_queue``, which is not stable: this function follows its
    steps in the standard libraries of GNU and Microsoft. A node is identified by the position at
    which it was pushed.
    """
    heap = list(range(urgent + others))
    served = []
    while len(served) < urgent:
        served.append(heap[0])
        last = heap.pop()
        hole, size = 0, len(heap)
        while (child := 2 * hole + 1) < size:
            right = child + 1
            if right < size and not (heap[right] >= urgent > heap[child]):
                child = right
            heap[hole], hole = heap[child], child
        while hole > 0 and last < urgent <= heap[(hole - 1) // 2]:
            heap[hole], hole = heap[(hole - 1) // 2], (hole - 1) // 2
        if heap:
            heap[hole] = last
    return served
