"""Numbers that a program reads from tensors of one element among its inputs: guarded like numbers
that it is called with.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from bytecode_dynamo.guards.computed_source import ComputedSource
from bytecode_dynamo.guards.records import GuardKind
from bytecode_dynamo.guards.source import Source
from bytecode_dynamo.guards.tensor_source import ElementSource
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.protocol import wrap_value
from bytecode_dynamo.state.requirements import example_of
from bytecode_dynamo.state.tracker import VariableTracker

from .input_state import TENSOR_TYPES
from .tensor_setters import SET_DATA


def number_of_input(ctx: Context, x: Any) -> VariableTracker | None:
    """``x.item()`` of an input in the memory of the CPU that the frame has not written so far, else
    None. The number is a constant at first, and a symbol when it was another one in an earlier
    call.
    """
    value = example_of(ctx, x)
    if value is None or not ctx.reads_numbers or not _has_plain_number(ctx, x):
        return None
    if not _is_unwritten(ctx, x, value):
        return None
    try:
        number = value.item()
    except RuntimeError:  # a transform has wrapped it
        return None
    # without a source: what is read later is another number, if the frame writes to the tensor
    return replace(wrap_value(ctx, number, ElementSource(x.source)), source=None)  # pyright: ignore


def _has_plain_number(ctx: Context, x: Any) -> bool:
    plain = x.cls in TENSOR_TYPES and not ctx.modes.function_modes(ctx)
    on_host = plain and x.fake.device.type == "cpu" and x.fake.layout is torch.strided
    return on_host and all(type(size) is int and size == 1 for size in x.fake.shape)


def _is_unwritten(ctx: Context, x: Any, value: torch.Tensor) -> bool:
    """Whether no operator of the frame has written to the memory of an input; guards that it stays
    apart from the inputs that were written.
    """
    written = {event for event in ctx.mode.events if isinstance(event, int)}
    if _memory(x) in written or any(user.target is SET_DATA for user in x.node.users):
        return False
    for other in [*ctx.tensors.values()] if written else ():
        example = example_of(ctx, other)
        if example is None or other.fake.device.type != "cpu":
            continue
        if _memory(other) in written:
            if share_memory(value, example):
                return False
            sources: tuple[Source, ...] = (x.source, other.source)
            apart = ComputedSource(share_memory, sources)
            ctx.guards.require(apart, GuardKind.EQUALS, False)
    return True


def _memory(x: Any) -> int:
    """What tells the memory of an input from that of others."""
    return x.node.meta["val"].untyped_storage()._cdata


def share_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether the storages of two tensors have bytes in common: those around arrays may overlap."""
    first, second = a.untyped_storage(), b.untyped_storage()
    low, high = first.data_ptr(), second.data_ptr()
    return low < high + second.nbytes() and high < low + first.nbytes()
