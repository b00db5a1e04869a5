"""The text of a lock file: TOML with a table for each graph, and one for each of its programs."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from .errors import UsageError

FORMAT = 1
HEADER = """\
# Choices that torchstrata measured or judged, which options={"lock": "..."} repeats. A list has the
# names where the answer is yes; a table the answer by name. Delete a table to have it made anew.
"""
FIELDS = ("function", "graph", "target", "settings")
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def format_lock(graphs: Mapping[str, Mapping[str, Any]]) -> str:
    """The text of the choices by graph: its FIELDS, and under "programs" the rules of each."""
    return "\n".join([f"{HEADER}format = {FORMAT}", *_graphs(graphs)]) + "\n"


def _graphs(graphs: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for key in sorted(graphs, key=lambda key: (graphs[key]["function"], key)):
        graph = graphs[key]
        yield f"\n[graphs.{_key(key)}]"
        yield from (f"{name} = {_value(graph[name])}" for name in FIELDS)
        for name, rules in sorted(graph["programs"].items()):
            yield from _program(f"graphs.{_key(key)}.programs.{_key(name)}", rules)


def _program(place: str, rules: Mapping[str, Any]) -> Iterator[str]:
    yield f"\n[{place}]"
    for rule, answers in sorted(rules.items()):
        if isinstance(answers, list):
            yield f"{_key(rule)} = {_list(answers)}"
    for rule, answers in sorted(rules.items()):
        if isinstance(answers, dict):
            yield f"\n[{place}.{_key(rule)}]"
            yield from (f"{_key(name)} = {_value(answers[name])}" for name in answers)


def _list(values: list[str]) -> str:
    if not values:
        return "[]"
    return "[\n" + "".join(f"    {_value(value)},\n" for value in values) + "]"


def _key(text: str) -> str:
    return text if _BARE.fullmatch(text) else _value(text)


def _value(text: str) -> str:
    """A TOML string: JSON's, but for the one control character that JSON leaves as it is."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def read_lock(text: str, name: str) -> dict[str, dict[str, Any]]:
    """The choices in the text of a lock file. Raises UsageError with its ``name``."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"the lock file {name} is no TOML: {error}") from None
    if data.get("format") != FORMAT:
        raise UsageError(
            f"the lock file {name} has format {data.get('format')!r}; this version reads {FORMAT}"
        )
    graphs = data.get("graphs", {})
    wrong = next(filter(None, map(_defect, [("graphs", graphs), *_items(graphs)])), None)
    if wrong is not None:
        raise UsageError(f"the lock file {name} is damaged: {wrong}")
    return graphs


def _items(graphs: object) -> Iterator[tuple[str, object]]:
    yield from graphs.items() if isinstance(graphs, dict) else ()


def _defect(item: tuple[str, object]) -> str | None:
    """What is wrong with the table of a graph; None if nothing is."""
    name, graph = item
    if not isinstance(graph, dict):
        return f"{name} is no table"
    if name == "graphs":
        return None
    missing = [field for field in FIELDS if not isinstance(graph.get(field), str)]
    if missing:
        return f"graph {name} has no text for {', '.join(missing)}"
    programs = graph.setdefault("programs", {})
    tables = programs.values() if isinstance(programs, dict) else [None]
    for rules in tables:
        if not isinstance(rules, dict) or not all(map(_is_rule, rules.values())):
            return f"a program of graph {name} has no rules"
    return None


def _is_rule(answers: object) -> bool:
    values = [*answers.values()] if isinstance(answers, dict) else answers
    return isinstance(values, list) and all(isinstance(value, str) for value in values)
