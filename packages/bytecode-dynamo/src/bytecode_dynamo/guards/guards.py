"""Guards: what was read while compiling, and whether it is still so.

``Guards`` collects records while a frame is evaluated; ``compile_guards`` turns them into a
``GuardProgram``: one stream of operations that C evaluates on the arguments, the function and the
thread's state at the start of a frame, without running Python code (except for the records counted
in ``program.python_guards``). Owners come before what they own, and every operation proves the
pointers that the next ones follow, so a check never touches a dead object. Dictionaries that did
not change since the last check are recognised by their version tag, so whole module trees cost a
few microseconds.

What each kind says is in ``records.py``, the text of a failure in ``failures.py``, how sources are
followed in ``paths.py``, how records become operations in ``compiler.py``; the operations are in
``native/guards.c``.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import CodeType

from bytecode_dynamo._hook import GuardProgram
from bytecode_dynamo.errors import UserError

from .compiler import Loads, build_program
from .failures import failure, shape_failure
from .global_state import GlobalState
from .records import (
    ABSENT,
    STATE,
    Answer,
    GuardKind,
    GuardRecord,
    Guards,
    ShapeGuards,
    same_constant,
)
from .references import OpenRecord, OpenShapes
from .source import Scope
from .tensor_facts import TensorFacts
from .text import format_guard

__all__ = [
    "ABSENT", "STATE", "Answer", "GlobalState", "GuardKind", "GuardProgram", "GuardRecord",
    "Guards", "Loads", "ShapeGuards",
    "TensorFacts", "compile_guards", "explain_failure", "failure", "python_guards", "same_constant",
]  # fmt: skip


def compile_guards(
    records: Sequence[GuardRecord] | Guards,
    shapes: ShapeGuards,
    code: CodeType,
    scope: Scope,
    loads: Loads | None = None,
) -> GuardProgram:
    """The program that checks all records and shape guards at the start of frames of ``code``.

    ``scope`` is the call that was compiled (``source.scope_of``): sources are followed in it once,
    to find how each step can be taken natively. ``loads``: what the compiled code loads first,
    which a check hands over. Raises UserError for guards of a text on objects that this process
    doesn't have.
    """
    for part in (*records, shapes):
        if isinstance(part, OpenRecord | OpenShapes):
            names = ", ".join(map(str, part.missing))
            raise UserError(f"guards need objects that this process doesn't have: {names}")
    return build_program(list(records), shapes, code, scope, loads)


def python_guards(program: GuardProgram) -> list[str]:
    """The guards of a program that run in Python because they have no native form."""
    check = program.python
    if check is None:
        return []
    return [format_guard(record) for record in check.records] + ["conditions on sizes"] * (
        check.shapes is not None
    )


def explain_failure(
    records: Sequence[GuardRecord] | Guards, shapes: ShapeGuards, scope: Scope
) -> str | None:
    """The first guard that fails, as one line such as ``x.size(0) was 8, now 5``; None when
    all hold.
    """
    first = (failure(record, scope) for record in records if not record.source.runs_program)
    last = (failure(record, scope) for record in records if record.source.runs_program)
    found = (text for text in first if text is not None)
    text = next(found, None) or shape_failure(shapes, scope)
    return text or next((text for text in last if text is not None), None)
