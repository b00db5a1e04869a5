"""The pages of all error ids, which ``python -m torchstrata help ID`` shows and the site has."""

from __future__ import annotations

import argparse
from pathlib import Path

from symshapes.suggestion import did_you_mean

from torchstrata.errors import UsageError

_DIRECTORY = Path(__file__).parent
_COMMAND = "help"


def list_ids() -> list[str]:
    """The ids that have a page: BD (capture), AG (autograd), LI (loop IR and code generators)."""
    return sorted(page.stem for page in _DIRECTORY.glob("??[0-9][0-9][0-9].md"))


def read_page(id: str) -> str:
    """The page of an id, in Markdown; its first line is ``# ID: title``. Raises UsageError."""
    known = list_ids()
    if id.upper() not in known:
        raise UsageError(
            f"no error is called {id!r}; {did_you_mean(id, known)}the ids are {', '.join(known)}"
        )
    return (_DIRECTORY / f"{id.upper()}.md").read_text(encoding="utf-8")


def add_command(commands: argparse._SubParsersAction) -> None:
    """Adds ``help``, which sets ``run``."""
    parser = commands.add_parser(_COMMAND, help="what an error id means, and what to do")
    parser.add_argument("id", nargs="?", metavar="ID", help="such as BD003; without it, all ids")
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    """Prints a page, or the titles of all; 1 with a message for an unknown id."""
    if chosen.id is None:
        titles = [read_page(id).partition("\n")[0].removeprefix("# ") for id in list_ids()]
        print("\n".join(titles))
        return 0
    try:
        print(read_page(chosen.id).rstrip())
    except UsageError as error:
        print(error)
        return 1
    return 0
