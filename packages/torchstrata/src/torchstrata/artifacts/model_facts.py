"""What a program read of its module besides tensors: plain attributes, lengths, classes."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from torchstrata.errors import UsageError

from .facts import TensorNeed, read_value

Fact = tuple[str, str, str]
"""``value`` or ``length``, the path from the module on, and the text of what it was."""


def check_model(
    model: torch.nn.Module, facts: Iterable[Fact], state: Mapping[str, TensorNeed]
) -> dict[str, torch.Tensor]:
    """The parameters and buffers of a program. Raises UsageError if the program is for another
    module.
    """
    found = {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }
    check_state(found, state)
    for kind, path, text in facts:
        value = _follow(model, path, text)
        value, expected = len(value) if kind == "length" else value, read_value(text)
        if repr(value) != repr(expected):
            what = f"len(model{path})" if kind == "length" else f"model{path}"
            raise UsageError(
                f"the file is for another model: {what} was {expected!r}, now {value!r}"
            )
    return {name: found[name] for name in state}


def check_state(given: Mapping[str, torch.Tensor], state: Mapping[str, TensorNeed]) -> None:
    """Raises UsageError for weights that are missing or other ones than the program was compiled
    for.
    """
    missing = [name for name in state if name not in given]
    if missing:
        more = f" and {len(missing) - 1} more" if missing[1:] else ""
        raise UsageError(f"missing weights: {missing[0]}{more}; the file is for another model")
    for name, need in state.items():
        problem = need.problem(name, given[name])
        if problem is not None:
            raise UsageError(f"the file is for another model: {problem}")


def _follow(model: Any, path: str, text: str) -> Any:
    try:
        return _step(ast.parse(f"model{path}", mode="eval").body, model)
    except (AttributeError, KeyError, IndexError, TypeError) as error:
        raise UsageError(
            f"the file is for another model: model{path} was {text}, now it is missing"
        ) from error


def _step(node: ast.expr, model: Any) -> Any:
    match node:
        case ast.Name(id="model"):
            return model
        case ast.Attribute(value=base, attr=name):
            return getattr(_step(base, model), name)
        case ast.Subscript(value=base, slice=ast.Constant(value=key)):
            return _step(base, model)[key]
    raise TypeError(f"not a path: {ast.unparse(node)}")
