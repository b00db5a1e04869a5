"""What a guard requires of a value, in a few words for people."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .records import ABSENT, GuardKind, GuardRecord
from .step import describe
from .tensor_facts import TensorFacts


def phrase(record: GuardRecord) -> str:
    """What follows the expression of the value, such as ``is a float32 tensor of shape [8, _]``;
    ``_`` stands for a size that is a symbol.
    """
    return _PHRASES[record.kind](record.expected)


def _tensor(facts: TensorFacts) -> str:
    sizes = ", ".join("_" if size is None else str(size) for size in facts.sizes)
    dtype, kind = str(facts.dtype).removeprefix("torch."), "tensor"
    if facts.type.__name__ != "Tensor":
        kind = facts.type.__name__
    grad = ", requires grad" if facts.requires_grad else ""
    article = "an" if dtype.startswith("i") else "a"
    return f"is {article} {dtype} {kind} of shape [{sizes}] on {facts.device}{grad}"


def _class_attribute(expected: tuple[str, Any]) -> str:
    name, value = expected
    return f"has no {name}" if value is ABSENT else f"has this {name}"


_PHRASES: dict[GuardKind, Callable[[Any], str]] = {
    GuardKind.TYPE_IS: lambda expected: f"is of type {expected.__qualname__}",
    GuardKind.IDENTITY: lambda expected: f"is {describe(expected)}, the same object",
    GuardKind.EQUALS: lambda expected: f"equals {describe(expected)}",
    GuardKind.LENGTH: lambda expected: f"has length {expected}",
    GuardKind.DICT_KEYS: lambda expected: f"has the keys {describe([*expected])}",
    GuardKind.HAS_ATTR: lambda expected: f"has {expected} set",
    GuardKind.NO_ATTR: lambda expected: f"does not have {expected} set",
    GuardKind.TENSOR: _tensor,
    GuardKind.ALIASED: lambda expected: f"is {expected.shown}",
    GuardKind.NOT_ALIASED: lambda expected: f"is not {expected.shown}",
    GuardKind.FUNCTION_CODE: lambda expected: f"is the function {expected.name}",
    GuardKind.CLASS_ATTR: _class_attribute,
    GuardKind.GLOBAL_STATE: lambda expected: "grad mode, autocast and other settings are as before",
    GuardKind.FINITE: lambda expected: "is finite",
    GuardKind.CUSTOM: lambda expected: "gives the same answer as before",
}
