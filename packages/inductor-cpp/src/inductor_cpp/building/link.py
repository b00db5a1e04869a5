"""Runs of launches as one C function each: one call from Python, whatever the number of kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from inductor_cpp.kernels.names import identifier
from inductor_cpp.kernels.printer import print_index

from .build import Entry, build_entries
from .linked_run import ERROR_BITS, LinkedRun, is_tabled

if TYPE_CHECKING:
    from loopir import ArtifactStore, KernelSource, Run, RunCall

    from .toolchain import Toolchain


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
        LinkedRun(
            Entry(library, f"strata_run{number}"),
            tuple(entries[call.source] for call in run.calls),
            tuple(sources[call.source].kernel.name for call in run.calls),
            run.tensors,
            len(run.sizes),
        ).launcher()
        for number, run in enumerate(runs)
    ]
