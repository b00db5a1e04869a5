"""A frame's code: its arguments and trackers, and the first half of it when the graph breaks."""

from __future__ import annotations

import inspect
from dataclasses import replace
from types import CodeType
from typing import Any

from bytecode_dynamo.bytecode import (
    Analysis,
    Instruction,
    encode,
    frame_entry,
    label_positions,
    replace_before,
)
from bytecode_dynamo.bytecode.decode import Decoded, decoded
from bytecode_dynamo.bytecode.expression import pushed_by, text_at
from bytecode_dynamo.guards.source import ClosureCellSource, LocalSource, Scope, StackSource
from bytecode_dynamo.hook.frame_hook import NULL, Continuation, FrameView
from bytecode_dynamo.hook.origins import like_frame, origins, with_constant
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.frame import Frame
from bytecode_dynamo.state.tracker import VariableTracker
from bytecode_dynamo.variables.base import LazyVariable


class FrameCode:
    """The code as it runs (``decoded``) and as the user wrote it (``original``).

    They differ in a resume function, which has an ``origin``.
    """

    def __init__(self, view: FrameView) -> None:
        self.view = view
        self.origin = origins.by_code.get(id(view.code))
        if self.origin is not None:
            neutral = self.origin.resume.code
            self.decoded = Decoded(view.code, neutral, label_positions(neutral.instructions))
            self.original = self.origin.original
        else:
            self.decoded = self.original = decoded(view.code)

    def arguments(self) -> dict[str, Any]:
        """The variables that are bound at the start."""
        pairs = zip(self.view.code.co_varnames, self.view.locals)
        return {name: value for name, value in pairs if value is not NULL}

    def scope(self) -> Scope:
        """What sources are looked up in."""
        view = self.view
        closure = dict(zip(view.code.co_freevars, view.closure or ()))
        return Scope(self.arguments(), view.globals, view.builtins, closure)

    def begin(self, ctx: Context) -> Frame:
        """The frame to evaluate."""
        slots: dict[str, VariableTracker] = {
            name: LazyVariable(value, source=self._source(name))
            for name, value in self.arguments().items()
        }
        cells = tuple(
            LazyVariable(cell, source=ClosureCellSource(name))
            for name, cell in zip(self.view.code.co_freevars, self.view.closure or ())
        )
        return Frame(self.decoded, ctx.root_names, slots, closure=cells)

    def _source(self, name: str) -> LocalSource:
        """An argument; where it was on the stack before a break, with its expression."""
        number = name.lstrip(".").removeprefix("s")
        if self.origin is None or name.isidentifier() or not number.isdecimal():
            return LocalSource(name)
        resume, code = self.origin.resume, self.original.neutral
        depth = len(resume.stack) - 1 - int(number)
        return StackSource(name, text_at(code, pushed_by(code, resume.target, depth)))

    def flat_code(self) -> CodeType:
        """The original with every argument positional: a copy, so that nothing compiled for a code
        object keeps it alive.
        """
        code = self.view.code
        flags = code.co_flags & ~(inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
        count = self.decoded.neutral.parameter_count
        return code.replace(
            co_argcount=count, co_posonlyargcount=0, co_kwonlyargcount=0, co_flags=flags
        )

    def original_index(self, index: int) -> int | None:
        """The index in the original of an instruction; None for one that restores the stack."""
        if self.origin is None:
            return index
        items = self.decoded.instructions
        for original_index, item in enumerate(self.original.instructions):
            if item is items[index]:
                return original_index
        target = self.origin.resume.target
        entry = self.original.instructions[target]
        at_entry = items[index].op is entry.op and items[index].position == entry.position
        return target if at_entry else None

    def first_half(
        self,
        index: int,
        prefix: list[Instruction],
        analysis: Analysis,
        extra: list[str],
        roots: set[int],
        *,
        calls: bool,
    ) -> CodeType:
        """The code up to a break: the prefix, the instruction that breaks (``calls``: another call
        in its place), and the handover.

        Adds the resume functions' code to ``roots``.
        """
        split = replace_before(
            self.original.neutral, index, prefix, analysis, Continuation, extra, calls=calls
        )
        first = split.first_half
        natives = {}
        for resume in split.resumes:
            known = origins.canonical(self.original, resume)
            roots.add(id(known.native))
            natives[id(resume.native)] = known.native
        instructions = [with_constant(item, natives) for item in first.instructions]
        if self.origin is not None:
            skipped = len(frame_entry(self.original.neutral))
            instructions = [*frame_entry(self.decoded.neutral), *instructions[skipped:]]
            first = like_frame(self.decoded.neutral, first, instructions)
        else:
            first = replace(first, instructions=instructions)
        return encode(first)
