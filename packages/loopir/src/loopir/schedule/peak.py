"""The order of steps: program order with launches kept together, or the order that frees memory
first, if that needs less memory.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from functools import partial

from symshapes.choices import choose, current

from loopir.ir.node import LoweredGraph

from .dag import Dag
from .group import Group
from .users import NOBODY

GAIN = 0.92
"""Share of program order's peak memory below which another order is worth parting launches."""
PROGRAM = "program order"
NEAR = 16
"""How many ready groups, in program order, are compared."""


def order_steps(dag: Dag, graph: LoweredGraph) -> list[Group]:
    """All groups, dependencies first."""
    plain = dag.order()
    lifetimes = _Lifetimes(dag, graph)
    lean = _lean_order(dag, lifetimes)
    is_better = lifetimes.peak(lean) < GAIN * lifetimes.peak(plain)
    if current() is None:
        return lean if is_better else plain
    preferred = " ".join(group.title for group in lean) if is_better else PROGRAM
    chosen = choose("order of steps", "all", preferred, partial(_is_order, dag))
    return plain if chosen == PROGRAM else [dag.groups[name] for name in _names(chosen)]


def _is_order(dag: Dag, text: str) -> bool:
    """Whether a text has all groups, each after those that it depends on."""
    names = _names(text)
    places = {name: place for place, name in enumerate(names)}
    if text == PROGRAM:
        return True
    return sorted(names) == sorted(dag.groups) and all(
        places[before] < places[name] for name in names for before in dag.predecessors[name]
    )


def _names(text: str) -> list[str]:
    return [title.rpartition(":")[2] for title in text.split()]


class _Lifetimes:
    """Sizes in the example call of the buffers that a program allocates or receives, by the groups
    that write and read them.
    """

    def __init__(self, dag: Dag, graph: LoweredGraph) -> None:
        outputs = graph.output_buffers
        given = graph.input_buffers - graph.donated | set(graph.constants)
        permanent = outputs | given
        self.readers = {
            name: len(groups) for name, groups in dag.readers.items() if name not in permanent
        }
        self.made: dict[str, list[str]] = {}
        self.read: dict[str, list[str]] = {}
        self.bytes = {name: graph.bytes_of(name) for name in graph.donated}
        self.given = sum(self.bytes.values())
        for group in dag.groups.values():
            results = group.extern.result_names if group.extern is not None else ()
            names = {*group.writes, *results}
            inside = {
                n for n in names - outputs if not dag.readers.get(n, NOBODY).others(group.name)
            }
            self.made[group.name] = sorted(
                names - given - (inside if group.extern is None else set())
            )
            self.read[group.name] = sorted(name for name in group.reads if name in self.readers)
            self.bytes |= {name: graph.bytes_of(name) for name in self.made[group.name]}
        self.joint = {name for group in dag.groups.values() for name in group.parts}

    def growth(self, group: Group, waiting: dict[str, int], alive: set[str]) -> int:
        """Bytes that the group allocates, less those it frees. A buffer that several groups write
        in parts is not charged to the first one, which would delay all groups that write it.
        """
        made = sum(
            self.bytes[name]
            for name in self.made[group.name]
            if name not in alive and name not in self.joint
        )
        return made - sum(
            self.bytes.get(name, 0) for name in self.read[group.name] if waiting[name] == 1
        )

    def peak(self, order: Sequence[Group]) -> int:
        """The most bytes allocated at once."""
        waiting, alive, held, most = dict(self.readers), set[str](), self.given, 0
        for group in order:
            held += sum(self.bytes[name] for name in self.made[group.name] if name not in alive)
            most = max(most, held)
            held -= self.leave(group, waiting, alive)
        return most

    def leave(self, group: Group, waiting: dict[str, int], alive: set[str]) -> int:
        """Marks the group as done; returns the bytes that are no longer read."""
        alive |= {*self.made[group.name]}
        for name in self.read[group.name]:
            waiting[name] -= 1
        return sum(self.bytes.get(name, 0) for name in self.read[group.name] if waiting[name] == 0)


def _lean_order(dag: Dag, lifetimes: _Lifetimes) -> list[Group]:
    """Takes, of the first ready groups, always the one that leaves the least memory allocated."""
    missing = {name: len(before) for name, before in dag.predecessors.items()}
    ready = sorted(
        (dag.groups[name] for name, count in missing.items() if not count),
        key=lambda group: group.first,
    )
    waiting, alive = dict(lifetimes.readers), set[str]()
    result: list[Group] = []
    while ready:
        growths = [(lifetimes.growth(g, waiting, alive), g.first) for g in ready[:NEAR]]
        best = ready.pop(growths.index(min(growths)))
        result.append(best)
        lifetimes.leave(best, waiting, alive)
        for group in dag.leave(best.name, missing):
            insort(ready, group, key=lambda group: group.first)
    return result
