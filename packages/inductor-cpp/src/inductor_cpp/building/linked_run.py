"""Runs that are linked: what calls them, and their text for the cache."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from types import FunctionType
from typing import TYPE_CHECKING

from .build import DIVISION_BY_ZERO, Entry, launcher_code, reload_library

if TYPE_CHECKING:
    from loopir import ArtifactStore

ERROR_BITS = 8
MOST_ARGUMENTS = 256


def is_tabled(tensors: int, sizes: int) -> bool:
    """Whether a run takes its tensors' addresses as a table: ctypes passes 1024 arguments at
    most.
    """
    return tensors + sizes > MOST_ARGUMENTS


@dataclass(frozen=True, slots=True)
class LinkedRun:
    """What calls a run: its C function, the entries and names of its kernels, and the numbers of
    its arguments.
    """

    function: Entry
    entries: tuple[Entry, ...]
    names: tuple[str, ...]
    tensors: int
    sizes: int

    def launcher(self) -> Callable[..., None]:
        """The Python side of the run. Its attribute ``run`` is this object."""
        tabled = is_tabled(self.tensors, self.sizes)
        addresses = [ctypes.cast(e.function, ctypes.c_void_p).value for e in self.entries]
        table = (ctypes.c_void_p * len(addresses))(*addresses)
        function = self.function.function
        given = 1 if tabled else self.tensors
        function.argtypes = [ctypes.c_void_p] * (1 + given) + [ctypes.c_int64] * self.sizes
        function.restype = ctypes.c_int
        names = self.names

        def fail(error: int) -> None:
            if error & ((1 << ERROR_BITS) - 1) == DIVISION_BY_ZERO:
                raise RuntimeError("ZeroDivisionError")
            raise IndexError(f"{names[error >> ERROR_BITS]}: index out of range")

        scope = {"call": function, "fail": fail, "table": ctypes.addressof(table), "keep": table}
        if tabled:
            scope["addresses"] = ctypes.c_void_p * self.tensors
        code = launcher_code(self.tensors, self.sizes, "table", tabled=tabled)
        launch = FunctionType(
            code.replace(co_filename=f"<launcher of {' '.join(names[:3])}>"), scope
        )
        launch.run = self  # type: ignore[attr-defined]
        return launch


def describe_runs(launchers: Sequence[Callable[..., None]], target: Sequence[str]) -> str:
    """JSON from which ``reload_runs`` makes the launchers of runs again; ``target`` is what their
    libraries were built for.
    """
    runs: list[LinkedRun] = [launch.run for launch in launchers]  # type: ignore[attr-defined]
    return json.dumps({"target": [*target], "runs": [astuple(run) for run in runs]})


def reload_runs(
    text: str, store: ArtifactStore, target: Sequence[str]
) -> list[Callable[..., None]] | None:
    """The launchers of ``describe_runs``; None for another target or without their libraries."""
    stored = json.loads(text)
    if stored["target"] != [*target]:
        return None
    runs = [
        LinkedRun(Entry(*function), tuple(Entry(*e) for e in entries), tuple(names), *counts)
        for function, entries, names, *counts in stored["runs"]
    ]
    libraries = {entry.library for run in runs for entry in (run.function, *run.entries)}
    if not all([reload_library(library, store) for library in libraries]):
        return None
    return [run.launcher() for run in runs]
