"""Resume functions: their originals, and the code of first halves split from these."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any

from bytecode_dynamo.bytecode import (
    Code,
    Entrance,
    Instruction,
    Op,
    Resume,
    encode,
    enter_at,
)
from bytecode_dynamo.bytecode.decode import Decoded

from .frame_hook import Continuation


@dataclass(frozen=True, slots=True)
class Origin:
    """The original of a resume function: breaks in it split the original again."""

    original: Decoded
    resume: Resume


@dataclass(slots=True)
class Origins:
    """Resume functions by their code, each made once per original, target and passed variables."""

    by_code: dict[int, Origin] = field(default_factory=dict)
    by_place: dict[Any, Resume] = field(default_factory=dict)
    entrances: dict[Any, tuple[Entrance, CodeType]] = field(default_factory=dict)

    def canonical(self, original: Decoded, resume: Resume) -> Resume:
        """The one resume function for a target in an original."""
        key = (id(original.native), resume.target, resume.variables, resume.stack)
        known = self.by_place.get(key)
        if known is None:
            known = self.by_place[key] = resume
            self.by_code[id(known.native)] = Origin(original, known)
        return known

    def entrance(self, original: Decoded, index: int, *, calls: bool) -> tuple[Entrance, CodeType]:
        """The one function that enters an original before an instruction, with its code."""
        key = (id(original.native), index, calls)
        known = self.entrances.get(key)
        if known is None:
            made = enter_at(original.neutral, index, Continuation, calls=calls)
            natives = {
                id(resume.native): self.canonical(original, resume).native
                for resume in made.resumes
            }
            body = [with_constant(item, natives) for item in made.code.instructions]
            known = self.entrances[key] = made, encode(replace(made.code, instructions=body))
        return known


origins = Origins()


def without_entry_handler(code: Code) -> Code:
    """The code without the exception handler of RESUME, whose target a resume function no longer
    has.
    """
    instructions = [
        Instruction(item.op, item.arg, item.position, None, item.label)
        if item.op is Op.RESUME and item.handler
        else item
        for item in code.instructions
    ]
    return replace(code, instructions=instructions)


def with_constant(item: Instruction, natives: dict[int, CodeType]) -> Instruction:
    if item.op is Op.LOAD_CONST and id(item.arg) in natives:
        return Instruction(item.op, natives[id(item.arg)], item.position, item.handler, item.label)
    return item


def like_frame(frame_code: Code, first: Code, instructions: list[Instruction]) -> Code:
    """Code with the signature of a resume function and the body of a first half of the original."""
    known = {*frame_code.varnames, *frame_code.cellvars, *frame_code.freevars}
    added = [name for name in first.varnames if name not in known]
    return replace(
        frame_code,
        varnames=(*frame_code.varnames, *added),
        instructions=instructions,
        consts=(None,),
        names=(),
    )
