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


def push_call(gen: ValueBuilder, region: Region, frames: tuple[Frame, ...]) -> None:
    """Push what enters the first of the frames where it stands, and its argument."""
    found: list[Entrance] = []
    gen.emitter.load_callee(lambda: found.append(_push_entrance(gen, region, frames)))
    _push_argument(gen, region, frames, found[0])


def entered(function: FunctionType, code: CodeType) -> FunctionType:
    """A function with the globals and cells of another one, whose code enters it in the middle."""
    return FunctionType(code, function.__globals__, function.__name__, None, function.__closure__)


def release_locals(gen: ValueBuilder) -> None:
    """Let go of the graph's results and of built values before the call, which may take long."""
    for name in gen.locals:
        gen.emitter.load_const(None)
        gen.emitter.store_fast(name)


def _push_entrance(gen: ValueBuilder, region: Region, frames: tuple[Frame, ...]) -> Entrance:
    frame = frames[0]
    entrance, code = origins.entrance(frame.decoded, frame.current, calls=len(frames) > 1)
    if StackEntry.LASTI in entrance.stack:
        raise GraphBreak("BD015", "the place of an exception that is handled")
    if not region.entries(code):
        region.add(code, Entry(None, code, True))
    gen.call_const(entered, frame.function, code)
    return entrance


def _push_argument(
    gen: ValueBuilder, region: Region, frames: tuple[Frame, ...], entrance: Entrance
) -> None:
    """Push the list of what the first of the frames holds."""
    frame, count = frames[0], len(entrance.variables)
    for value, kind in zip(frame.stack, entrance.stack, strict=True):
        if is_passed(kind):
            _push_variable(gen, value, True)
            count += 1
    if len(frames) > 1:
        inner = _push_entrance(gen, region, frames[1:])
        _push_argument(gen, region, frames[1:], inner)
        count += 2
    for name in entrance.variables:
        _push_variable(gen, frame.slots.get(name), name in entrance.live)
    gen.emitter.build_list(count)


def _push_variable(gen: ValueBuilder, value: Any, is_live: bool) -> None:
    """Push a variable or stack entry; a dead variable may hold the last reference to an object."""
    if value is None or isinstance(value, NullVariable):
        gen.load_const(UNBOUND)
    elif is_live or (isinstance(value, KeyedVariable) and value.key in gen.built):
        assert isinstance(value, VariableTracker)
        gen(value)
    else:
        gen.load_const(None)
