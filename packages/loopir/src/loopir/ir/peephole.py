"""Exact identities applied while recording: an operation whose result is already known is not
recorded.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from .kernel import Instruction, Value

Definitions = Mapping[str, Instruction]

# Lossless conversions, so that converting back is the identity.
_WIDER: dict[torch.dtype, frozenset[torch.dtype]] = {
    torch.bfloat16: frozenset({torch.float32, torch.float64}),
    torch.float16: frozenset({torch.float32, torch.float64}),
    torch.float32: frozenset({torch.float64}),
    torch.int8: frozenset({torch.int16, torch.int32, torch.int64, torch.float32, torch.float64}),
    torch.uint8: frozenset({torch.int16, torch.int32, torch.int64, torch.float32, torch.float64}),
    torch.int16: frozenset({torch.int32, torch.int64, torch.float32, torch.float64}),
    torch.int32: frozenset({torch.int64, torch.float64}),
}


def known_result(op: str, operands: tuple[Value, ...], definitions: Definitions) -> Value | None:
    """The operand (or operand's operand) that bitwise equals the result of ``op``, or None."""
    steps = [definitions.get(value.name) for value in operands]
    if op == "where":
        return _known_where(operands, steps)
    if op == "not":
        return _argument_of(steps[0], "not")
    if len(operands) != 2:
        return None
    left, right = (_number(step) for step in steps)
    if op in ("mul", "div") and right == 1 and not isinstance(right, bool):
        return operands[0]
    if op == "mul" and left == 1 and not isinstance(left, bool):
        return operands[1]
    if op in ("and", "or"):
        neutral = op == "and"
        for number, other in ((left, operands[1]), (right, operands[0])):
            if number is neutral:
                return other
    return None


def known_cast(value: Value, dtype: torch.dtype, definitions: Definitions) -> Value | None:
    """The value before a conversion to a wider dtype, if this cast converts it back; else None."""
    source = _argument_of(definitions.get(value.name), "cast")
    if source is None:
        return None
    before = definitions.get(source.name)
    wide = definitions[value.name].dtype
    if before is not None and before.dtype == dtype and wide in _WIDER.get(dtype, ()):
        return source
    return None


def _known_where(operands: tuple[Value, ...], steps: list[Instruction | None]) -> Value | None:
    if operands[1] == operands[2]:
        return operands[1]
    if _number(steps[1]) is True and _number(steps[2]) is False:
        return operands[0]
    return None


def _number(step: Instruction | None) -> object:
    return step.args[0] if step is not None and step.op == "constant" else None


def _argument_of(step: Instruction | None, op: str) -> Value | None:
    argument = step.args[0] if step is not None and step.op == op else None
    return argument if isinstance(argument, Value) else None
