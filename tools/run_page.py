"""Runs the code blocks of a Markdown page one after the other, as a reader would.

- ``python`` blocks share their names. One with a title, ``title="train.py"``, becomes that file
  instead. The ``text`` block right after one is what it prints.
- ``console`` blocks have commands after ``$``, each followed by what it prints on both streams, or
  by nothing, where it isn't compared.
- ``...`` in what is printed stands for any text, and a line of its own for any lines.
- An HTML comment right before a block may say ``not run: REASON``, or ``read by FUNCTION`` for the
  text of a form that this parser reads.
- The comment ``written by tools/NAME.py`` below the title of a page leaves its blocks to that tool,
  whose ``--check`` compares them.

usage: python tools/run_page.py PAGE [FOLDER]      FOLDER: where files are written
       python tools/run_page.py --list             the blocks of all pages, and those not run
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>.*?) -->\n+)?^```(?P<info>.*)\n(?P<text>(?s:.*?))^```$", re.MULTILINE
)
TITLE = re.compile(r'title="([^"]*)"')
WRITTEN = re.compile(r"^<!-- written by (tools/\w+\.py) -->$", re.MULTILINE)
NOT_RUN, READ_BY = "not run: ", "read by "
RUN, FIGURES = ("python", "console"), ("mermaid",)


@dataclass(frozen=True)
class Block:
    """A fenced block; ``printed`` is the text of the block after it that says what it prints."""

    language: str
    title: str | None
    text: str
    line: int
    mark: str
    printed: str | None = None

    @property
    def reason(self) -> str | None:
        """Why it isn't run, if it isn't."""
        return self.mark.removeprefix(NOT_RUN) if self.mark.startswith(NOT_RUN) else None


class PageError(Exception):
    """A page is written in a way that nothing can check."""


def pages() -> list[Path]:
    """The README and every page of the site, without the pages of errors: their programs fail on
    purpose, and tests of the packages run them.
    """
    found = (path for path in (ROOT / "docs").rglob("*.md") if "errors" not in path.parts)
    return [ROOT / "README.md", *sorted(found)]


def writer(page: Path) -> str | None:
    """The tool that writes the page, if there is one."""
    found = WRITTEN.search(page.read_text())
    return found and found[1]


def read_blocks(page: Path) -> list[Block]:
    """The blocks of a page in order. Raises PageError for one that would never be checked."""
    text = page.read_text()
    blocks: list[Block] = []
    end = 0
    for found in BLOCK.finditer(text):
        between, end, start = text[end : found.start()], found.end(), found.start("info")
        _check_between(page, between)
        language, _, rest = found["info"].partition(" ")
        title = TITLE.search(rest)
        block = Block(
            language, title and title[1], found["text"], text.count("\n", 0, start) + 1,
            found["mark"] or "",
        )  # fmt: skip
        follows = blocks and not between.strip() and blocks[-1].language == "python"
        if language == "text" and not block.mark and follows and blocks[-1].printed is None:
            last = blocks[-1]
            blocks[-1] = Block("python", last.title, last.text, last.line, last.mark, found["text"])
        elif block.title or language in RUN + FIGURES or block.mark.startswith((NOT_RUN, READ_BY)):
            blocks.append(block)
        else:
            raise PageError(f"{page}:{block.line}: a block of {language or 'no language'}")
    _check_between(page, text[end:])
    return blocks


def _check_between(page: Path, text: str) -> None:
    """Blocks that are indented, with or without a fence, would be overlooked."""
    if found := re.search(r"^ +```|(?<=\n\n) {4}(?! *[-*\d|!]).*", text, re.MULTILINE):
        raise PageError(f"{page}: an indented block: {found[0]}")


def run_page(page: Path, folder: Path) -> None:
    """Runs the blocks in ``folder``. Raises AssertionError where one prints something else."""
    blocks = read_blocks(page)
    if not blocks:
        raise PageError(f"{page} has no blocks")
    names = {"__name__": "example"}
    with contextlib.chdir(folder):
        for number, block in enumerate(blocks):
            if block.reason is not None or block.language in FIGURES:
                continue
            if block.mark.startswith(READ_BY):
                module, _, name = block.mark.removeprefix(READ_BY).rpartition(".")
                getattr(importlib.import_module(module), name)(block.text)
            elif block.title is not None:
                Path(block.title).write_text(block.text)
            elif block.language == "python":
                _run_python(page, block, folder / f"example{number}.py", names)
            else:
                _run_commands(page, block)


def _run_python(page: Path, block: Block, path: Path, names: dict[str, object]) -> None:
    """The block becomes a file, so that tracebacks and captured code have a source."""
    path.write_text(block.text)
    shown = io.StringIO()
    with contextlib.nullcontext() if block.printed is None else contextlib.redirect_stdout(shown):
        exec(compile(block.text, str(path), "exec"), names)
    if block.printed is not None:
        _compare(page, block, shown.getvalue(), block.printed)


def _run_commands(page: Path, block: Block) -> None:
    programs = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    for command, expected in _commands(block.text):
        done = subprocess.run(
            ["bash", "-c", command], env=os.environ | {"PATH": programs, "COLUMNS": "120"},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        if done.returncode:
            raise AssertionError(f"{page}:{block.line}: {command} failed:\n{done.stdout}")
        if expected.strip():
            _compare(page, block, done.stdout, expected)


def _commands(text: str) -> Iterator[tuple[str, str]]:
    """Each command with what it prints."""
    first, *rest = re.split(r"^\$ ", text, flags=re.MULTILINE)
    if first.strip() or not rest:
        raise PageError(f"a console block that doesn't begin with a command: {text}")
    for part in rest:
        command, _, printed = part.partition("\n")
        yield command, printed


def _compare(page: Path, block: Block, shown: str, expected: str) -> None:
    if not prints(shown, expected):
        raise AssertionError(f"{page}:{block.line} says\n{expected}\nbut prints\n{shown}")


def prints(shown: str, expected: str) -> bool:
    """Whether the text printed is the expected one."""
    lines = [
        r"(?:.*\n)*" if line == "..." else ".*".join(map(re.escape, line.split("..."))) + r"\n"
        for line in _tidy(expected)
    ]
    return re.fullmatch("".join(lines), "".join(f"{line}\n" for line in _tidy(shown))) is not None


def _tidy(text: str) -> list[str]:
    """The lines without blanks at their ends."""
    return [line.rstrip() for line in text.strip().splitlines()]


def list_pages() -> str:
    """A line for each page with blocks, and one for each block that isn't run."""
    lines = []
    for page in pages():
        name = page.relative_to(ROOT)
        if tool := writer(page):
            lines.append(f"{name}: compared by {tool}")
        elif blocks := [block for block in read_blocks(page) if block.language not in FIGURES]:
            left = [block for block in blocks if block.reason is not None]
            lines.append(f"{name}: {len(blocks) - len(left)} run, {len(left)} not")
            lines += [f"    {block.text.splitlines()[0]}: {block.reason}" for block in left]
    return "\n".join([*lines, ""])


def main(arguments: list[str]) -> None:
    if arguments == ["--list"]:
        print(list_pages(), end="")
        return
    page = Path(arguments[0]).resolve()
    with tempfile.TemporaryDirectory() as temporary:
        run_page(page, Path(arguments[1] if len(arguments) > 1 else temporary))


if __name__ == "__main__":
    main(sys.argv[1:])
