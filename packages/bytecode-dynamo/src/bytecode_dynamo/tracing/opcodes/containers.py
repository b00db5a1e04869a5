"""Building and taking apart containers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bytecode_dynamo.bytecode import Instruction, Op
from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.frame import Frame
from bytecode_dynamo.state.protocol import (
    call_known,
    get_attribute,
    new_dict,
    new_list,
    pairs_of,
    raise_error,
)
from bytecode_dynamo.state.tracker import VariableTracker
from bytecode_dynamo.variables.attribute import has_special
from bytecode_dynamo.variables.constant import NONE, ConstantVariable, SliceVariable
from bytecode_dynamo.variables.derived import native
from bytecode_dynamo.variables.mapping import DictVariable, dict_update
from bytecode_dynamo.variables.sequence import ListVariable, new_tuple
from bytecode_dynamo.variables.sequence_methods import list_append, list_extend
from bytecode_dynamo.variables.sets import SetVariable, set_add, set_of, set_update
from bytecode_dynamo.variables.wording import hashed_as, too_many_values

from .table import evaluates

evaluates(Op.BUILD_TUPLE)(
    lambda ctx, frame, instruction: frame.push(new_tuple(frame.pop_many(instruction.arg)))
)
evaluates(Op.BUILD_LIST)(
    lambda ctx, frame, instruction: frame.push(new_list(ctx, frame.pop_many(instruction.arg)))
)


@evaluates(Op.BUILD_SET)
def build_set(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    items = frame.pop_many(instruction.arg)
    members: dict[object, VariableTracker] = {}
    for item in items:
        members.setdefault(hashed_as(ctx, "set element", item), item)
    frame.push(set_of(ctx, members, set))


@evaluates(Op.BUILD_MAP)
def build_map(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    flat = frame.pop_many(2 * instruction.arg)
    frame.push(new_dict(ctx, list(zip(flat[::2], flat[1::2]))))


@evaluates(Op.BUILD_CONST_KEY_MAP)
def build_const_key_map(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    keys = frame.stack.pop().unpack(ctx)
    frame.push(new_dict(ctx, list(zip(keys, frame.pop_many(instruction.arg)))))


@evaluates(Op.BUILD_SLICE)
def build_slice(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    parts = frame.pop_many(instruction.arg)
    start, stop, *step = parts
    frame.push(SliceVariable((start, stop, step[0] if step else NONE)))


def _extend_list(ctx: Context, container: ListVariable, items: VariableTracker) -> None:
    if not has_special(ctx, items.python_type(), "__iter__", "__getitem__"):
        raise_error(
            ctx, TypeError, f"Value after * must be an iterable, not {items.python_type().__name__}"
        )
    list_extend(ctx, container, items)


def _update_dict(ctx: Context, container: DictVariable, items: VariableTracker) -> None:
    if not has_special(ctx, items.python_type(), "keys"):
        raise_error(ctx, TypeError, f"{items.python_type().__name__!r} object is not a mapping")
    dict_update(ctx, container, items)


def _extends(op: Op, kind: type, extend: Callable[[Context, Any, VariableTracker], object]) -> None:
    """Extend the container of this kind below the top of the stack by the top."""

    def handler(ctx: Context, frame: Frame, instruction: Instruction) -> None:
        item, container = frame.stack.pop(), frame.stack[-instruction.arg]
        assert isinstance(container, kind)
        extend(ctx, container, item)

    evaluates(op)(handler)


_extends(Op.LIST_APPEND, ListVariable, list_append)
_extends(Op.SET_ADD, SetVariable, set_add)
_extends(Op.LIST_EXTEND, ListVariable, _extend_list)
_extends(Op.SET_UPDATE, SetVariable, set_update)
_extends(Op.DICT_UPDATE, DictVariable, _update_dict)


@evaluates(Op.MAP_ADD)
def add_to_map(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    key, value = frame.pop_many(2)
    frame.stack[-instruction.arg].set_item(ctx, key, value)


@evaluates(Op.DICT_MERGE)
def merge_dict(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    items = frame.stack.pop()
    base = frame.stack[-instruction.arg]
    assert isinstance(base, DictVariable)
    if not has_special(ctx, items.python_type(), "keys"):
        raise GraphBreak("BD007", f"{items.describe()} after **")
    for key, _ in pairs_of(ctx, items):
        if base.contains(ctx, key):
            raise_error(
                ctx, TypeError, f"got multiple values for keyword argument {key.describe()}"
            )
    dict_update(ctx, base, items)


@evaluates(Op.LIST_TO_TUPLE)
def list_to_tuple(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    items = frame.stack.pop()
    assert isinstance(items, ListVariable)
    frame.push(new_tuple(items.elements(ctx)))


@evaluates(Op.UNPACK_SEQUENCE)
def unpack_sequence(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    items = unpack_exactly(ctx, frame.stack.pop(), instruction.arg)
    frame.stack += reversed(items)


def _require_iterable(ctx: Context, value: VariableTracker) -> None:
    if not has_special(ctx, value.python_type(), "__iter__", "__getitem__"):
        raise_error(
            ctx, TypeError, f"cannot unpack non-iterable {value.python_type().__name__} object"
        )


def unpack_exactly(ctx: Context, value: VariableTracker, count: int) -> list[VariableTracker]:
    """The items of an iterable, which must be this many."""
    _require_iterable(ctx, value)
    iterator = value.iterate(ctx)
    items: list[VariableTracker] = []
    while len(items) <= count and (item := iterator.next(ctx)) is not None:
        items.append(item)
    if len(items) < count:
        raise_error(
            ctx, ValueError, f"not enough values to unpack (expected {count}, got {len(items)})"
        )
    if len(items) > count:
        raise_error(ctx, ValueError, too_many_values(count, value, ctx))
    return items


@evaluates(Op.UNPACK_EX)
def unpack_ex(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    before, after = instruction.arg & 0xFF, instruction.arg >> 8
    value = frame.stack.pop()
    _require_iterable(ctx, value)
    items = value.unpack(ctx)
    if len(items) < before + after:
        raise_error(
            ctx,
            ValueError,
            f"not enough values to unpack (expected at least {before + after}, got {len(items)})",
        )
    end = len(items) - after
    frame.stack += reversed([*items[:before], new_list(ctx, items[before:end]), *items[end:]])


SEQUENCE_FLAG, MAPPING_FLAG = 1 << 5, 1 << 6
# -- pattern matching ------------------------------------------------------------------------------


evaluates(Op.GET_LEN)(lambda ctx, frame, instruction: frame.push(frame.stack[-1].length(ctx)))


@evaluates(Op.MATCH_SEQUENCE)
def match_sequence(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    frame.push(ConstantVariable(bool(frame.stack[-1].python_type().__flags__ & SEQUENCE_FLAG)))


@evaluates(Op.MATCH_MAPPING)
def match_mapping(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    frame.push(ConstantVariable(bool(frame.stack[-1].python_type().__flags__ & MAPPING_FLAG)))


@evaluates(Op.MATCH_KEYS)
def match_keys(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    subject, keys = native(frame.stack[-2]), frame.stack[-1]
    if not isinstance(subject, DictVariable):
        raise GraphBreak("BD007", f"mapping pattern on {subject.describe()}")
    values = [subject.get(ctx, key) for key in keys.unpack(ctx)]
    found = [value for value in values if value is not None]
    frame.push(new_tuple(found) if len(found) == len(values) else NONE)


@evaluates(Op.MATCH_CLASS)
def match_class(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    subject, cls, names = frame.pop_many(3)
    if not call_known(ctx, isinstance, [subject, cls]).truth(ctx):
        frame.push(NONE)
        return
    keywords = list(names.as_constant(ctx))
    positional: list[str] = []
    if instruction.arg:
        target = cls.as_constant(ctx)
        if target in (bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple):
            frame.push(new_tuple([subject]))
            return
        held = get_attribute(ctx, cls, "__match_args__").as_constant(ctx)
        if type(held) is not tuple or len(held) < instruction.arg:
            raise GraphBreak("BD007", f"__match_args__ of {target.__name__}")
        positional = list(held[: instruction.arg])
    frame.push(new_tuple([get_attribute(ctx, subject, name) for name in (*positional, *keywords)]))
