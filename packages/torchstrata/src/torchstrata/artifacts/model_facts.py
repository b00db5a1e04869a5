"""What a program read of its module besides tensors: plain attributes, lengths, classes."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchstrata.errors import UsageError

from .facts import TensorNeed, read_value

_MODE = ".training"
Fact = tuple[str, str, str]
"""``value`` or ``length``, the path from the module on, and the text of what it was."""


@dataclass(frozen=True, slots=True)
class Modes:
    """What programs read of ``module.training``, which may change between calls."""

    expected: Sequence[tuple[str, torch.nn.Module, bool]] = ()

    def problem(self) -> str | None:
        """A module in another mode, as one line, or None."""
        for path, module, training in self.expected:
            if module.training is not training:
                return f"model{path}{_MODE} was {training}, now {module.training}"
        return None


def check_facts(model: torch.nn.Module, facts: Sequence[Fact]) -> tuple[Modes, str | None]:
    """The modes of modules that a program read, and why it is not for this module, as one line, or
    None.
    """
    paths = ast.parse(f"[{', '.join(f'model{path}' for _, path, _ in facts)}]", mode="eval").body
    values = read_value(f"[{', '.join(text for _, _, text in facts)}]")
    assert isinstance(paths, ast.List)
    modes = []
    for (kind, path, text), node, expected in zip(facts, paths.elts, values, strict=True):
        try:
            if path.endswith(_MODE) and isinstance(node, ast.Attribute):
                modes.append((path.removesuffix(_MODE), _step(node.value, model), expected))
                continue
            value = _step(node, model)
            value = len(value) if kind == "length" else value
        except (AttributeError, KeyError, IndexError, TypeError):
            return Modes(), f"model{path} was {text}, now it is missing"
        if repr(value) != repr(expected):
            what = f"len(model{path})" if kind == "length" else f"model{path}"
            return Modes(), f"{what} was {expected!r}, now {value!r}"
    return Modes(modes), None


def named_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The parameters and buffers of a module, shared ones under all their names."""
    parameters = model.named_parameters(remove_duplicate=False)
    return dict([*parameters, *model.named_buffers(remove_duplicate=False)])


def check_state(
    given: Mapping[str, torch.Tensor],
    state: Mapping[str, TensorNeed],
    shared: Iterable[tuple[str, str]],
) -> None:
    """Raises UsageError for weights that are missing or other ones than the program was compiled
    for, and where two were one tensor (``shared``) that differ now, or may differ after training.
    """
    missing = [name for name in state if name not in given]
    if missing:
        more = f" and {len(missing) - 1} more" if missing[1:] else ""
        raise UsageError(f"missing weights: {missing[0]}{more}; the file is for another model")
    for name, need in state.items():
        problem = need.problem(name, given[name])
        if problem is not None:
            raise UsageError(f"the file is for another model: {problem}")
    for name, known in shared:
        one, other = given.get(name), given[known]
        is_trained = state[known].requires_grad
        if one is not None and one is not other and (is_trained or not torch.equal(one, other)):
            raise UsageError(
                f"the file is for another model: {name} and {known} were one tensor, now they are "
                f"two"
            )


def _step(node: ast.expr, model: Any) -> Any:
    match node:
        case ast.Name(id="model"):
            return model
        case ast.Attribute(value=base, attr=name):
            return getattr(_step(base, model), name)
        case ast.Subscript(value=base, slice=ast.Constant(value=key)):
            return _step(base, model)[key]
    raise TypeError(f"not a path: {ast.unparse(node)}")
