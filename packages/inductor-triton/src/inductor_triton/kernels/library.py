"""The device functions as text: which of them a kernel needs, and their source in order of
definition.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib.resources import files

from .primitives import PRIMITIVES, primitive_text

DECORATOR = "@triton.jit"
FLOAT8 = 89
"""The compute capability with instructions that convert float8."""
IDENTIFIER, DOCSTRING = re.compile(r"(?<![.\w])[A-Za-z_]\w*"), re.compile(r'"""[^"]*"""')


@cache
def _functions() -> dict[str, str]:
    found = {name: f"{DECORATOR}\n{primitive_text(name)}" for name in PRIMITIVES}
    return found | _written("device_functions.py")


@cache
def _written(file: str) -> dict[str, str]:
    """The functions in a file of this folder, each as a device function."""
    source = files("inductor_triton.kernels").joinpath(file).read_text()
    lines = source.splitlines()
    return {
        node.name: f"{DECORATOR}\n" + "\n".join(lines[node.lineno - 1 : node.end_lineno]) + "\n"
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef)
    }


def for_capability(text: str, capability: int) -> str:
    """The source ``text`` with the device functions that a compute capability has instructions
    for; the results are the same.
    """
    if capability < FLOAT8:
        return text
    for name, native in _written("float8.py").items():
        text = text.replace(_functions()[name], native)
    return text


@cache
def function_names() -> frozenset[str]:
    """The names of all device functions."""
    return frozenset(_functions())


def _called(text: str) -> set[str]:
    return {*IDENTIFIER.findall(DOCSTRING.sub("", text))} & function_names()


@cache
def _needed(name: str) -> frozenset[str]:
    direct = _called(_functions()[name]) - {name}
    return frozenset(direct.union(*(_needed(other) for other in direct)))


def needed_functions(text: str) -> list[str]:
    """The source of each device function that ``text`` calls, directly or not, callees first."""
    direct = _called(text)
    names = direct.union(*(_needed(name) for name in direct))
    return [source for name, source in _functions().items() if name in names]
