"""Dependencies between groups: which groups write and read each buffer, and what must run between
two groups.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping

import sympy

from loopir.errors import ScheduleError
from loopir.ir.expr import symbols_of
from loopir.ir.node import Buffer, ExternNode, LoopNode, LoweredGraph, expressions_in, is_ordered

from .group import Group, group_of
from .users import NOBODY, Users

WINDOW = 16
MOST_SEEN = 512
"""The groups that a search between two groups sees before it gives up."""
MOST_PAIRS = 1 << 12
"""The pairs of a part's writer and a reader, for one buffer, that are edges of their own."""
UNKNOWN = Group("", None, [], [], [], 0, 0)
"""What a search returns that gave up."""


class Dag:
    """Groups by name, with their successors and predecessors. Merging groups keeps the graph
    acyclic.

    ``_places`` are numbers in a topological order: they bound searches for dependencies, as the
    ``first`` and ``last`` of merged groups don't. Edges may lead through names that are no groups:
    ``_joints``, which wait for all writers of a buffer for all its readers.
    """

    def __init__(self, graph: LoweredGraph) -> None:
        self.groups: dict[str, Group] = {}
        self.successors: dict[str, set[str]] = {}
        self.predecessors: dict[str, set[str]] = {}
        self.writers: defaultdict[str, Users] = defaultdict(Users)
        self.readers: defaultdict[str, Users] = defaultdict(Users)
        self.positions = {id(node): position for position, node in enumerate(graph.nodes)}
        self.binders: dict[sympy.Symbol, str] = {}
        self._places: dict[str, int] = {}
        self._front = 0
        self._joined = _buffers_of_many(graph)
        self._joints: dict[str, str] = {}
        self._unjoined: defaultdict[str, list[str]] = defaultdict(list)
        last_ordered: str | None = None
        for position, node in enumerate(graph.nodes):
            group = group_of(node, position)
            group.name = f"{group.name}.{position}"
            self.groups[group.name] = group
            self.successors[group.name], self.predecessors[group.name] = set(), set()
            self._connect(group, node)
            self._places[group.name] = len(self._places)
            if self.binders:
                for size in sizes_of(node, graph.buffers) & self.binders.keys():
                    self._edge(self.binders[size], group.name)
            if isinstance(node, ExternNode):
                self.binders |= {bind.symbol: group.name for bind in node.binds}
            if isinstance(node, ExternNode) and is_ordered(node):
                if last_ordered is not None:
                    self._edge(last_ordered, group.name)
                last_ordered = group.name

    def _connect(self, group: Group, node: LoopNode | ExternNode) -> None:
        for name in node.read_names:
            for writer in self._written(name):
                self._edge(writer, group.name)
            self.readers[name].add(group.name, group.first)
        for name in [node.buffer] if isinstance(node, LoopNode) else node.result_names:
            writers = NOBODY if name in group.parts else self.writers.get(name, NOBODY)
            for earlier in (*writers, *self.readers.get(name, NOBODY)):
                self._edge(earlier, group.name)
            self.writers[name].add(group.name, group.first)
            if name in self._joined:
                self._unjoined[name].append(group.name)

    def _written(self, buffer: str) -> Iterable[str]:
        """What a reader of a buffer waits for."""
        if buffer not in self._joined:
            return self.writers.get(buffer, NOBODY)
        before = self._unjoined.pop(buffer, [])
        if before:
            last, joint = self._joints.get(buffer), f"{buffer} at {len(self._places)}"
            self._joints[buffer] = joint
            self.successors[joint], self.predecessors[joint] = set(), set()
            self._places[joint] = len(self._places)
            for name in before if last is None else (*before, last):
                self._edge(name, joint)
        return [self._joints[buffer]] if buffer in self._joints else []

    def _edge(self, before: str, after: str) -> None:
        if before != after:
            self.successors[before].add(after)
            self.predecessors[after].add(before)

    def external(self, group: Group, inside: Collection[str], outputs: Collection[str]) -> set[str]:
        """Buffers that a group writes and that are also read or written by groups outside
        ``inside``, or returned in ``outputs``.
        """

        def leaves(name: str) -> bool:
            users = (self.readers.get(name, NOBODY), self.writers.get(name, NOBODY))
            return name in outputs or any(each.others(*inside) for each in users)

        return {name for name in group.writes if leaves(name)}

    def step_between(self, a: Group, b: Group) -> Group | None:
        """A third group on a path from one of the two to the other, which therefore must run
        between them; UNKNOWN if there may be one. Searches from the end with fewer neighbours.
        """
        start, goal = sorted((a.name, b.name), key=self._places.__getitem__)
        edges = self.successors
        if len(self.predecessors[goal]) < len(edges[start]):
            start, goal, edges = goal, start, self.predecessors
        low, high = sorted((self._places[start], self._places[goal]))
        todo = [name for name in edges[start] if name != goal]
        seen = set(todo)
        while todo:
            name = todo.pop()
            if not low < self._places[name] < high:
                continue
            if len(seen) + len(edges[name]) > MOST_SEEN:
                return UNKNOWN
            for beyond in edges[name]:
                if beyond == goal:
                    return self.groups.get(name, UNKNOWN)
                if beyond not in seen:
                    seen.add(beyond)
                    todo.append(beyond)
        return None

    def _bring_together(self, first: str, second: str) -> None:
        """Renumbers two groups between which nothing must run, so that ``first`` comes right before
        ``second``. What depends on the earlier one moves behind both, what the later one needs
        moves ahead; all other groups keep their numbers.
        """
        low, high = sorted((first, second), key=self._places.__getitem__)
        span = range(self._places[low] + 1, self._places[high])
        ahead = self._reachable(high, self.predecessors, span)
        behind = self._reachable(low, self.successors, span)
        names = [*ahead, first, second, *behind]
        numbers = sorted(self._places[name] for name in names)
        self._places.update(zip(names, numbers, strict=True))

    def _reachable(self, start: str, edges: Mapping[str, set[str]], span: range) -> list[str]:
        """The groups with places in ``span`` that ``edges`` lead to from ``start``, in order."""
        found, todo = set[str](), [start]
        while todo:
            for name in edges[todo.pop()]:
                if name not in found and self._places[name] in span:
                    found.add(name)
                    todo.append(name)
        return sorted(found, key=self._places.__getitem__)

    def replace(self, left: Group, right: Group, fused: Group) -> None:
        """Replaces two groups by ``fused``, which keeps the name of ``left``."""
        if left.name != fused.name:
            raise ScheduleError(f"a fused group is named {fused.name}, not {left.name}")
        self._bring_together(left.name, right.name)
        del self._places[right.name], self.groups[right.name]
        for edges, back in (
            (self.predecessors, self.successors),
            (self.successors, self.predecessors),
        ):
            for name in edges.pop(right.name):
                back[name].discard(right.name)
                if name != left.name:
                    back[name].add(left.name)
                    edges[left.name].add(name)
        self.groups[left.name] = fused
        fused.members.sort(key=lambda member: self.positions[id(member.node)])
        for users, names in ((self.readers, fused.reads), (self.writers, fused.writes)):
            for name in names:
                if right.name in users[name]:
                    users[name].discard(right.name)
                    users[name].add(left.name, left.first)

    def move_adds(self, rows: Group, sums: Group, fused: Group, rest: Group) -> None:
        """Replaces ``rows`` by ``fused``, which computes what ``rest`` needs, and ``sums`` by
        ``rest``.
        """
        self._bring_together(rows.name, sums.name)
        self.groups[rows.name] = fused
        fused.members.sort(key=lambda member: self.positions[id(member.node)])
        for before in self.predecessors[sums.name]:
            self._edge(before, rows.name)
        self._edge(rows.name, sums.name)
        for users, now, was, kept in (
            (self.readers, fused.reads, sums.reads, rest.reads),
            (self.writers, set(fused.writes), set(sums.writes), set(rest.writes)),
        ):
            for name in now:
                users[name].add(rows.name, rows.first)
            for name in was - kept:
                users[name].discard(sums.name)
        if rest.members:
            self.groups[sums.name] = rest
            return
        for after in self.successors.pop(sums.name):
            self.predecessors[after].discard(sums.name)
            self._edge(rows.name, after)
        for before in self.predecessors.pop(sums.name):
            self.successors[before].discard(sums.name)
        del self.groups[sums.name], self._places[sums.name]

    def add_before(self, group: Group, new: Group) -> None:
        """Adds a group that initialises memory which ``group`` writes, and needs nothing."""
        self.groups[new.name] = new
        self.successors[new.name], self.predecessors[new.name] = set(), set()
        self._edge(new.name, group.name)
        self._front -= 1
        self._places[new.name] = self._front
        for name in new.writes:
            self.writers[name].add(new.name, group.first - 1)

    def leave(self, name: str, waiting: dict[str, int]) -> Iterator[Group]:
        """The groups that are ready once a group has run. ``waiting``: how many predecessors of
        each have not run yet.
        """
        todo = [name]
        while todo:
            for after in self.successors[todo.pop()]:
                waiting[after] -= 1
                if not waiting[after] and after in self.groups:
                    yield self.groups[after]
                elif not waiting[after]:
                    todo.append(after)

    def order(self) -> list[Group]:
        """All groups: dependencies first, then in program order. Launches and extern calls are kept
        together where that moves a group by at most WINDOW nodes, so that launches form long runs.
        """
        waiting = {name: len(before) for name, before in self.predecessors.items()}
        ready: dict[bool, list[tuple[int, str]]] = {True: [], False: []}

        def add(group: Group) -> None:
            heapq.heappush(ready[group.is_call], (group.first, group.name))

        for name, count in waiting.items():
            if not count:
                add(self.groups[name])
        result: list[Group] = []
        is_extern = False
        while ready[True] or ready[False]:
            same, other = ready[is_extern], ready[not is_extern]
            if not same or (other and same[0][0] - other[0][0] > WINDOW):
                is_extern, same = not is_extern, other
            _, name = heapq.heappop(same)
            result.append(self.groups[name])
            for group in self.leave(name, waiting):
                add(group)
        if len(result) != len(self.groups):
            raise ScheduleError("groups depend on each other in a circle")
        return result


def _buffers_of_many(graph: LoweredGraph) -> set[str]:
    """The buffers that are written in parts, with more than MOST_PAIRS pairs of a writer and a
    reader.
    """
    parts = Counter(n.buffer for n in graph.nodes if isinstance(n, LoopNode) and n.is_part)
    reads = Counter(name for node in graph.nodes for name in node.read_names) if parts else {}
    return {name for name, count in parts.items() if count * reads.get(name, 0) > MOST_PAIRS}


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
