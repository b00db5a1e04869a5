"""Symbolic positions in the key of a tensor: indexing asks for their value, ``select`` takes them as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .base import VariableTracker
from .constant import ConstantVariable, SliceVariable, SymbolicVariable
from .sequence import TupleVariable

if TYPE_CHECKING:
    from bytecode_dynamo.context import Context

    from .tensor import TensorVariable


def at_positions(ctx: Context, x: TensorVariable, key: VariableTracker) -> tuple[VariableTracker, VariableTracker | None]:
    """``x`` at the symbolic positions in a key, and what is left of the key, if anything is."""
    parts = list(key.items) if isinstance(key, TupleVariable) else [key]
    ranks = [_rank(ctx, part) for part in parts]
    if not any(map(_is_position, parts)) or x.overrides or ctx.modes.function_modes(ctx) or None in ranks:
        return x, key
    used = sum(rank for rank in ranks if rank is not None and rank >= 0)
    ranks = [x.fake.dim() - used if rank == REST else rank for rank in ranks]
    base: VariableTracker = x
    for place in reversed(range(len(parts))):
        if _is_position(parts[place]):
            dim = sum(rank for rank in ranks[:place] if rank is not None)
            base = ctx.torch_call("call_function", torch.select, [base, ConstantVariable(dim), parts[place]], {})
    rest = [part for part in parts if not _is_position(part)]
    return base, ctx.create_tuple(rest) if rest else None


REST = -1


def _is_position(part: VariableTracker) -> bool:
    return isinstance(part, SymbolicVariable) and part.python_type() is int


def _rank(ctx: Context, part: VariableTracker) -> int | None:
    """How many dimensions a part of a key is for; None: not known here."""
    fake = part.as_fake(ctx) if not isinstance(part, (ConstantVariable, SliceVariable, SymbolicVariable)) else None
    if isinstance(fake, torch.Tensor):
        return fake.dim() if fake.dtype in (torch.bool, torch.uint8) else 1
    if isinstance(part, ConstantVariable) and (part.value is None or type(part.value) is bool):
        return 0
    if isinstance(part, ConstantVariable):
        return REST if part.value is ... else 1
    return 1 if isinstance(part, SliceVariable) or _is_position(part) else None
