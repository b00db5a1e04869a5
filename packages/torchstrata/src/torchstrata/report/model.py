"""What a report says. ``reader`` makes it of a trace directory."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

from torchstrata.error_pages import read_page
from torchstrata.errors import UsageError

Place = tuple[str, int]
"""A file and a line."""


@dataclass(frozen=True, slots=True)
class Guard:
    """A condition on a call: ``on`` is the program's expression. ``seconds``: what it costs alone,
    if that was measured.
    """

    on: str
    kind: str
    text: str
    asked: Place | None
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Break:
    """Where and why a graph ended; ``stack`` has file, line and function, innermost last."""

    id: str
    title: str
    reason: str
    hint: str
    stack: tuple[tuple[str, int, str], ...]

    @property
    def place(self) -> Place:
        """The innermost line."""
        return self.stack[-1][:2] if self.stack else ("", 0)

    @property
    def page(self) -> str:
        """What ``python -m torchstrata help`` says of the id; empty for an id without a page, such
        as that of a trace by a later version.
        """
        with suppress(UsageError):
            return read_page(self.id)
        return ""


@dataclass(frozen=True, slots=True)
class Change:
    """Why a frame was compiled again: ``what`` was ``old``, is ``new``. ``asked`` is the line that
    relied on it, ``advice`` what avoids it.
    """

    text: str
    what: str
    old: str
    new: str
    asked: Place | None
    advice: str


@dataclass(slots=True)
class Frame:
    """One capture of a function, or of the rest of it after a break."""

    id: int
    name: str
    file: str
    first: int
    resumed: int | None
    number: int
    outcome: str
    at: float
    seconds: float
    lines: tuple[int, ...]
    guards: list[Guard]
    check_seconds: float | None
    stop: Break | None
    change: Change | None
    error: str | None
    graphs: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Function:
    """A function of the program, with its captures. ``status`` says per line what happened:
    "captured", "broke", "eager" or "never".
    """

    name: str
    file: str
    first: int
    last: int
    source: dict[int, str]
    status: dict[int, str]
    frames: list[Frame]

    @property
    def coverage(self) -> tuple[int, int]:
        """The lines that were captured, and all with instructions."""
        captured = sum(status == "captured" for status in self.status.values())
        return captured, len(self.status)


@dataclass(frozen=True, slots=True)
class Text:
    """The text of a stage: lines, and per line the number of its place in ``Graph.places``, or
    -1.
    """

    title: str
    lines: tuple[str, ...]
    places: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel: its places are the user lines that it computes."""

    name: str
    title: str
    device: str
    places: tuple[int, ...]
    nodes: tuple[str, ...]
    loops: str
    source: str


@dataclass(frozen=True, slots=True)
class Call:
    """A launch or an extern call of a program.

    Attributes:
        name: of the kernel, or of the operator.
        kernel: the kernel's position; None for an operator.
        title: what it computes, in a few words.
        places: the user lines that it computes.
        bytes_read: from memory.
        bytes_written: to memory.
        operations: of a product.
        estimate: seconds at the machine's limits, if they are known.
        count: how often it was measured.
        mean: seconds without the first time, if measured.
        least: seconds, if measured.
    """

    name: str
    kernel: int | None
    title: str
    places: tuple[int, ...]
    bytes_read: int
    bytes_written: int
    operations: int
    estimate: float | None
    count: int = 0
    mean: float | None = None
    least: float | None = None

    @property
    def share(self) -> float | None:
        """The share of the machine's limit that the call reaches."""
        return self.estimate / self.least if self.estimate and self.least else None


@dataclass(frozen=True, slots=True)
class Decision:
    """Two groups of loops that the scheduler considered to fuse: their buffers, what they compute,
    and the user lines of both.
    """

    first: str
    first_title: str
    second: str
    second_title: str
    places: tuple[int, ...]
    accepted: bool
    reason: str
    saved: int


@dataclass(frozen=True, slots=True)
class Buffer:
    """A buffer in memory from call ``birth`` to call ``death`` (not included); ``offset`` is where
    the picture draws it, if it does.
    """

    name: str
    kind: str
    dtype: str
    shape: str
    size: int
    birth: int
    death: int
    memory: str
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of the timeline: ``level`` 0 is a frame, 1 a graph, 2 a stage."""

    name: str
    level: int
    at: float
    seconds: float
    frame: int | None = None
    graph: int | None = None


@dataclass(slots=True)
class Program:
    """A functional graph below autograd: "forward", "backward" or "inference"."""

    direction: str
    prims: Text | None
    host: Text | None
    kernels: list[Kernel]
    calls: list[Call]
    decisions: list[Decision]
    buffers: list[Buffer]
    peak: int
    stages: list[Span]


@dataclass(frozen=True, slots=True)
class Lookup:
    """An answer of the cache."""

    what: str
    direction: str
    hit: bool
    reason: str


@dataclass(slots=True)
class Graph:
    """A captured graph with everything that was made of it. ``same_as``: an earlier graph of the
    trace from whose programs this one was made.
    """

    id: int
    frame: int | None
    at: float
    seconds: float
    nodes: int
    error: str | None
    same_as: int | None
    lookups: list[Lookup]
    places: list[Place]
    code: dict[int, str]
    texts: list[Text]
    programs: list[Program]

    @property
    def call_count(self) -> int:
        """Launches and extern calls of all programs."""
        return sum(len(program.calls) for program in self.programs)


@dataclass(slots=True)
class Report:
    """Everything that a page or a summary shows."""

    title: str
    machine: str
    versions: str
    threads: int
    bandwidth: float | None
    rate: float | None
    profiled: bool
    functions: list[Function]
    graphs: list[Graph]
    spans: list[Span]
    sources: dict[str, list[str]]

    @property
    def frames(self) -> list[Frame]:
        """All captures, in order."""
        found = [frame for function in self.functions for frame in function.frames]
        return sorted(found, key=lambda frame: frame.at)

    @property
    def breaks(self) -> list[Frame]:
        """The captures that end before the frame."""
        return [f for f in self.frames if f.stop is not None and f.stop.id != "BD008"]

    @property
    def recompiles(self) -> list[Frame]:
        """The captures of code that was compiled before."""
        return [frame for frame in self.frames if frame.change is not None]

    @property
    def seconds(self) -> float:
        """The time that all captures took, with what they compiled."""
        return sum(span.seconds for span in self.spans if span.level == 0)
