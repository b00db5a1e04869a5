"""Choices that a measurement or a rule of thumb makes, by name: recorded, and replayed.

A compiler that may choose asks here with what it prefers. Without a record of choices it gets that
back; with one that knows the graph, what was chosen before. An answer that can't be taken any more
is stale: the choice is made anew, and reported.

A program is the same with any answer, but for rounding; whether one is legal, the caller checks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Subject: TypeAlias = str | Callable[[], str]
Rules: TypeAlias = Mapping[str, Any]
"""By rule, the subjects where the answer is yes, in order; or the answer by subject."""


@dataclass(slots=True)
class Choices:
    """The choices of one graph. ``known``: those of an earlier compilation, None if there was none.

    ``made`` are the choices of this compilation, in the form of ``known``; ``stale`` says which of
    ``known`` no longer apply, ``new`` which it lacks.
    """

    known: Rules | None = None
    made: dict[str, Any] = field(default_factory=dict)
    stale: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    _scope: str = ""
    _asked: dict[str, set[str]] = field(default_factory=dict)
    _reported: set[str] = field(default_factory=set)
    _counts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def decide(self, rule: str, subject: str, preferred: bool | Callable[[], bool]) -> bool:
        """Whether to do what ``rule`` names, to ``subject``."""
        rule, known = self._known(rule, list)
        answer = _value(preferred) if known is None else subject in known
        self._asked.setdefault(rule, set()).add(subject)
        subjects = self.made.setdefault(rule, [])
        if answer and subject not in subjects:
            subjects.append(subject)
        return answer

    def choose(
        self, rule: str, subject: str, preferred: Subject, is_possible: Callable[[str], bool]
    ) -> str:
        """The answer of ``rule`` for ``subject``: the known one if it ``is_possible``."""
        rule, known = self._known(rule, dict)
        answer = None if known is None else known.get(subject)
        if known is not None and subject not in known and subject not in self.made.get(rule, ()):
            self.new.append(f"{rule}: {subject}")
        if answer is not None and not (isinstance(answer, str) and is_possible(answer)):
            self.stale.append(f"{rule}: {subject} can't be {answer!r}")
            answer = None
        self._asked.setdefault(rule, set()).add(subject)
        answers = self.made.setdefault(rule, {})
        if subject not in answers:
            answers[subject] = _value(preferred) if answer is None else answer
        return answers[subject]

    def sequence(self, rule: str) -> Sequence[str] | None:
        """The known answers of ``rule``, in order; None if there are none to follow."""
        return self._known(rule, list)[1]

    def extend(self, rule: str, answer: str | None = None, stale: str = "") -> None:
        """Adds to the answers of a ``sequence``; ``stale`` is one that can't be followed."""
        rule, _ = self._known(rule, list)
        answers = self.made.setdefault(rule, [])
        self._asked.setdefault(rule, set()).add(stale or answer or "")
        if answer is not None:
            answers.append(answer)
        if stale:
            self.stale.append(f"{rule}: {stale}")
            self._reported.add(rule)

    def numbered(self, rule: str, subject: str) -> str:
        """``subject``, with a number where ``rule`` is asked again about another thing of this
        name.
        """
        key = (f"{self._scope}{rule}", subject)
        self._counts[key] += 1
        return subject if self._counts[key] == 1 else f"{subject} #{self._counts[key]}"

    def finish(self) -> None:
        """Reports the known choices that nobody asked for."""
        for rule, answers in (self.known or {}).items():
            asked = answers if rule in self._reported else self._asked.get(rule, ())
            self.stale += [f"{rule}: {each} is gone" for each in answers if each not in asked]

    def _known(self, rule: str, kind: type) -> tuple[str, Any]:
        rule = f"{rule} in {self._scope}" if self._scope else rule
        found = None if self.known is None else self.known.get(rule)
        if found is None or type(found) is kind:
            return rule, found
        self.stale.append(f"{rule} is no {'array' if kind is list else 'table'}")
        return rule, None


def _value(preferred: Any) -> Any:
    return preferred() if callable(preferred) else preferred


_of_context: ContextVar[Choices | None] = ContextVar("choices", default=None)
_users = 0


def current() -> Choices | None:
    """The choices that are recorded in this context."""
    return _of_context.get() if _users else None


def decide(
    rule: str, subject: Subject, preferred: bool | Callable[[], bool], *, numbered: bool = False
) -> bool:
    """Whether to do what ``rule`` names, to ``subject``: as recorded, or as ``preferred`` (or what
    it returns, such as a measurement).

    ``numbered``: each question is about another thing, though names may repeat. What is done must
    be legal with both answers.
    """
    found = current()
    if found is None:
        return _value(preferred)
    said = subject if isinstance(subject, str) else subject()
    return found.decide(rule, found.numbered(rule, said) if numbered else said, preferred)


def choose(
    rule: str,
    subject: Subject,
    preferred: Subject,
    is_possible: Callable[[str], bool],
    *,
    numbered: bool = False,
) -> str:
    """The answer of ``rule`` for ``subject``: as recorded if that ``is_possible``, or as
    ``preferred``; see ``decide``.
    """
    found = current()
    if found is None:
        return _value(preferred)
    said = subject if isinstance(subject, str) else subject()
    said = found.numbered(rule, said) if numbered else said
    return found.choose(rule, said, preferred, is_possible)


@contextmanager
def using(choices: Choices | None) -> Iterator[None]:
    """Records the choices of a ``with`` block in ``choices``; nowhere if None."""
    global _users
    token = _of_context.set(choices)
    _users += 1
    try:
        yield
    finally:
        _users -= 1
        _of_context.reset(token)


@contextmanager
def within(scope: str) -> Iterator[None]:
    """Tells the choices about a part of a graph apart, whose names may be those of another."""
    found = current()
    if found is None:
        yield
        return
    before, found._scope = found._scope, scope
    try:
        yield
    finally:
        found._scope = before
