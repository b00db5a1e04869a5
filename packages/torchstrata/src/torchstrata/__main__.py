"""``python -m torchstrata``: ``doctor`` says what this machine can compile, ``explain DIR`` lists a dump."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import inductor_cpp

_PREVIEW_LINES = 12


def explain(directory: Path) -> str:
    """The stages of a dump made with STRATA_DUMP, each with its size and first lines."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    if not files:
        raise SystemExit(f"{directory}: no dump here; run a program with STRATA_DUMP={directory} first")
    sections = []
    for path in files:
        lines = path.read_text().splitlines()
        preview = "\n".join(f"    {line}" for line in lines[:_PREVIEW_LINES])
        sections.append(f"{path.relative_to(directory)}  ({len(lines)} lines)\n{preview}")
    return "\n\n".join(sections)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m torchstrata", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("doctor", help="compiler, instruction set, threads")
    commands.add_parser("explain", help="list the stages of a dump").add_argument("directory", type=Path)
    chosen = parser.parse_args(arguments)
    print(inductor_cpp.doctor() if chosen.command == "doctor" else explain(chosen.directory))
    return 0


if __name__ == "__main__":
    sys.exit(main())
