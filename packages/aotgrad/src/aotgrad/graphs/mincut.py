"""Minimum cuts of directed graphs, by the maximum flow of Dinic (1970)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf

Edge = tuple[int, int, int | None]


def sink_side(edges: Iterable[Edge], source: int, sink: int) -> set[int]:
    """The nodes behind a minimum cut; of all minimum cuts the one nearest to the sink, which is
    unique.

    Args:
        edges: (tail, head, capacity); an edge of capacity None is never cut.
        source: where flow starts.
        sink: where it ends.

    Raises ValueError when no finite cut exists.
    """
    network = _Network(edges, source, sink)
    while source in (distance := network.distances()):
        network.saturate(distance)
    return set(distance)


class _Network:
    """Residual capacities. Arc ``e`` ends at ``heads[e]``; ``e ^ 1`` is its reverse."""

    def __init__(self, edges: Iterable[Edge], source: int, sink: int) -> None:
        self.source, self.sink = source, sink
        self.heads: list[int] = []
        self.residual: list[float] = []  # whole numbers, or infinite
        self.arcs: dict[int, list[int]] = {source: [], sink: []}
        for tail, head, capacity in edges:
            for start, end, room in (
                (tail, head, inf if capacity is None else capacity),
                (head, tail, 0),
            ):
                self.arcs.setdefault(start, []).append(len(self.heads))
                self.heads.append(end)
                self.residual.append(room)

    def distances(self) -> dict[int, int]:
        """The number of arcs to the sink, for each node from which more can flow there."""
        heads, residual, distance = self.heads, self.residual, {self.sink: 0}
        queue = [self.sink]
        for node in queue:
            for arc in self.arcs[node]:
                tail = heads[arc]
                if tail not in distance and residual[arc ^ 1]:
                    distance[tail] = distance[node] + 1
                    queue.append(tail)
        return distance

    def saturate(self, distance: Mapping[int, int]) -> None:
        """Sends flow along shortest paths until each has a full arc."""
        heads, residual = self.heads, self.residual
        tried = dict.fromkeys(distance, 0)  # arcs of a node that lead nowhere
        path: list[int] = []
        node = self.source
        while True:
            if node == self.sink:
                full = self._send(path)
                node = heads[path[full] ^ 1]
                del path[full:]
            arcs, nearer = self.arcs[node], distance[node] - 1
            while tried[node] < len(arcs):
                arc = arcs[tried[node]]
                if residual[arc] and distance.get(heads[arc]) == nearer:
                    path.append(arc)
                    node = heads[arc]
                    break
                tried[node] += 1
            else:
                if not path:
                    return
                node = heads[path.pop() ^ 1]
                tried[node] += 1

    def _send(self, path: list[int]) -> int:
        """Sends as much flow as a path has room for; returns the index of its first full arc."""
        flow = min(self.residual[arc] for arc in path)
        if flow == inf:
            raise ValueError("every cut passes an edge that must not be cut")
        for arc in path:
            self.residual[arc] -= flow
            self.residual[arc ^ 1] += flow
        return next(i for i, arc in enumerate(path) if not self.residual[arc])
