"""Stage texts, line by line, with the user's line of each."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from .model import Place, Text

_PLACE = re.compile(r'^File "(?P<file>.+?)", line (?P<line>\d+), in (?P<rest>.*)$', re.DOTALL)
_NODE = re.compile(r"^\s+(?P<name>\w+)(?:: .*?)? = ")
NOWHERE = -1


@dataclass(slots=True)
class Places:
    """The user lines of a graph, numbered in order of appearance; ``code`` is the text of each."""

    found: dict[Place, int] = field(default_factory=dict)
    code: dict[int, str] = field(default_factory=dict)

    def number(self, place: Place, code: str = "") -> int:
        """The number of a place."""
        number = self.found.setdefault(place, len(self.found))
        if code:
            self.code.setdefault(number, code)
        return number


def read_graph_text(title: str, text: str, places: Places) -> tuple[Text, dict[str, int]]:
    """A graph's text without its marks of lines, and the place of each node by name."""
    lines: list[str] = []
    numbers: list[int] = []
    nodes: dict[str, int] = {}
    current = NOWHERE
    for line in text.splitlines():
        mark = _mark(line)
        if mark is not None:
            code = mark["rest"].partition(": ")[2]
            current = places.number((mark["file"], int(mark["line"])), code)
            continue
        node = _NODE.match(line)
        if node:
            nodes[node["name"]] = current
        is_edge = not line.startswith(" ") or line.lstrip().startswith("return ")
        current = NOWHERE if not line.startswith(" ") else current
        lines.append(line)
        numbers.append(NOWHERE if is_edge else current)
    return Text(title, tuple(lines), tuple(numbers)), nodes


def _mark(line: str) -> re.Match[str] | None:
    """The user's line that a text names before its nodes, as a string."""
    text = line.strip()
    if not text.startswith(("'File ", '"File ')):
        return None
    with suppress(ValueError, SyntaxError):
        return _PLACE.match(ast.literal_eval(text))
    return None


def plain_text(title: str, text: str) -> Text:
    """A text without places."""
    lines = tuple(text.rstrip("\n").splitlines())
    return Text(title, lines, (NOWHERE,) * len(lines))


def without_header(source: str) -> str:
    """A kernel's source without the comment that repeats its loops."""
    lines = source.splitlines()
    while lines and lines[0].lstrip().startswith(("//", "#")) and "#include" not in lines[0]:
        lines.pop(0)
    return "\n".join(lines).strip("\n")


def numbers_of(names: Iterable[str], nodes: dict[str, int]) -> tuple[int, ...]:
    """The places of nodes, each once."""
    found = dict.fromkeys(nodes.get(name, NOWHERE) for name in names)
    return tuple(number for number in found if number != NOWHERE)
