"""Construction of wrapper subclasses: the constructor is evaluated, then the graph creates the
tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from symshapes import Maker, flatten

from bytecode_dynamo.errors import GraphBreak, NotConstant
from bytecode_dynamo.function_table import evaluates_call
from bytecode_dynamo.graph.opaque import OpaqueCall
from bytecode_dynamo.reconstruction.value_builder import ValueBuilder
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.effects import DELETED, Identity
from bytecode_dynamo.state.protocol import call_torch, constant_of, new_list
from bytecode_dynamo.state.tracker import VariableTracker
from bytecode_dynamo.variables.base import realize
from bytecode_dynamo.variables.tensor import TensorVariable
from bytecode_dynamo.variables.userobject import UserObjectVariable
from bytecode_dynamo.variables.wrapper_tensor import refusal_of_class

_NUMBERS = ("strides", "storage_offset")
_Tensor: Any = torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class WrapperDraft(UserObjectVariable):
    """A tensor whose constructor is still running."""

    numbers: tuple[VariableTracker, ...] = ()
    dims: int = 0
    layout: tuple[str, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()

    def reconstruct(self, gen: ValueBuilder) -> NoReturn:
        raise GraphBreak("BD019", f"a {self.key.cls.__qualname__} leaves its constructor")


@evaluates_call(_Tensor._make_wrapper_subclass)
def make_wrapper(
    ctx: Context, cls: VariableTracker, size: VariableTracker, **given: VariableTracker
) -> VariableTracker:
    wanted = cls.as_constant(ctx)
    reason = refusal_of_class(wanted)
    if reason is not None:
        raise GraphBreak("BD019", f"construction of a {wanted.__qualname__}: {reason}")
    sizes = size.unpack(ctx)
    layout = tuple(name for name in _NUMBERS if name in given and not given[name].is_none)
    numbers = [given[name] for name in layout]
    rest = [
        item
        for value, name in zip(numbers, layout)
        for item in (value.unpack(ctx) if name == "strides" else [value])
    ]
    try:
        options = tuple(
            (name, value.as_constant(ctx)) for name, value in given.items() if name not in _NUMBERS
        )
    except NotConstant as error:
        raise GraphBreak("BD019", f"construction of a {wanted.__qualname__} with {error}") from None
    if dict(options).get("requires_grad"):
        raise GraphBreak("BD019", f"construction of a {wanted.__qualname__} that requires grad")
    return WrapperDraft(
        Identity(wanted), numbers=(*sizes, *rest), dims=len(sizes), layout=layout, options=options
    )


def finish_wrapper(ctx: Context, draft: WrapperDraft) -> VariableTracker:
    """The tensor of a finished constructor."""
    cls = draft.key.cls
    tensors: dict[str, VariableTracker] = {}
    constants: list[tuple[str, Any]] = []
    for name, held in ctx.effects.attributes(draft.key).items():
        value = realize(ctx, held) if held is not DELETED else held
        if isinstance(value, TensorVariable):
            if value.fake.requires_grad:
                what = "around a tensor that requires grad"
                raise GraphBreak("BD019", f"construction of a {cls.__qualname__} {what}")
            tensors[name] = value
        elif value is not DELETED:
            what = f"attribute {name!r} of a new {cls.__qualname__}"
            constants.append((name, constant_of(ctx, value, what)))
    maker = Maker(cls, tuple(tensors), tuple(constants), draft.options, draft.dims, draft.layout)
    return _made(ctx, maker, list(tensors.values()), draft.numbers)


def _made(
    ctx: Context, maker: Maker, inner: list[VariableTracker], numbers: Sequence[VariableTracker]
) -> VariableTracker:
    name = f"make_{maker.cls.__name__}"
    args = [new_list(ctx, inner), new_list(ctx, list(numbers))]
    with ctx.modes.without_overrides(ctx):
        made: Any = call_torch(ctx, OpaqueCall(maker, name), args)
    if set(flatten(made.fake)[0]) != set(maker.names):
        what = "__tensor_flatten__ names other tensors than its constructor"
        raise GraphBreak("BD019", f"a {maker.cls.__qualname__}: {what}")
    return made
