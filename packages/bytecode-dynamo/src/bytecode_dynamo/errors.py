"""The three families of errors: graph breaks, errors of the caller, and errors of this package.

A :class:`GraphBreak` is raised where evaluation meets something that can't stand in a graph; it is
caught by the frame compiler, which ends the graph there. With ``fullgraph=True`` it reaches the
caller as :class:`Unsupported`.
"""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any


class DynamoError(Exception):
    """Base of every error that this package raises on purpose."""


class UserError(DynamoError):
    """The caller's program or arguments are wrong."""


class InvariantError(DynamoError):
    """A defect of this package: something its own rules exclude happened."""


class BackendCompilerFailed(DynamoError):
    """A backend raised, or returned something that can't be called; the original is
    ``__cause__``.
    """

    def __init__(self, backend_name: str, problem: str) -> None:
        super().__init__(f"backend {backend_name!r} {problem}")
        self.backend_name = backend_name


class Unsupported(DynamoError):
    """A graph break under ``fullgraph=True`` (or a break that the caller asked to be an error)."""

    def __init__(self, record: BreakRecord) -> None:
        super().__init__(record.format())
        self.record = record
        self.id = record.id


class RecompileError(DynamoError, RuntimeError):
    """A graph that must not be compiled: under ``set_stance("fail_on_recompile")``, or beyond the
    limit of ``fullgraph``.
    """


class ContractError(DynamoError):
    """A captured graph violates a clause of C1."""

    def __init__(self, clause: str, node: object, problem: str) -> None:
        super().__init__(f"[{clause}] {node}: {problem}")
        self.clause = clause


@dataclass(frozen=True, slots=True)
class Place:
    """A line of user code."""

    filename: str
    line: int | None
    function: str

    def format(self) -> str:
        """The line as a traceback shows it."""
        text = linecache.getline(self.filename, self.line or 0).strip()
        head = f'  File "{self.filename}", line {self.line}, in {self.function}'
        return f"{head}\n    {text}" if text else head


# Graph break ids: (what it is, hint). An id never changes its meaning.
BREAKS: dict[str, tuple[str, str]] = {
    "BD001": ("control flow depends on the values of a tensor",
    "use torch.where or torch.cond, or branch outside the compiled region"),
    "BD002": ("call of a function that can't be looked into",
    "call it outside the compiled region, or use torch functions"),
    "BD003": ("input or output", "move input, output and messages out of the compiled region"),
    "BD004": ("a tensor's values leave for Python", "keep the value in a tensor"),
    "BD005": ("a tensor leaves for another array library",
    "use the torch function of the same meaning"),
    "BD006": ("instruction without symbolic meaning", "rewrite the statement"),
    "BD007": ("operation on an object that is not modelled",
    "do it outside the compiled region, or with plain Python values and containers"),
    "BD008": ("an exception leaves the frame",
    "this is your program's own exception; it is raised as in eager mode"),
    "BD009": ("graph_break() was called", "remove the call"),
    "BD010": ("call of a disabled function",
    "remove disable() where it was applied, or call the function outside the compiled region"),
    "BD011": ("a torch call could not be evaluated without data",
    "if eager mode raises too, the call itself is wrong"),
    "BD012": ("iteration over an opaque iterator", "iterate over a list, tuple, dict or range"),
    "BD013": ("generator or coroutine", "consume the generator where it is made"),
    "BD014": ("attribute that is not modelled", "read it outside the compiled region"),
    "BD015": ("value that can't be built again",
    "do not keep it alive across the statement named below"),
    "BD016": ("inlining is too deep",
    "raise bytecode_dynamo.config.inline_depth, or use a loop in place of the recursion"),
    "BD017": ("context manager that is not modelled",
    "use torch.no_grad, enable_grad, autocast, or a Python class"),
    "BD018": ("torch function that is not captured", "call it outside the compiled region"),
    "BD019": ("class or object construction that is not modelled",
    "construct it outside the compiled region"),
    "BD020": ("mutation that is not modelled", "avoid the mutation inside the compiled region"),
    "BD021": ("loop is too long to unroll",
    "raise bytecode_dynamo.config.max_instructions, or vectorise the loop"),
}  # fmt: skip


SHOWN = 3
"""How often a line that calls itself is shown."""


@dataclass(frozen=True, slots=True)
class BreakRecord:
    """One graph break: id, reason, where in the user's program (innermost last), what to try."""

    id: str
    reason: str
    hint: str
    stack: tuple[Place, ...] = ()

    @property
    def title(self) -> str:
        """What breaks with this id are."""
        return BREAKS[self.id][0]

    def format(self) -> str:
        """Several lines for people."""
        lines = [f"{self.id}: {self.title}", f"  {self.reason}"]
        for place, repeated in groupby(self.stack):
            count = sum(1 for _ in repeated)
            lines += [place.format()] * min(count, SHOWN)
            if count > SHOWN:
                lines.append(f"  [the line above {count - SHOWN} more times]")
        lines += [f"  hint: {self.hint}", f"  help: python -m torchstrata help {self.id}"]
        return "\n".join(lines)


class GraphBreak(DynamoError):
    """Evaluation can't go on inside a graph; ``stack`` is filled in by the evaluator."""

    def __init__(self, id: str, reason: str, hint: str | None = None) -> None:
        super().__init__(f"{id}: {reason}")
        self.id = id
        self.reason = reason
        self.hint = BREAKS[id][1] if hint is None else hint
        self.stack: tuple[Place, ...] = ()
        self.inner: Any = None
        """Where to break inside the calls of the root frame (``tracing.nesting.InnerPlace``)."""
        self.strict = False
        """Whether the program is where breaks are errors (``error_on_graph_break``)."""

    def record(self) -> BreakRecord:
        """The break as a value."""
        return BreakRecord(self.id, self.reason, self.hint, self.stack)


class ObservedException(Exception):
    """The evaluated program raises; ``value`` is the tracker of the exception object."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.value = value


class Retry(Exception):
    """Evaluate the frame again from its beginning: an object that it uses was completed
    meanwhile.
    """


ASSUMED = "sizes that depend on data are not as assumed"
"""In the message of an assertion that a graph makes of its data."""


class UnsoundAssumption(Exception):
    """Capture the frame again without assumptions on data: a graph that has found one wrong could
    not be undone.
    """


class LosesEffects(Exception):
    """Capture the frame again without what can't be undone: effects before an operator that raises
    would be lost.
    """


class UnbuildableCallees(Exception):
    """Capture the frame again and break before its call: its callees' frames can't be built."""


class NotConstant(Exception):
    """A tracker has no value known while capturing."""


def innermost(stack: Sequence[Place]) -> Place | None:
    """The user's line, if any."""
    return stack[-1] if stack else None
