"""Counted decisions of a compiler: where it may do something else than the plain thing, it asks
``may`` first.

A search for a wrong result allows the first N decisions of a layer and refuses the others; the
first N with the wrong result names the decision. Without a search, ``may`` reads one global.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision: its layer, its rule ("fold_batch_norms"), what it is about (a node's name), and
    its position among those of the layer, from 1.
    """

    layer: str
    rule: str
    subject: str
    index: int

    def __str__(self) -> str:
        about = f" ({self.subject})" if self.subject else ""
        return f"{self.rule}{about}"


@dataclass(slots=True)
class DecisionLog:
    """What was decided, in order. ``limits``: how many decisions of a layer are allowed; all where
    it says nothing. ``keeps``: whether ``made`` is filled with those that were allowed.
    """

    limits: Mapping[str, int] = field(default_factory=dict)
    keeps: bool = True
    made: list[Decision] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def allows(self, layer: str, rule: str, subject: Any) -> bool:
        """Counts a decision; whether it is within the limit."""
        self.counts[layer] += 1
        count, limit = self.counts[layer], self.limits.get(layer)
        if limit is not None and count > limit:
            return False
        if self.keeps or count == limit:
            said = subject() if callable(subject) else subject
            self.made.append(Decision(layer, rule, str(said), count))
        return True

    def last(self, layer: str) -> Decision | None:
        """The last decision of a layer that was allowed."""
        return next((each for each in reversed(self.made) if each.layer == layer), None)


_searches = 0
_of_process: DecisionLog | None = None
_of_context: ContextVar[DecisionLog | None] = ContextVar("decisions", default=None)


def may(layer: str, rule: str, subject: Any = "") -> bool:
    """Whether a decision is allowed; always, unless a search is on.

    ``subject`` is what it is about, or a function that returns it. The caller must compute the same
    result, more plainly, where the decision is refused.
    """
    if not _searches:
        return True
    log = _of_context.get() or _of_process
    return log is None or log.allows(layer, rule, subject)


@contextmanager
def counting(limits: Mapping[str, int] | None = None) -> Iterator[DecisionLog]:
    """Counts the decisions of this context in a ``with`` block, within ``limits``."""
    global _searches
    log = DecisionLog(limits or {})
    token = _of_context.set(log)
    _searches += 1
    try:
        yield log
    finally:
        _searches -= 1
        _of_context.reset(token)


def count_in_process(limits: Mapping[str, int]) -> DecisionLog:
    """Counts the decisions of all threads from now on, and keeps only the last one allowed."""
    global _searches, _of_process
    _searches += _of_process is None
    _of_process = DecisionLog(limits, keeps=False)
    return _of_process


def stop_counting_in_process() -> None:
    """Ends ``count_in_process``."""
    global _searches, _of_process
    _searches -= _of_process is not None
    _of_process = None
