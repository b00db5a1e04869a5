"""What methods of input tensors say that fake tensors do not know of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.guards import GuardKind
from bytecode_dynamo.source import AttrSource

from .base import VariableTracker

if TYPE_CHECKING:
    from bytecode_dynamo.context import Context

    from .tensor import TensorVariable


def state_of_inputs(ctx: Context, x: TensorVariable, name: str) -> VariableTracker:
    """What a method says that fakes do not know of, guarded; what is computed from inputs may say
    the same as they.
    """
    for tensor in list(ctx.tensors.values()):
        value = ctx.example_of(tensor)
        if value is not None and tensor.source is not None:
            ctx.guards.require(
                AttrSource(tensor.source, name), GuardKind.CUSTOM, _Answers(getattr(value, name)())
            )
    example = ctx.example_of(x)
    if example is None and any(getattr(value, name)() for value in ctx.examples.values()):
        raise GraphBreak("BD014", f"{x.describe()}.{name}(): it depends on an input")
    return ctx.create(getattr(x.fake if example is None else example, name)())


class _Answers:
    """Whether a method still says what it said."""

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def __call__(self, method: Any) -> bool:
        return method() == self.answer
