"""Symbolic positions in a tensor's key: indexing specialises them, so use ``select``."""

from __future__ import annotations

from typing import Any

import torch
from symshapes import FakeTensor

from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.protocol import call_torch
from bytecode_dynamo.state.tracker import VariableTracker

from .constant import ConstantVariable, SliceVariable, SymbolicVariable
from .input_numbers import number_of_input
from .sequence import TupleVariable, new_tuple


def at_positions(
    ctx: Context, x: Any, key: VariableTracker
) -> tuple[VariableTracker, VariableTracker | None]:
    """``x`` selected at the symbolic positions of a key, and the rest of the key."""
    if x.overrides or ctx.modes.function_modes(ctx):
        return x, key
    key = _with_bounds_read(ctx, key)
    parts = list(key.items) if isinstance(key, TupleVariable) else [key]
    ranks = [_rank(ctx, part) for part in parts]
    if not any(map(_is_position, parts)) or None in ranks:
        return x, key
    used = sum(rank for rank in ranks if rank is not None and rank >= 0)
    ranks = [x.fake.dim() - used if rank == REST else rank for rank in ranks]
    base: VariableTracker = x
    for place in reversed(range(len(parts))):
        if _is_position(parts[place]):
            dim = sum(rank for rank in ranks[:place] if rank is not None)
            base = call_torch(ctx, torch.select, [base, ConstantVariable(dim), parts[place]])
    rest = [part for part in parts if not _is_position(part)]
    return base, new_tuple(rest) if rest else None


def _with_bounds_read(ctx: Context, key: VariableTracker) -> VariableTracker:
    """The key with known numbers for tensor slice bounds, which indexing would read."""
    if isinstance(key, TupleVariable):
        items = [
            _with_bounds_read(ctx, item) if isinstance(item, SliceVariable) else item
            for item in key.items
        ]
        return key if all(a is b for a, b in zip(items, key.items)) else new_tuple(items)
    if isinstance(key, SliceVariable):
        start, stop, step = (_bound(ctx, part) for part in key.parts)
        same = all(a is b for a, b in zip((start, stop, step), key.parts))
        return key if same else SliceVariable((start, stop, step))
    return key


def _bound(ctx: Context, part: VariableTracker) -> VariableTracker:
    """A known number for a tensor that bounds a slice, else the part itself."""
    fake = getattr(part, "fake", None)
    if not isinstance(fake, FakeTensor) or fake.dtype is not torch.int64 or fake.dim():
        return part
    if ctx.config.capture_scalar_outputs or fake.known_number is not None:
        return part.call_method(ctx, "item", [], {})
    return number_of_input(ctx, part) or part


REST = -1


def _is_position(part: VariableTracker) -> bool:
    return isinstance(part, SymbolicVariable) and part.python_type() is int


def _rank(ctx: Context, part: VariableTracker) -> int | None:
    """The number of dimensions that a part of a key consumes; None if unknown."""
    fake = (
        part.as_fake(ctx)
        if not isinstance(part, (ConstantVariable, SliceVariable, SymbolicVariable))
        else None
    )
    if isinstance(fake, torch.Tensor):
        return fake.dim() if fake.dtype in (torch.bool, torch.uint8) else 1
    if isinstance(part, ConstantVariable) and (part.value is None or type(part.value) is bool):
        return 0
    if isinstance(part, ConstantVariable):
        return REST if part.value is ... else 1
    return 1 if isinstance(part, SliceVariable) or _is_position(part) else None
