"""Runs frames symbolically: fetch, dispatch, exception handlers; inlines calls; breaks at the root
frame.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial

from symshapes import GuardOnDataDependent
from symshapes.decisions import may

from bytecode_dynamo.bytecode import Op
from bytecode_dynamo.errors import GraphBreak, NotConstant, ObservedException
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.frame import Frame, FrameExit, Snapshot, place_stack
from bytecode_dynamo.state.tracker import VariableTracker
from bytecode_dynamo.variables.base import LastiVariable
from bytecode_dynamo.variables.generator import close_abandoned

from .nesting import InnerPlace, StoppedInside, callees, inner_place
from .opcodes import HANDLERS

# Instructions that can neither break the graph nor raise: no snapshot is taken before them.
QUIET = frozenset(
    {
        Op.NOP, Op.POP_TOP, Op.PUSH_NULL, Op.COPY, Op.SWAP, Op.LOAD_CONST, Op.STORE_FAST, Op.RESUME,
        Op.MAKE_CELL,
        Op.COPY_FREE_VARS, Op.LOAD_CLOSURE, Op.JUMP, Op.JUMP_NO_INTERRUPT, Op.BUILD_TUPLE,
        Op.BUILD_LIST, Op.BUILD_SLICE,
        Op.LIST_TO_TUPLE, Op.RETURN_VALUE, Op.LIST_APPEND, Op.PUSH_EXC_INFO, Op.POP_EXCEPT,
    }
)  # fmt: skip

UNCOUNTED = QUIET - {Op.BUILD_TUPLE, Op.BUILD_LIST, Op.BUILD_SLICE}
"""No decisions of a search: a break there goes back to the snapshot before."""


@dataclass(slots=True)
class Returned:
    """The root frame returns, at instruction ``index``."""

    value: VariableTracker
    index: int


@dataclass(slots=True)
class Broken:
    """The graph ends before instruction ``snapshot.index`` of the root frame."""

    snapshot: Snapshot
    error: GraphBreak
    callees: tuple[Frame, ...] = ()
    """The inlined frames that the break is inside of, the innermost last; then the root frame
    stands at its call, without the call's operands on the stack.
    """


def step(ctx: Context, frame: Frame) -> None:
    """Evaluate one instruction."""
    instruction = frame.decoded.instructions[frame.index]
    frame.current = frame.index
    frame.started = ctx.instructions
    if ctx.inner_stop is not None and ctx.inner_stop.is_at(frame):
        raise StoppedInside(ctx.inner_stop.error, callees(frame))
    frame.index += 1
    ctx.count_instruction()
    if instruction.op not in UNCOUNTED and not may(
        "capture", instruction.op.name, partial(_line, frame)
    ):
        raise GraphBreak("BD021", "a search for a wrong result ends the capture here")
    try:
        HANDLERS[instruction.op](ctx, frame, instruction)
    except NotConstant as error:
        raise GraphBreak("BD007", f"the value of {error} is not known") from None
    except GuardOnDataDependent as error:
        raise GraphBreak("BD001", str(error)) from error


def _line(frame: Frame) -> str:
    place = frame.place()
    return f"{os.path.basename(place.filename)}:{place.line}, in {place.function}"


def handle(ctx: Context, frame: Frame, raised: ObservedException) -> bool:
    """Go to the exception handler of the current instruction; False when it has none."""
    handler = frame.instruction().handler
    if handler is None:
        return False
    del frame.stack[handler.depth :]
    if handler.lasti:
        frame.push(LastiVariable(handler.depth))
    frame.push(raised.value)
    frame.jump(handler.target)
    return True


def run_inlined(ctx: Context, frame: Frame, raised: ObservedException | None = None) -> FrameExit:
    """Run a frame of an inlined call until it returns or yields; raises ObservedException when it
    raises.

    ``raised`` is raised where the frame stands before anything else.
    """
    before, ctx.frame = ctx.frame, frame
    ctx.has_handlers |= bool(frame.decoded.native.co_exceptiontable)
    try:
        if raised is not None and not handle(ctx, frame, raised):
            raise raised
        while True:
            if ctx.abandoned:
                close_abandoned(ctx)
            try:
                step(ctx, frame)
            except FrameExit as exit_:
                exit_.__context__ = None
                # its frames hold values that the program may release
                return exit_.with_traceback(None)
            except ObservedException as raised:
                if not handle(ctx, frame, raised):
                    raise
    except GraphBreak as error:
        _place(ctx, frame, error)
        raise
    finally:
        ctx.frame = before


class Restart(Exception):
    """Evaluate again and break before the same instruction: fake tensors were changed in place, or
    the break is inside of calls (``error.inner``).
    """

    def __init__(self, steps: int | None, error: GraphBreak) -> None:
        super().__init__(str(error))
        self.steps = steps
        self.error = error
        self.inner: InnerPlace | None = error.inner if steps is None else None


def run_root(ctx: Context, frame: Frame, stop: Restart | None = None) -> Returned | Broken:
    """Run the root frame up to its end or the first graph break.

    ``stop`` says where an earlier evaluation of the frame has to break.
    """
    ctx.frame = frame
    ctx.has_handlers |= bool(frame.decoded.native.co_exceptiontable)
    point = ctx.snapshot(frame)
    handler_entry = None
    ctx.inner_stop = None if stop is None else stop.inner
    instructions = frame.decoded.instructions
    while True:
        frame.current = frame.index
        if stop is not None and frame.steps == stop.steps:
            return Broken(frame.snapshot(), stop.error)
        _note_visit(frame)
        if instructions[frame.index].op not in QUIET:
            before, point = point, ctx.snapshot(frame)
            del before  # releases the last references
            if ctx.abandoned:
                close_abandoned(ctx)
                point = ctx.snapshot(frame)
        handler_entry = handler_entry if _in_handler(frame) else None
        try:
            step(ctx, frame)
            frame.steps += 1
        except FrameExit as exit_:
            point = handler_entry = None
            frame.slots.clear()
            close_abandoned(ctx)
            return Returned(exit_.value, frame.current)
        except ObservedException as raised:
            if handler_entry is None:
                handler_entry = point
            if not handle(ctx, frame, raised):
                return _break(ctx, frame, handler_entry, uncaught(ctx, frame, raised))
            frame.steps += 1
        except StoppedInside as inside:
            return Broken(frame.snapshot(), inside.error, inside.callees)
        except GraphBreak as error:
            _place(ctx, frame, error)
            if stop is None and handler_entry is None:
                _break_inside(ctx, error)
            # The exception being handled can't be rebuilt: break where it was raised.
            return _break(ctx, frame, handler_entry or point, error)


def _note_visit(frame: Frame) -> None:
    if frame.visited is not None:
        frame.visited.add(frame.index)


def _place(ctx: Context, frame: Frame, error: GraphBreak) -> None:
    """Record the stack of a break, once, in the innermost frame."""
    if not error.stack:
        error.stack = place_stack(frame)
        error.strict = ctx.modes.strict(ctx)
        error.inner = inner_place(frame, error)


def _break_inside(ctx: Context, error: GraphBreak) -> None:
    """Evaluate again and break inside of the root frame's calls, where that is possible."""
    if ctx.nests and error.inner is not None:
        error.__context__ = error.__traceback__ = None
        raise Restart(None, error) from None


def _in_handler(frame: Frame) -> bool:
    """Whether an exception is being handled, or a handler begins or is left by its exception: a
    rebuilt exception would lose its traceback.
    """
    op = frame.decoded.instructions[frame.index].op
    return bool(frame.handled) or op in (Op.PUSH_EXC_INFO, Op.RERAISE)


def _break(ctx: Context, frame: Frame, point: tuple[Snapshot, object], error: GraphBreak) -> Broken:
    # its frames hold the exception, and values that the program may release
    error.__context__ = error.__traceback__ = None
    if ctx.rollback(frame, point):
        raise Restart(point[0].steps, error)
    return Broken(point[0], error)


def uncaught(ctx: Context, frame: Frame, raised: ObservedException) -> GraphBreak:
    """The break for an exception that leaves the frame: eager mode raises it again."""
    error = GraphBreak("BD008", describe(ctx, raised))
    error.stack = place_stack(frame)
    return error


def describe(ctx: Context, raised: ObservedException) -> str:
    """The exception as text."""
    held = raised.value.get_attr(ctx, "args").unpack(ctx)
    return f"{raised.value.python_type().__name__}: {', '.join(arg.describe() for arg in held)}"
