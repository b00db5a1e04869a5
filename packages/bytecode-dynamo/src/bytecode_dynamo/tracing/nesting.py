"""Breaks inside of inlined calls: which of the frames between can be entered again."""

from __future__ import annotations

from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch

from bytecode_dynamo.bytecode import Op, can_split
from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.hook.policy import is_captured_file
from bytecode_dynamo.state.frame import Frame
from bytecode_dynamo.variables.function import (
    BoundMethodVariable,
    FunctionVariable,
    PartialVariable,
)
from bytecode_dynamo.variables.userobject import UserObjectVariable

TOO_DEEP = frozenset({"BD016", "BD021"})
"""Breaks by the length of a capture: calls are captured on their own then."""


@dataclass(frozen=True, slots=True)
class InnerPlace:
    """An instruction of an inlined frame, counted from the start of the capture."""

    error: GraphBreak
    count: int
    code: CodeType
    index: int

    def is_at(self, frame: Frame) -> bool:
        """Whether a frame is about to evaluate it."""
        return (
            frame.started == self.count
            and frame.current == self.index
            and frame.decoded.native is self.code
            and frame in callees(frame)[-1:]
        )


class StoppedInside(Exception):
    """The evaluation reached the place where it has to break, inside of these frames."""

    def __init__(self, error: GraphBreak, frames: tuple[Frame, ...]) -> None:
        super().__init__()
        self.error = error
        self.callees = frames


def inner_place(frame: Frame, error: GraphBreak) -> InnerPlace | None:
    """Where to break inside the root frame's calls; None: before the outermost."""
    found = callees(frame)
    if not found or error.id in TOO_DEEP:
        return None
    inner = found[-1]
    return InnerPlace(error, inner.started, inner.decoded.native, inner.current)


def callees(frame: Frame) -> tuple[Frame, ...]:
    """The frames from the root's callee up to this one, as far as a plain call leads from each to
    the next.
    """
    frames = [frame]
    while frames[-1].parent is not None:
        frames.append(frames[-1].parent)
    frames.reverse()
    count = 1
    while count < len(frames) and _calls_plainly(frames[count - 1], frames[count]):
        count += 1
    return tuple(frames[1:count])


def _calls_plainly(caller: Frame, callee: Frame) -> bool:
    """Whether the callee's result is what the caller's call instruction pushes, and both can be
    entered in the middle.
    """
    code = callee.decoded.native
    return (
        caller.instruction().op in (Op.CALL, Op.CALL_FUNCTION_EX)
        and _leads_to(caller.callee, callee.function)
        and not (caller.handled or callee.handled)
        and can_split(code)
        and is_captured_file(code.co_filename)
    )


def _leads_to(called: Any, function: Any) -> bool:
    """Whether a call of one value is a call of a function, with nothing after it."""
    if isinstance(called, (BoundMethodVariable, PartialVariable)):
        return _leads_to(called.function, function)
    if isinstance(called, UserObjectVariable):
        cls = called.key.cls
        is_module = issubclass(cls, torch.nn.Module) and cls.__call__ is torch.nn.Module.__call__
        return function.value is (cls.forward if is_module else cls.__call__)
    return isinstance(called, FunctionVariable) and (
        called is function or (called.value is not None and called.value is function.value)
    )
