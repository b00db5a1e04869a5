"""``python -m torchstrata``: ``doctor`` says what this machine can compile, ``backends`` which code
generators and graph backends there are, ``explain DIR`` lists a dump.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import platform
import sys
from pathlib import Path

import inductor_cpp
import loopir
import torch

from .api import list_backends, list_code_generators

_PREVIEW_LINES = 12
_VARIABLES = (
    "STRATA_CACHE_DIR",
    "STRATA_CPU_ISA",
    "STRATA_CXX",
    "STRATA_DUMP",
    "STRATA_LOG",
    "STRATA_VERIFY",
)


def explain(directory: Path) -> str:
    """The stages of a dump made with STRATA_DUMP, each with its size and first lines."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    if not files:
        raise SystemExit(
            f"{directory}: no dump here; run a program with STRATA_DUMP={directory} first"
        )
    sections = []
    for path in files:
        lines = path.read_text().splitlines()
        preview = "\n".join(f"    {line}" for line in lines[:_PREVIEW_LINES])
        sections.append(f"{path.relative_to(directory)}  ({len(lines)} lines)\n{preview}")
    return "\n\n".join(sections)


def doctor() -> dict[str, str]:
    """What a compilation here would use; ``problem`` and ``unknown`` only if something is wrong."""
    store = loopir.ArtifactStore()
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    report = {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        **inductor_cpp.doctor(),
        "gpus": ", ".join(gpus) or "none",
        "triton": "installed"
        if importlib.util.find_spec("triton")
        else "missing; needed for GPUs only",
        "cache": str(store.root),
    }
    try:
        store.check()
    except loopir.StoreError as error:
        report["problem"] = "; ".join(filter(None, (report.get("problem"), str(error))))
    unknown = sorted(
        name for name in os.environ if name.startswith("STRATA_") and name not in _VARIABLES
    )
    if unknown:
        report["unknown"] = (
            f"{', '.join(unknown)}: nothing reads this; known are {', '.join(_VARIABLES)}"
        )
    return report


def backends(check: bool) -> list[str]:
    """A line for each code generator and graph backend: name, device, origin, state. With
    ``check``, the state of a generator is what the conformance kit says of it.
    """
    rows = []
    for found in list_code_generators():
        state = f"can't be loaded: {found.problem}" if found.problem else ""
        rows.append((found.name, found.device or "?", found.origin, state or _kit(found, check)))
    rows += [(name, "graphs", "", "") for name in list_backends()]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    return [
        "  ".join([*(f"{text:<{width}}" for text, width in zip(row, widths)), row[3]]).rstrip()
        for row in rows
    ]


def _kit(found: loopir.FoundGenerator, check: bool) -> str:
    if not check or found.factory is None:
        return ""
    try:
        kit = importlib.import_module("loopir.testing.conformance")  # needs the extra "testing"
        return f"conforms: {kit.check_code_generator(found.factory())} launches"
    except loopir.BuildError as error:
        return f"can't build here: {str(error).strip().splitlines()[0]}"
    except Exception as error:
        return f"does not conform: {str(error).strip().splitlines()[0]}"


def main(arguments: list[str] | None = None) -> int:
    """Exits with 1 where ``doctor`` finds a problem."""
    parser = argparse.ArgumentParser(prog="python -m torchstrata", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser(
        "doctor", help="compiler, instruction set, threads, GPUs, variables of the environment"
    )
    commands.add_parser(
        "backends", help="code generators and graph backends, and where they come from"
    ).add_argument("--check", action="store_true", help="run the conformance kit of generators")
    commands.add_parser("explain", help="list the stages of a dump").add_argument(
        "directory", type=Path
    )
    chosen = parser.parse_args(arguments)
    if chosen.command == "explain":
        print(explain(chosen.directory))
        return 0
    if chosen.command == "backends":
        print("\n".join(backends(chosen.check)))
        return 0
    report = doctor()
    width = max(map(len, report))
    print("\n".join(f"{name:<{width}}  {text}" for name, text in report.items()))
    return int("problem" in report)


if __name__ == "__main__":
    sys.exit(main())
