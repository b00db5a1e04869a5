"""A Python function as text that runs alone, with what it reads from its module."""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from collections.abc import Callable
from typing import Any

import torch


class NotAlone(Exception):
    """The function reads something that text can't hold."""


def function_text(function: Callable[..., Any]) -> tuple[str, dict[str, torch.Tensor]]:
    """The text of a module whose last function is ``function``, and the tensors that it reads.
    Raises NotAlone.
    """
    lines: dict[str, None] = {}
    tensors: dict[str, torch.Tensor] = {}
    definitions: dict[str, str] = {}
    _add(function, lines, tensors, definitions)
    return "\n".join([*lines, "", *definitions.values()]), tensors


def _add(
    function: Any,
    lines: dict[str, None],
    tensors: dict[str, torch.Tensor],
    definitions: dict[str, str],
) -> None:
    if not isinstance(function, types.FunctionType):
        raise NotAlone(f"{function!r} is no Python function")
    names = inspect.getclosurevars(function)
    for name, value in {**names.globals, **names.nonlocals}.items():
        if value is function or name in definitions:
            continue
        if isinstance(value, torch.Tensor):
            tensors[name] = value
        elif isinstance(value, types.FunctionType) and value.__name__ == name:
            if value.__module__.partition(".")[0] == "torch":
                lines[f"from {value.__module__} import {name}"] = None
            else:
                _add(value, lines, tensors, definitions)
        else:
            lines[_line(name, value)] = None
    definitions[function.__name__] = _definition(function)


def _line(name: str, value: Any) -> str:
    if isinstance(value, types.ModuleType):
        return f"import {value.__name__} as {name}"
    if value is None or isinstance(value, (bool, int, float, str)):
        return f"{name} = {value!r}"
    if isinstance(value, (type, types.BuiltinFunctionType)) and value.__module__:
        return f"from {value.__module__} import {value.__name__} as {name}"
    raise NotAlone(f"{name} is a {type(value).__name__}")


def _definition(function: types.FunctionType) -> str:
    """The source of a function without decorators; a lambda becomes a function ``f``."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError) as error:
        raise NotAlone(f"{function.__name__} has no source: {error}") from error
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == function.__name__:
            node.decorator_list = []
            return ast.unparse(node)
    lambdas = [node for node in ast.walk(tree) if isinstance(node, ast.Lambda)]
    if len(lambdas) != 1:
        raise NotAlone(f"the source of {function.__name__} is not found")
    made = ast.parse("def f(): return None").body[0]
    assert isinstance(made, ast.FunctionDef)
    made.args, made.body = lambdas[0].args, [ast.Return(lambdas[0].body)]
    return ast.unparse(ast.fix_missing_locations(made))


def load_function(text: str, tensors: dict[str, torch.Tensor]) -> Callable[..., Any]:
    """The last function of a text."""
    scope: dict[str, Any] = {**tensors}
    exec(compile(text, "<repro>", "exec"), scope)
    tree = ast.parse(text)
    return scope[[node.name for node in tree.body if isinstance(node, ast.FunctionDef)][-1]]


def count_steps(text: str) -> int:
    """The operations, calls and branches of a text."""
    counted = (
        ast.BinOp, ast.UnaryOp, ast.Compare, ast.Call, ast.Subscript, ast.If, ast.IfExp, ast.For,
        ast.While, ast.With, ast.Try, ast.AugAssign,
    )  # fmt: skip
    return sum(isinstance(node, counted) for node in ast.walk(ast.parse(text)))


def smaller_texts(text: str) -> list[str]:
    """Texts with one statement less, or with an operation replaced by one of its operands."""
    found = []
    count = sum(1 for _ in ast.walk(ast.parse(text)))
    for position in range(count):
        for choice in range(4):
            tree = ast.parse(text)
            node = [*ast.walk(tree)][position]
            if not _simplify(node, choice):
                break
            found.append(ast.unparse(ast.fix_missing_locations(tree)))
    return [each for each in dict.fromkeys(found) if len(each) < len(text)]


def _simplify(node: ast.AST, choice: int) -> bool:
    """Makes one change below a node; whether there is a change of this number."""
    body = getattr(node, "body", None)
    if isinstance(body, list) and not isinstance(node, ast.Module):
        if choice >= len(body) or (len(body) == 1 and isinstance(body[0], ast.Pass)):
            return False
        body[choice : choice + 1] = [] if len(body) > 1 else [ast.Pass()]
        return True
    for name, value in ast.iter_fields(node):
        if isinstance(value, ast.expr):
            parts = [each for each in ast.iter_child_nodes(value) if isinstance(each, ast.expr)]
            if choice < len(parts):
                setattr(node, name, parts[choice])
                return True
    return False
