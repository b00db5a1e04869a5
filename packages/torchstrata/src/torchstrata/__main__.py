"""``python -m torchstrata``: ``doctor`` says what this machine can compile, ``explain DIR`` lists a
dump.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import sys
from pathlib import Path

import inductor_cpp
import loopir
import torch

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


def main(arguments: list[str] | None = None) -> int:
    """Exits with 1 where ``doctor`` finds a problem."""
    parser = argparse.ArgumentParser(prog="python -m torchstrata", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser(
        "doctor", help="compiler, instruction set, threads, GPUs, variables of the environment"
    )
    commands.add_parser("explain", help="list the stages of a dump").add_argument(
        "directory", type=Path
    )
    chosen = parser.parse_args(arguments)
    if chosen.command == "explain":
        print(explain(chosen.directory))
        return 0
    report = doctor()
    width = max(map(len, report))
    print("\n".join(f"{name:<{width}}  {text}" for name, text in report.items()))
    return int("problem" in report)


if __name__ == "__main__":
    sys.exit(main())
