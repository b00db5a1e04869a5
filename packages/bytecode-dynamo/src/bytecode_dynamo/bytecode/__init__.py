"""Neutral bytecode: decode native CPython code, transform it, encode it back.

``decode(code_object)`` gives a ``Code``: a list of ``Instruction`` whose ``op`` is from the closed
enumeration ``Op``, the same on every supported interpreter; ``encode`` gives a code object back.
``Analysis`` says what is on the stack and which variables are bound and live before each
instruction. ``split_at``, ``replace_before`` and ``replacement`` make code that replaces the
original, with resume functions that carry on in the middle of it. ``Emitter`` writes new
instructions.

Only the modules under ``versions`` know what differs between interpreter versions.
"""

from .analysis import Analysis, Entry, State
from .decode import UnsupportedCode, decode
from .emit import Emitter
from .encode import encode
from .handover import (
    UNBOUND,
    Continuation,
    Handover,
    Origin,
    Resume,
    ResumeMark,
    Unbound,
    origin_of,
    prune,
    reads_frame,
    resume_mark,
)
from .instruction import (
    CONDITIONAL_JUMPS,
    EXITS,
    GENERATOR_FLAGS,
    JUMPS,
    NO_FALL_THROUGH,
    NO_POSITION,
    Call,
    Code,
    Compare,
    Format,
    Global,
    Handler,
    Instruction,
    Label,
    Op,
    Position,
    SuperAttr,
    label_positions,
    with_label,
)
from .resume import (
    Entrance,
    Split,
    body_start,
    can_split,
    enter_at,
    frame_entry,
    has_raw_cells,
    prologue_size,
    replace_before,
    replacement,
    split_at,
    split_points,
)
from .show import format_code
from .stack_effect import effect, stack_size
from .versions import RUNNING

NULL_BELOW_CALLABLE = RUNNING.null_below_callable
"""Whether a call has its NULL below the callable on the stack (else above it); method pairs
likewise.
"""
EXIT_IS_PAIR = RUNNING.exit_is_pair
"""Whether a ``with`` block keeps its exit method on the stack as a callable with its object or NULL
(else as one entry).
"""

__all__ = [
    "CONDITIONAL_JUMPS", "EXITS", "EXIT_IS_PAIR", "GENERATOR_FLAGS", "JUMPS", "NO_FALL_THROUGH",
    "NO_POSITION",
    "NULL_BELOW_CALLABLE",
    "UNBOUND", "Analysis", "Call", "Code", "Compare", "Continuation", "Emitter", "Entrance",
    "Entry", "Format", "Global", "Handler",
    "Handover", "Instruction", "Label", "Op", "Origin", "Position", "Resume", "ResumeMark", "Split",
    "State", "SuperAttr",
    "Unbound", "UnsupportedCode", "body_start", "can_split", "decode", "effect", "encode",
    "enter_at", "format_code",
    "frame_entry", "has_raw_cells", "label_positions", "origin_of", "prologue_size", "prune",
    "reads_frame", "replace_before",
    "replacement", "resume_mark", "split_at", "split_points", "stack_size", "with_label",
]  # fmt: skip
