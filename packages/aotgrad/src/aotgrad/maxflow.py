"""Maximum flow and minimum cut (Dinic's algorithm) on integer capacities."""

from __future__ import annotations

from collections import deque

INFINITE = 1 << 60


class FlowNetwork:
    """A directed graph with capacities; edge ``e`` and its reverse ``e ^ 1`` are stored together."""

    def __init__(self, num_nodes: int) -> None:
        self._edges: list[list[int]] = [[] for _ in range(num_nodes)]
        self._head: list[int] = []
        self._capacity: list[int] = []

    def add_edge(self, tail: int, head: int, capacity: int) -> None:
        """Adds an edge."""
        self._edges[tail].append(len(self._head))
        self._edges[head].append(len(self._head) + 1)
        self._head += (head, tail)
        self._capacity += (capacity, 0)

    def minimum_cut(self, source: int, sink: int) -> list[bool]:
        """For each node whether it lies on the sink's side of the minimum cut that is nearest to the sink.

        Raises ValueError when no finite cut exists.
        """
        flow = 0
        while (level := self._levels(source, sink)) is not None:
            position = [0] * len(self._edges)
            while pushed := self._augment(source, sink, level, position):
                flow += pushed
        if flow >= INFINITE:
            raise ValueError("every cut passes an edge that must not be cut")
        return self._reaches(sink)

    def _levels(self, source: int, sink: int) -> list[int] | None:
        level = [-1] * len(self._edges)
        level[source] = 0
        queue = deque([source])
        while queue:
            node = queue.popleft()
            for edge in self._edges[node]:
                head = self._head[edge]
                if self._capacity[edge] and level[head] < 0:
                    level[head] = level[node] + 1
                    queue.append(head)
        return level if level[sink] >= 0 else None

    def _augment(self, source: int, sink: int, level: list[int], position: list[int]) -> int:
        """Pushes flow along one path of increasing level; 0 when there is none left."""
        path: list[int] = []
        node = source
        while node != sink:
            edges = self._edges[node]
            while position[node] < len(edges):
                edge = edges[position[node]]
                if self._capacity[edge] and level[self._head[edge]] == level[node] + 1:
                    break
                position[node] += 1
            else:
                if not path:
                    return 0
                node = self._head[path.pop() ^ 1]
                position[node] += 1
                continue
            path.append(edge)
            node = self._head[edge]
        pushed = min(self._capacity[e] for e in path)
        for edge in path:
            self._capacity[edge] -= pushed
            self._capacity[edge ^ 1] += pushed
        return pushed

    def _reaches(self, sink: int) -> list[bool]:
        found = [False] * len(self._edges)
        found[sink] = True
        stack = [sink]
        while stack:
            node = stack.pop()
            for edge in self._edges[node]:
                tail = self._head[edge]
                if not found[tail] and self._capacity[edge ^ 1]:
                    found[tail] = True
                    stack.append(tail)
        return found
