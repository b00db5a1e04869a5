"""A trace on disk: JSON lines of events, and texts beside them. Nothing is pickled."""

from __future__ import annotations

import json
import linecache
import os
import platform
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from itertools import count
from pathlib import Path
from typing import Any

import torch
from loopir import optional_files

from torchstrata.errors import TraceWarning

WHAT = "the trace (STRATA_TRACE, or torchstrata.trace)"
EVENTS = "events.jsonl"
FORMAT = 1
"""The version of the events."""
LARGEST_SOURCE = 2 << 20
"""Bytes up to which a source file of the program is kept."""

_serial = count()


class Session:
    """Writes events and texts into a new directory below ``root``.

    A directory that can't be used gives one warning, and nothing is written. A forked process
    writes into a directory of its own. ``compiled``: the graph that was compiled first for a key of
    the graph cache.
    """

    def __init__(self, root: Path, profiles: bool) -> None:
        self.root = root
        self.profiles = profiles
        self.directory: Path | None = None
        self.is_open = True
        self._lock = threading.RLock()
        self._thread = threading.local()
        self._begin()

    def _begin(self) -> None:
        self.pid, self._file, self._sources = os.getpid(), None, dict[str, str]()
        self.compiled = dict[str, int]()
        self._began, self._numbers = time.perf_counter(), {"frame": count(), "graph": count()}
        directory = self.root / f"{self.pid}-{next(_serial):03d}"
        self.directory = None
        with optional_files(WHAT):
            directory.mkdir(parents=True, exist_ok=True)
            file = open(directory / EVENTS, "w", encoding="utf-8")  # noqa: SIM115
            self.directory, self._file = directory, file
        self.emit("session", format=FORMAT, profiles=self.profiles, **_about())

    # -- writing -----------------------------------------------------------------------------------

    def now(self) -> float:
        """Seconds since the trace began."""
        return time.perf_counter() - self._began

    def number(self, kind: str) -> int:
        """The next number of a frame or a graph."""
        return next(self._numbers[kind])

    def emit(self, event: str, **facts: Any) -> None:
        """Writes one event."""
        line = json.dumps({"event": event, **facts}, default=str)
        with self._lock, optional_files(WHAT):
            file = self._own_file()
            if file is not None:
                file.write(line + "\n")
                file.flush()

    def write(self, name: str, text: str) -> None:
        """Writes a text beside the events."""
        with self._lock, optional_files(WHAT):
            if self._own_file() is not None and self.directory is not None:
                path = self.directory / name
                path.parent.mkdir(exist_ok=True)
                path.write_text(text, encoding="utf-8")

    def _own_file(self) -> TextIOWrapper | None:
        if os.getpid() != self.pid:  # forked: the parent goes on with its file
            self._lock = threading.RLock()
            self._begin()
        return self._file

    def keep_source(self, filename: str) -> None:
        """Keeps a source file of the program, once."""
        if filename in self._sources:
            return
        name = f"sources/{len(self._sources):03d}.py"
        self._sources[filename] = name
        text = "".join(linecache.getlines(filename))
        if text and len(text) <= LARGEST_SOURCE:
            self.write(name, text)
            self.emit("source", file=filename, text=name)

    # -- the frame that a thread captures ----------------------------------------------------------

    @property
    def frames(self) -> list[int]:
        """The frames that this thread captures now, innermost last."""
        if not hasattr(self._thread, "frames"):
            self._thread.frames = []
        return self._thread.frames

    @property
    def frame(self) -> int | None:
        """The innermost of them."""
        return self.frames[-1] if self.frames else None

    def close(self, **facts: Any) -> None:
        """Writes the last event."""
        if self.is_open and os.getpid() == self.pid:
            self.emit("end", at=self.now(), **facts)
            self.is_open = False
            if self._file is not None:
                self._file.close()
                self._file = None


@contextmanager
def harmless(what: str) -> Iterator[None]:
    """Turns an error of the trace into one warning: tracing never changes what a program does."""
    try:
        yield
    except Exception as error:
        warnings.warn(
            f"the trace lacks {what}: {type(error).__name__}: {error}", TraceWarning, stacklevel=3
        )


def _about() -> dict[str, Any]:
    return {
        "time": time.time(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
        "machine": _machine(),
    }


def _machine() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    with optional_files(WHAT):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next((x.partition(":")[2].strip() for x in lines if "model name" in x), "CPU")
    return "CPU"
