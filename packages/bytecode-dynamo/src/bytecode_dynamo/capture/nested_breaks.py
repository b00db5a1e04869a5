"""A break inside of inlined calls: the root's new code calls its callee where that stood, which
calls its own, and the innermost runs the instruction that breaks. Each then goes on in its resume
function.
"""

from __future__ import annotations

from types import CodeType, FunctionType
from typing import Any

from bytecode_dynamo.bytecode import UNBOUND, Entrance
from bytecode_dynamo.bytecode import Entry as StackEntry
from bytecode_dynamo.bytecode.handover import is_passed
from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.hook.frame_hook import Entry, Region
from bytecode_dynamo.hook.origins import origins
from bytecode_dynamo.reconstruction.value_builder import ValueBuilder
from bytecode_dynamo.state.frame import Frame
from bytecode_dynamo.state.tracker import VariableTracker
from bytecode_dynamo.variables.base import KeyedVariable, NullVariable


def push_call(gen: ValueBuilder, region: Region, frames: tuple[Frame, ...]) -> int:
    """Push what enters the first of the frames where it stands, and its arguments; returns their
    number.
    """
    entrance, code = _entrance(region, frames)
    gen.emitter.load_callee(lambda: gen.call_const(entered, frames[0].function, code))
    return _push_arguments(gen, region, frames, entrance)


def entered(function: FunctionType, code: CodeType) -> FunctionType:
    """A function with the globals and cells of another one, whose code enters it in the middle."""
    return FunctionType(code, function.__globals__, function.__name__, None, function.__closure__)


def _entrance(region: Region, frames: tuple[Frame, ...]) -> tuple[Entrance, CodeType]:
    frame = frames[0]
    entrance, code = origins.entrance(frame.decoded, frame.current, other_call=len(frames) > 1)
    if StackEntry.LASTI in entrance.stack:
        raise GraphBreak("BD015", "the place of an exception that is handled")
    if not region.entries(code):
        region.add(code, Entry(None, code, True))
    return entrance, code


def _push_arguments(
    gen: ValueBuilder, region: Region, frames: tuple[Frame, ...], entrance: Entrance
) -> int:
    frame = frames[0]
    for name in entrance.variables:
        _push_variable(gen, frame.slots.get(name), name in entrance.live)
    passed = [
        value for value, kind in zip(frame.stack, entrance.stack, strict=True) if is_passed(kind)
    ]
    for value in passed:
        _push_variable(gen, value, True)
    count = len(entrance.variables) + len(passed)
    if len(frames) == 1:
        return count
    inner, code = _entrance(region, frames[1:])
    gen.call_const(entered, frames[1].function, code)
    gen.emitter.build_tuple(_push_arguments(gen, region, frames[1:], inner))
    return count + 2


def _push_variable(gen: ValueBuilder, value: Any, is_live: bool) -> None:
    """Push a variable or stack entry; a dead variable may hold the last reference to an object."""
    if value is None or isinstance(value, NullVariable):
        gen.load_const(UNBOUND)
    elif is_live or (isinstance(value, KeyedVariable) and value.key in gen.built):
        assert isinstance(value, VariableTracker)
        gen(value)
    else:
        gen.load_const(None)
