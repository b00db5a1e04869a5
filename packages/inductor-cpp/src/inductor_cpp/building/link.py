"""Runs of launches as one C function each: one call from Python, whatever the number of kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from types import FunctionType

from loopir import ArtifactStore, KernelSource, Run, RunCall

from inductor_cpp.kernels.names import identifier
from inductor_cpp.kernels.printer import print_index

from .build import DIVISION_BY_ZERO, build_entries, launcher_code
from .toolchain import Toolchain

ERROR_BITS = 8
MOST_ARGUMENTS = 256


def run_text(name: str, run: Run) -> str:
    """The C function of a run: the kernels' entries, then the tensors' addresses, then the sizes;
    addresses in a table where they are many. It stops at the first kernel that reports an error and
    returns ``error + 256 * position``.
    """
    tensors = ["char* const* t"] if is_tabled(run) else [f"char* t{i}" for i in range(run.tensors)]
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
            f"    if ((error = {entry}({_arguments(call, is_tabled(run))}))) return error + "
            f"{position << ERROR_BITS};"
        )
    return "\n".join([*lines, "    return 0;", "}", ""])


def is_tabled(run: Run) -> bool:
    """Whether a run takes its tensors' addresses as a table: ctypes passes 1024 arguments at
    most.
    """
    return run.tensors + len(run.sizes) > MOST_ARGUMENTS


def _arguments(call: RunCall, tabled: bool) -> str:
    tensors = [f"t[{p.parameter}]" if tabled else f"t{p.parameter}" for p in call.places]
    places = [
        t if p.offset == 0 else f"{t} + {print_index(p.offset)}"
        for t, p in zip(tensors, call.places, strict=True)
    ]
    return ", ".join([*places, *(print_index(size) for size in call.sizes)])


def link_runs(
    sources: Sequence[KernelSource], runs: Sequence[Run], store: ArtifactStore, toolchain: Toolchain
) -> list[Callable[..., None]]:
    """One callable per run, taking its tensors and then its sizes. Raises BuildError; a call raises
    IndexError for an index out of range.
    """
    text = "\n".join(run_text(f"strata_run{number}", run) for number, run in enumerate(runs))
    entries, library = build_entries(sources, store, toolchain, text)
    return [
        _launcher(run, library[f"strata_run{number}"], sources, entries)  # type: ignore[index]
        for number, run in enumerate(runs)
    ]


def _launcher(
    run: Run, function: Callable[..., int], sources: Sequence[KernelSource], entries: Sequence
) -> Callable[..., None]:
    """The Python side of a run."""
    names = [sources[call.source].kernel.name for call in run.calls]
    addresses = [ctypes.cast(entries[call.source], ctypes.c_void_p).value for call in run.calls]
    table = (ctypes.c_void_p * len(addresses))(*addresses)
    given = 1 if is_tabled(run) else run.tensors
    function.argtypes = [ctypes.c_void_p] * (1 + given) + [ctypes.c_int64] * len(run.sizes)  # type: ignore[attr-defined]
    function.restype = ctypes.c_int  # type: ignore[attr-defined]

    def fail(error: int) -> None:
        if error & ((1 << ERROR_BITS) - 1) == DIVISION_BY_ZERO:
            raise RuntimeError("ZeroDivisionError")
        raise IndexError(f"{names[error >> ERROR_BITS]}: index out of range")

    scope = {"call": function, "fail": fail, "table": ctypes.addressof(table), "keep": table}
    if is_tabled(run):
        scope["addresses"] = ctypes.c_void_p * run.tensors
    code = launcher_code(run.tensors, len(run.sizes), "table", tabled=is_tabled(run))
    return FunctionType(code.replace(co_filename=f"<launcher of {' '.join(names[:3])}>"), scope)
