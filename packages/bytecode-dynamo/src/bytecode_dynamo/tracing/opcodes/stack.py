"""Stack shuffling, constants, fast locals and cells."""

from __future__ import annotations

import types
from typing import NoReturn

from bytecode_dynamo.bytecode import Instruction, Op
from bytecode_dynamo.errors import InvariantError
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.effects import MISSING, Identity
from bytecode_dynamo.state.frame import Frame
from bytecode_dynamo.state.protocol import new_value, raise_error
from bytecode_dynamo.variables.base import NULL, LazyVariable, NullVariable, realize
from bytecode_dynamo.variables.function import CellVariable

from .table import evaluates


@evaluates(Op.NOP, Op.RESUME)
def nop(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    pass


evaluates(Op.POP_TOP)(lambda ctx, frame, instruction: frame.stack.pop())
evaluates(Op.PUSH_NULL)(lambda ctx, frame, instruction: frame.push(NULL))
evaluates(Op.COPY)(lambda ctx, frame, instruction: frame.push(frame.stack[-instruction.arg]))


@evaluates(Op.SWAP)
def swap(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    stack, depth = frame.stack, instruction.arg
    stack[-1], stack[-depth] = stack[-depth], stack[-1]


evaluates(Op.LOAD_CONST)(
    lambda ctx, frame, instruction: frame.push(new_value(ctx, instruction.arg))
)


@evaluates(Op.LOAD_FAST, Op.LOAD_FAST_CHECK)
def load_fast(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    value = frame.slots.get(instruction.arg)
    if value is None or isinstance(value, NullVariable):
        raise_error(
            ctx,
            UnboundLocalError,
            f"cannot access local variable '{instruction.arg}' where it is not associated with a "
            f"value",
        )
        return
    if isinstance(value, LazyVariable):
        value = frame.slots[instruction.arg] = value.realize(ctx)
    frame.push(value)


@evaluates(Op.LOAD_FAST_AND_CLEAR)
def load_fast_and_clear(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    value = frame.slots.pop(instruction.arg, NULL)
    frame.push(realize(ctx, value))


@evaluates(Op.STORE_FAST)
def store_fast(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    value = frame.stack.pop()
    if isinstance(value, NullVariable):
        frame.slots.pop(instruction.arg, None)
    else:
        frame.slots[instruction.arg] = value


@evaluates(Op.DELETE_FAST)
def delete_fast(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    if frame.slots.pop(instruction.arg, None) is None:
        raise_error(
            ctx,
            UnboundLocalError,
            f"cannot access local variable '{instruction.arg}' where it is not associated with a "
            f"value",
        )


# -- cells -----------------------------------------------------------------------------------------


@evaluates(Op.MAKE_CELL)
def make_cell(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    key = Identity(types.CellType)
    held = frame.slots.get(instruction.arg, MISSING)
    ctx.effects.write(key, held)
    variable = instruction.arg if frame.parent is None else ""
    frame.slots[instruction.arg] = CellVariable(key, variable)


@evaluates(Op.COPY_FREE_VARS)
def copy_free_vars(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    for name, cell in zip(frame.code.freevars, frame.closure):
        frame.slots[name] = cell


def cell_of(ctx: Context, frame: Frame, name: str) -> CellVariable:
    """The cell of a variable."""
    cell = realize(ctx, frame.slots[name])
    if not isinstance(cell, CellVariable):
        raise InvariantError(
            f"variable {name!r} of {frame.code.name} holds {cell.describe()}, not a cell"
        )
    frame.slots[name] = cell
    return cell


@evaluates(Op.LOAD_CLOSURE)
def load_closure(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    # In an inlined comprehension the slot can hold a plain value.
    value = frame.slots.get(instruction.arg)
    if value is None:
        raise_error(ctx, UnboundLocalError, f"cannot access local variable '{instruction.arg}'")
        return
    value = frame.slots[instruction.arg] = realize(ctx, value)
    frame.push(value)


@evaluates(Op.LOAD_DEREF)
def load_deref(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    held = cell_of(ctx, frame, instruction.arg).contents(ctx)
    if held is None:
        _unbound(ctx, frame, instruction.arg)
    frame.push(held)


def _unbound(ctx: Context, frame: Frame, name: str) -> NoReturn:
    where = "where it is not associated with a value"
    if name in frame.code.cellvars:
        raise_error(ctx, UnboundLocalError, f"cannot access local variable {name!r} {where}")
    raise_error(ctx, NameError, f"cannot access free variable {name!r} {where} in enclosing scope")


@evaluates(Op.STORE_DEREF)
def store_deref(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    cell = cell_of(ctx, frame, instruction.arg)
    ctx.effects.write(cell.key, frame.stack.pop())


@evaluates(Op.DELETE_DEREF)
def delete_deref(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    cell = cell_of(ctx, frame, instruction.arg)
    if cell.contents(ctx) is None:
        _unbound(ctx, frame, instruction.arg)
    ctx.effects.write(cell.key, MISSING)
