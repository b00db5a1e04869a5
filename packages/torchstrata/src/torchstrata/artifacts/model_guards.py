"""The facts about a module among the guards of a program."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from bytecode_dynamo import GuardKind, GuardRecord
from symshapes.text.values import Unwritable, format_value

from .model_facts import Fact

ROOT = "L['self']"
"""What guards call the module."""


def model_facts(guards: Iterable[GuardRecord]) -> Iterator[Fact]:
    """The facts among the guards of a program."""
    for guard in guards:
        name = guard.source.name
        if not name.startswith(ROOT) or not _is_path(name.removeprefix(ROOT)):
            continue
        path = name.removeprefix(ROOT)
        match guard.kind:
            case GuardKind.EQUALS:
                try:
                    yield "value", path, format_value(guard.expected)
                except Unwritable:
                    continue
            case GuardKind.TYPE_IS if issubclass(guard.expected, torch.nn.Module):
                yield "value", f"{path}.__class__.__qualname__", repr(guard.expected.__qualname__)
            case GuardKind.LENGTH:
                yield "length", path, repr(guard.expected)
            case GuardKind.DICT_KEYS:
                yield "length", path, repr(len(guard.expected))


def _is_path(path: str) -> bool:
    """Whether a path has attributes and items with constant keys only."""
    try:
        node: Any = ast.parse(f"model{path}", mode="eval").body
    except SyntaxError:
        return False
    while not isinstance(node, ast.Name):
        match node:
            case ast.Attribute() | ast.Subscript(slice=ast.Constant()):
                node = node.value
            case _:
                return False
    return True
