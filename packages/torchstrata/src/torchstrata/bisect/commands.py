"""The commands ``bisect`` and ``replay``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from torchstrata.errors import UsageError

from .replaying import replay, shrink
from .searching import NothingFound, search_command


def add_commands(commands: Any) -> None:
    """Adds the parsers of both commands."""
    bisect = commands.add_parser("bisect", help="find what makes a compiled program wrong")
    bisect.add_argument(
        "-o", "--output", type=Path, default=Path("bisect"), help="directory for the repro"
    )
    bisect.add_argument("program", nargs=argparse.REMAINDER, help="-- python script.py ...")
    replaying = commands.add_parser("replay", help="run the stage of a repro alone")
    replaying.add_argument("repro", type=Path)
    replaying.add_argument("--stage", help="another stage that takes the same text")
    replaying.add_argument("--shrink", action="store_true", help="make the repro smaller first")


def run(chosen: argparse.Namespace) -> int:
    """Exits with 1 if something is wrong, 0 if nothing is, 2 for a wrong call."""
    try:
        if chosen.command == "replay":
            if chosen.shrink:
                print(shrink(chosen.repro))
            found = replay(chosen.repro, chosen.stage)
            print(f"differs: {found}" if found else "no difference")
            return int(bool(found))
        command = [*chosen.program]
        command = command[1:] if command[:1] == ["--"] else command
        if not command:
            raise UsageError("which program? python -m torchstrata bisect -- python script.py")
        print(search_command(command, chosen.output, lambda text: print(text, file=sys.stderr)))
    except NothingFound as nothing:
        print(nothing)
        return 0
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    return 1
