"""Delta debugging: the fewest nodes, the smallest sizes and the plainest dtypes with which a stage
still gives another result.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node

from .cuts import Part, Values

Fails = Callable[[Part], bool]
ROUNDS = 10
SECONDS = 120.0
"""After this time, the smallest part so far is good enough."""


@dataclass
class Shrinker:
    """Searches a smaller part of ``part`` on which ``fails`` holds."""

    source: str
    fails: Fails
    seconds: float = SECONDS
    trials: int = 0
    _end: float = field(default=0.0)

    def run(self, part: Part) -> Part:
        """The smallest part that was found; ``part`` itself if no smaller one fails."""
        self._end = time.monotonic() + self.seconds
        part = self._cut(part)
        for _ in range(ROUNDS):
            before = len(part.calls)
            part = self._without_nodes(part)
            if len(part.calls) == before:
                break
        return part

    def _try(self, part: Part) -> bool:
        if time.monotonic() > self._end:
            return False
        self.trials += 1
        try:
            return self.fails(part)
        except Exception:
            return False  # not every part is a program

    def _cut(self, part: Part) -> Part:
        """A result that differs, and then the last nodes before it that make it differ."""
        try:
            values = Values(self.source, part)
        except Exception:
            return part
        calls = values.calls
        everything = set(calls)
        single = self._single(values, calls)
        if single is not None:
            return single
        last = self._first_wrong(values, calls, everything)
        if last is None:
            return part
        found = values.part(everything, [calls[last]])
        width = 2
        while width <= last:
            smaller = values.part(set(calls[last + 1 - width : last + 1]), [calls[last]])
            if self._try(smaller):
                return smaller
            width *= 2
        return found

    def _single(self, values: Values, calls: list[Node]) -> Part | None:
        """A node that differs on its own: most wrong rules show so."""
        if len(calls) > 400:
            return None
        for node in calls:
            if isinstance(values.values.get(node), torch.Tensor):
                alone = values.part({node}, [node])
            else:
                items = [user for user in node.users if user in values.values]
                if not items:
                    continue
                alone = values.part({node, *items}, items)
            if self._try(alone):
                return alone
        return None

    def _first_wrong(self, values: Values, calls: list[Node], everything: set[Node]) -> int | None:
        """The position of a node whose value differs, while the node before it doesn't."""

        def is_wrong(position: int) -> bool:
            node = calls[position]
            return isinstance(values.values.get(node), torch.Tensor) and self._try(
                values.part(everything, [node])
            )

        wrong = next((i for i in reversed(range(len(calls))) if is_wrong(i)), None)
        if wrong is None:
            return None
        low, high = -1, wrong
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if is_wrong(middle) else (middle, high)
        return high

    def _without_nodes(self, part: Part) -> Part:
        """Without each node that can be an input, and each result that isn't needed."""
        part = self._fewer_results(part)
        for name in [node.name for node in reversed(part.calls)]:
            values = Values(self.source, part)
            if name not in {node.name for node in values.calls}:
                continue
            results = _results(values)
            kept = {node for node in values.calls if node.name != name}
            left = [r for r in results if r.op.startswith("call") and r.name != name]
            for attempt in _attempts(values, kept, left, name):
                if attempt.calls and len(attempt.calls) < len(part.calls) and self._try(attempt):
                    part = attempt
                    break
        return part

    def _fewer_results(self, part: Part) -> Part:
        values = Values(self.source, part)
        results = _results(values)
        for result in results if len(results) > 1 else ():
            attempt = values.part(set(values.calls), [result])
            if attempt.calls and self._try(attempt):
                return attempt
        return part


def _results(values: Values) -> list[Node]:
    found: Any = values.nodes[-1].args[0]
    return [node for node in found if isinstance(node, Node)]


def _attempts(values: Values, kept: set[Node], results: list[Node], name: str) -> Iterable[Part]:
    """The part without a node: as an input; where it is a result, with its operands as results."""
    (node,) = [node for node in values.calls if node.name == name]
    operands = [a for a in node.all_input_nodes if a in kept and a not in results]
    is_result = any(node is result for result in _results(values))
    if results:
        yield values.part(kept, results)
    if is_result and operands:
        yield values.part(kept, [*results, *operands])
