"""Dependencies between groups: which groups write and read each buffer, and what must run between
two groups.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping

import sympy

from loopir.errors import ScheduleError
from loopir.ir.expr import symbols_of
from loopir.ir.node import Buffer, ExternNode, LoopNode, LoweredGraph, expressions_in

from .group import Group, group_of

WINDOW = 16


class Dag:
    """Groups by name, with their successors and predecessors. Merging groups keeps the graph
    acyclic.

    ``_line`` is a topological order ("" where a group was removed). The ``first`` and ``last`` of a
    merged group don't bound what it depends on.
    """

    def __init__(self, graph: LoweredGraph) -> None:
        self.groups: dict[str, Group] = {}
        self.successors: dict[str, set[str]] = {}
        self.predecessors: dict[str, set[str]] = {}
        self.writers: dict[str, list[str]] = {}
        self.readers: dict[str, list[str]] = {}
        self.positions = {id(node): position for position, node in enumerate(graph.nodes)}
        self.binders: dict[sympy.Symbol, str] = {}
        last_ordered: str | None = None
        for position, node in enumerate(graph.nodes):
            group = group_of(node, position)
            group.name = f"{group.name}.{position}"
            self.groups[group.name] = group
            self.successors[group.name], self.predecessors[group.name] = set(), set()
            self._connect(group, node)
            if self.binders:
                for size in sizes_of(node, graph.buffers) & self.binders.keys():
                    self._edge(self.binders[size], group.name)
            if isinstance(node, ExternNode):
                self.binders |= {bind.symbol: group.name for bind in node.binds}
            if isinstance(node, ExternNode) and is_ordered(node):
                if last_ordered is not None:
                    self._edge(last_ordered, group.name)
                last_ordered = group.name
        self._set_line(list(self.groups))

    def _set_line(self, names: list[str]) -> None:
        self._line, self._places = names, {name: place for place, name in enumerate(names)}

    def _connect(self, group: Group, node: LoopNode | ExternNode) -> None:
        for name in node.read_names:
            for writer in self.writers.get(name, ()):
                self._edge(writer, group.name)
            self.readers.setdefault(name, []).append(group.name)
        for name in [node.buffer] if isinstance(node, LoopNode) else node.result_names:
            writers = () if name in group.parts else self.writers.get(name, ())
            for earlier in (*writers, *self.readers.get(name, ())):
                self._edge(earlier, group.name)
            self.writers.setdefault(name, []).append(group.name)

    def _edge(self, before: str, after: str) -> None:
        if before != after:
            self.successors[before].add(after)
            self.predecessors[after].add(before)

    def readers_near(self, buffer: str, group: Group, count: int) -> list[str]:
        """The readers of a buffer closest to ``group`` in program order."""
        names = [name for name in dict.fromkeys(self.readers.get(buffer, ())) if name != group.name]
        if len(names) <= count:
            return names
        return heapq.nsmallest(
            count, names, key=lambda name: abs(self.groups[name].first - group.first)
        )

    def external(self, group: Group, inside: Collection[str], outputs: Collection[str]) -> set[str]:
        """Buffers that a group writes and that are also read or written by groups outside
        ``inside``, or returned in ``outputs``.
        """
        users = {
            name: {*self.readers.get(name, ()), *self.writers.get(name, ())}
            for name in group.writes
        }
        return {name for name in group.writes if name in outputs or users[name].difference(inside)}

    def step_between(self, a: Group, b: Group) -> Group | None:
        """A third group that must run between the two: the last one on a path from one to the
        other.
        """
        start, goal = sorted((a.name, b.name), key=self._places.__getitem__)
        end = self._places[goal]
        todo = [name for name in self.successors[start] if name != goal]
        seen = set(todo)
        while todo:
            name = todo.pop()
            if self._places[name] > end:
                continue
            for after in self.successors[name]:
                if after == goal:
                    return self.groups[name]
                if after not in seen:
                    seen.add(after)
                    todo.append(after)
        return None

    def _join_places(self, left: str, right: str) -> None:
        """Gives the two names one position, under the name ``left``: before what depends on the
        earlier one, and after everything else between them.
        """
        low, high = sorted((self._places[left], self._places.pop(right)))
        dependent = {self._line[low]}
        ahead: list[str] = []
        behind: list[str] = []
        for name in filter(None, self._line[low + 1 : high]):
            if dependent.isdisjoint(self.predecessors[name]):
                ahead.append(name)
            else:
                dependent.add(name)
                behind.append(name)
        names = [*ahead, left, *behind]
        self._places |= {name: place for place, name in enumerate(names, low)}
        self._line[low : high + 1] = names + [""] * (high + 1 - low - len(names))

    def replace(self, left: Group, right: Group, fused: Group) -> None:
        """Replaces two groups by ``fused``, which keeps the name of ``left``."""
        if left.name != fused.name:
            raise ScheduleError(f"a fused group is named {fused.name}, not {left.name}")
        self._join_places(left.name, right.name)
        names = {left.name, right.name}
        before = (self.predecessors[left.name] | self.predecessors.pop(right.name)) - names
        after = (self.successors[left.name] | self.successors.pop(right.name)) - names
        self.predecessors[left.name], self.successors[left.name] = before, after
        for name in before:
            self.successors[name] = {left.name if n in names else n for n in self.successors[name]}
        for name in after:
            self.predecessors[name] = {
                left.name if n in names else n for n in self.predecessors[name]
            }
        del self.groups[right.name]
        self.groups[left.name] = fused
        fused.members.sort(key=lambda member: self.positions[id(member.node)])
        for name in fused.reads:
            self.readers[name] = _renamed(self.readers[name], right.name, left.name)
        for name in fused.writes:
            self.writers[name] = _renamed(self.writers[name], right.name, left.name)

    def move_adds(self, rows: Group, sums: Group, fused: Group, rest: Group) -> None:
        """Replaces ``rows`` by ``fused``, which computes what ``rest`` needs, and ``sums`` by
        ``rest``.
        """
        self.groups[rows.name] = fused
        fused.members.sort(key=lambda member: self.positions[id(member.node)])
        for before in self.predecessors[sums.name]:
            self._edge(before, rows.name)
        self._edge(rows.name, sums.name)
        for name in fused.reads:
            self.readers[name] = list(dict.fromkeys([*self.readers[name], rows.name]))
        for name in fused.writes:
            self.writers[name] = list(dict.fromkeys([*self.writers[name], rows.name]))
        for users, kept in ((self.readers, rest.reads), (self.writers, set(rest.writes))):
            for name, names in users.items():
                if name not in kept:
                    names[:] = [user for user in names if user != sums.name]
        if rest.members:
            self.groups[sums.name] = rest
            self._set_line([group.name for group in self.order()])
            return
        for after in self.successors.pop(sums.name):
            self.predecessors[after].discard(sums.name)
            self._edge(rows.name, after)
        for before in self.predecessors.pop(sums.name):
            self.successors[before].discard(sums.name)
        del self.groups[sums.name]
        self._set_line([group.name for group in self.order()])

    def add_before(self, group: Group, new: Group) -> None:
        """Adds a group that initialises memory which ``group`` writes."""
        self.groups[new.name] = new
        self.successors[new.name], self.predecessors[new.name] = set(), set()
        self._edge(new.name, group.name)
        for name in new.writes:
            self.writers.setdefault(name, []).insert(0, new.name)
        self._set_line([group.name for group in self.order()])

    def order(self) -> list[Group]:
        """All groups: dependencies first, then in program order. Launches and extern calls are kept
        together where that moves a group by at most WINDOW nodes, so that launches form long runs.
        """
        waiting = {name: len(before) for name, before in self.predecessors.items()}
        ready: dict[bool, list[tuple[int, str]]] = {True: [], False: []}

        def add(name: str) -> None:
            group = self.groups[name]
            heapq.heappush(ready[group.is_call], (group.first, name))

        for name, count in waiting.items():
            if not count:
                add(name)
        result: list[Group] = []
        is_extern = False
        while ready[True] or ready[False]:
            same, other = ready[is_extern], ready[not is_extern]
            if not same or (other and same[0][0] - other[0][0] > WINDOW):
                is_extern, same = not is_extern, other
            _, name = heapq.heappop(same)
            result.append(self.groups[name])
            for after in self.successors[name]:
                waiting[after] -= 1
                if not waiting[after]:
                    add(after)
        if len(result) != len(self.groups):
            raise ScheduleError("groups depend on each other in a circle")
        return result


def _renamed(names: Iterable[str], old: str, new: str) -> list[str]:
    return list(dict.fromkeys(new if name == old else name for name in names))


def sizes_of(node: LoopNode | ExternNode, buffers: Mapping[str, Buffer]) -> set[sympy.Symbol]:
    """The size symbols that a node reads, including those of its loops."""
    if isinstance(node, LoopNode):
        buffer = buffers[node.buffer]
        exprs = [*buffer.shape, *buffer.stride, node.store_index]
        exprs += [access.index for access in node.reads]
        exprs += [item.extent for item in (*node.ranges, *node.reduction)]
        exprs += [expr for step in (*node.program, *node.epilogue) for expr in step.expressions]
    else:
        exprs = expressions_in((node.args, dict(node.kwargs)))
    return set().union(*map(symbols_of, exprs))


def is_ordered(node: ExternNode) -> bool:
    """Whether the call draws random numbers or takes part in a collective; such calls keep their
    order.
    """
    if getattr(node.op, "namespace", None) == "_c10d_functional":
        return True
    tags = getattr(node.op, "tags", ())
    return any(
        getattr(tag, "name", tag) in ("nondeterministic_seeded", "random", "random_seed", "effect")
        for tag in tags
    ) or (getattr(node.op, "name", None) == "random_seed")
