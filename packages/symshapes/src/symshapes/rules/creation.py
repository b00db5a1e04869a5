"""Factory functions, copies between devices, and constants."""

from __future__ import annotations

from typing import Any

import torch

from .registry import RuleTable

aten = torch.ops.aten
RULES = RuleTable()

_MAX_CONSTANT = 8  # elements of a constant whose value is remembered
_factories: dict[Any, bool] = {}


def is_factory(func: Any) -> bool:
    """Whether an op takes a ``device`` and makes a new tensor there."""
    answer = _factories.get(func)
    if answer is None:
        schema = getattr(func, "_schema", None)
        answer = schema is not None and func.namespace == "aten" and any(a.name == "device" for a in schema.arguments)
        _factories[func] = answer
    return answer


@RULES.register(aten.lift_fresh.default, aten.lift.default)
def lift(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """A real constant built from Python numbers becomes a fake that remembers its small value."""
    (t,) = args
    if getattr(t, "fake_mode", None) is not None:
        return t
    fake = mode.from_real(t)
    if t.numel() <= _MAX_CONSTANT and t.device.type == "cpu":
        fake.remember(t)
    return fake
