"""How long the graphs of one callable take to compile: the budget ``compile_seconds``, and a line
that shows what a long compilation does.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from .counters import counters

DELAY, INTERVAL = 5.0, 0.5
"""Seconds until the line appears, and between its updates."""
CHEAPER: dict[str, object] = {"templates": False, "tune": False, "vectorisation": False}
"""What a graph does without once the budget is spent: vectorised kernels take the C++ compiler
twice as long.
"""
log = logging.getLogger("torchstrata.progress")


@dataclass(slots=True)
class CompileClock:
    """The seconds that a callable's compilations took, in all threads.

    Attributes:
        budget: the seconds after which graphs are compiled with cheaper schedules, or None.
        doing: the direction and stage that runs now.
    """

    budget: float | None = None
    doing: str = "autograd"
    _spent: float = 0.0
    _running: list[float] = field(default_factory=list)
    _is_told: bool = False

    def seconds(self) -> float:
        """What was spent so far."""
        now = time.monotonic()
        return self._spent + sum(now - start for start in self._running)

    def is_over(self) -> bool:
        """Whether the budget is spent."""
        return self.budget is not None and self.seconds() >= self.budget

    def note_cheaper(self) -> None:
        """Counts a graph that is compiled with cheaper schedules; the first one is logged."""
        counters.compiler["cheaper_graphs"] += 1
        if not self._is_told:
            self._is_told = True
            log.warning(
                "%g seconds of compilation are spent (option 'compile_seconds'): what is left is "
                "compiled without %s", self.budget, ", ".join(CHEAPER),
            )  # fmt: skip

    @contextmanager
    def running(self, where: str) -> Iterator[None]:
        """Counts a compilation; ``where`` are the user's lines."""
        start = time.monotonic()
        self._running.append(start)
        try:
            with _shown(lambda: self._line(where, time.monotonic() - start)):
                yield
        finally:
            self._running.remove(start)
            self._spent += time.monotonic() - start

    def _line(self, where: str, seconds: float) -> str:
        place = where.strip().partition("\n")[0] or "a graph"
        of = "" if self.budget is None else f" of {self.budget:g}"
        return f"torchstrata: compiling {place} ({self.doing}), {seconds:.0f}{of} s"


@contextmanager
def _shown(line: Callable[[], str]) -> Iterator[None]:
    """Shows ``line()`` while the block takes longer than DELAY: on a terminal, else one record."""
    is_terminal = sys.stderr.isatty()
    if not (is_terminal or log.isEnabledFor(logging.INFO)):
        yield
        return
    done = threading.Event()
    show = _show_on_terminal if is_terminal else _log
    thread = threading.Thread(target=show, args=(line, done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _log(line: Callable[[], str], done: threading.Event) -> None:
    if not done.wait(DELAY):
        log.info("%s", line())


def _show_on_terminal(line: Callable[[], str], done: threading.Event) -> None:
    if done.wait(DELAY):
        return
    if importlib.util.find_spec("rich") is None:
        while not done.wait(INTERVAL):
            sys.stderr.write(f"\r\x1b[K{line()}")
            sys.stderr.flush()
        sys.stderr.write("\r\x1b[K")
        return
    from rich.console import Console  # noqa: PLC0415 (an optional dependency)
    from rich.markup import escape  # noqa: PLC0415

    with Console(stderr=True).status(escape(line())) as status:
        while not done.wait(INTERVAL):
            status.update(escape(line()))
