"""Runs of launches as one C function each: one call from Python, whatever the number of kernels."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from types import FunctionType

from loopir import ArtifactStore, KernelSource, Run, RunCall

from inductor_cpp.kernels.names import identifier
from inductor_cpp.kernels.printer import print_index

from .build import DIVISION_BY_ZERO, Entry, build_entries, launcher_code, reload_library
from .toolchain import Toolchain

ERROR_BITS = 8
MOST_ARGUMENTS = 256


def run_text(name: str, run: Run) -> str:
    """The C function of a run: the kernels' entries, then the tensors' addresses, then the sizes;
    addresses in a table where they are many. It stops at the first kernel that reports an error and
    returns ``error + 256 * position``.
    """
    tabled = is_tabled(run.tensors, len(run.sizes))
    tensors = ["char* const* t"] if tabled else [f"char* t{i}" for i in range(run.tensors)]
    parameters = [
        "void* const* kernels",
        *tensors,
        *(f"i64 {identifier(size.name)}" for size in run.sizes),
    ]
    lines = [f'extern "C" int {name}({", ".join(parameters)}) {{', "    int error;"]
    for position, call in enumerate(run.calls):
        types = ", ".join(["void*"] * len(call.places) + ["i64"] * len(call.sizes))
        entry = f"((int (*)({types}))kernels[{position}])"
        lines.append(
            f"    if ((error = {entry}({_arguments(call, tabled)}))) return error + "
            f"{position << ERROR_BITS};"
        )
    return "\n".join([*lines, "    return 0;", "}", ""])


def is_tabled(tensors: int, sizes: int) -> bool:
    """Whether a run takes its tensors' addresses as a table: ctypes passes 1024 arguments at
    most.
    """
    return tensors + sizes > MOST_ARGUMENTS


def _arguments(call: RunCall, tabled: bool) -> str:
    tensors = [f"t[{p.parameter}]" if tabled else f"t{p.parameter}" for p in call.places]
    places = [
        t if p.offset == 0 else f"{t} + {print_index(p.offset)}"
        for t, p in zip(tensors, call.places, strict=True)
    ]
    return ", ".join([*places, *(print_index(size) for size in call.sizes)])


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


def link_runs(
    sources: Sequence[KernelSource], runs: Sequence[Run], store: ArtifactStore, toolchain: Toolchain
) -> list[Callable[..., None]]:
    """One callable per run, taking its tensors and then its sizes. Raises BuildError; a call raises
    IndexError for an index out of range.
    """
    text = "\n".join(run_text(f"strata_run{number}", run) for number, run in enumerate(runs))
    entries, library = build_entries(sources, store, toolchain, text)
    return [
        LinkedRun(
            Entry(library, f"strata_run{number}"),
            tuple(entries[call.source] for call in run.calls),
            tuple(sources[call.source].kernel.name for call in run.calls),
            run.tensors,
            len(run.sizes),
        ).launcher()
        for number, run in enumerate(runs)
    ]


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
