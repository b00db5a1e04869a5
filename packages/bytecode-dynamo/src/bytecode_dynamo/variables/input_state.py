"""What fake tensors lack: the state of inputs, and attributes of classes that a program patched."""

from __future__ import annotations

from typing import Any

import torch

from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.guards.records import Answer, GuardKind
from bytecode_dynamo.guards.source import AttrSource
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.protocol import new_value
from bytecode_dynamo.state.requirements import example_of
from bytecode_dynamo.state.tracker import VariableTracker

TENSOR_TYPES = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
TORCHS = {
    cls: {name: value for base in reversed(cls.__mro__) for name, value in vars(base).items()}
    for cls in TENSOR_TYPES
}
"""torch's own attributes of these classes, which programs may replace."""


def state_of_inputs(ctx: Context, x: Any, name: str) -> VariableTracker:
    """The guarded result of a method on inputs, whose state fakes lack."""
    for tensor in list(ctx.tensors.values()):
        value = example_of(ctx, tensor)
        if value is not None and tensor.source is not None:
            same = Answer("{}()", lambda method: method(), getattr(value, name)())
            ctx.guards.require(AttrSource(tensor.source, name), GuardKind.CUSTOM, same)
    example = example_of(ctx, x)
    if example is None and any(getattr(value, name)() for value in ctx.examples.values()):
        raise GraphBreak("BD014", f"{x.describe()}.{name}(): it depends on an input")
    return new_value(ctx, getattr(x.fake if example is None else example, name)())


def was_leaf(ctx: Context, x: Any) -> bool:
    """Whether an input is a leaf, guarded; True for other tensors."""
    return state_of_input(ctx, x, "is_leaf")


def state_of_input(ctx: Context, x: Any, name: str) -> Any:
    """A guarded attribute of an input that fakes lack; the fake's own for other tensors."""
    value = example_of(ctx, x)
    if value is None or x.source is None:
        return True if name == "is_leaf" else getattr(x.fake, name)
    answer = getattr(value, name)
    ctx.guards.require(AttrSource(x.source, name), GuardKind.EQUALS, answer)
    return answer
