"""Why nothing that is compiled for a code object fits a call."""

from __future__ import annotations

from types import CodeType

import torch

from bytecode_dynamo.guards.global_state import GlobalState
from bytecode_dynamo.guards.guards import explain_failure
from bytecode_dynamo.guards.records import GuardKind, GuardRecord
from bytecode_dynamo.guards.source import ConstSource, Scope
from bytecode_dynamo.hook.origins import origins

from .policy import Policy

UNKNOWN = "no earlier graph fits; the log at level INFO, or an observer, says why"
GONE = "the compiled code is gone: an object that it was compiled for was deleted"


def where(code: CodeType) -> str:
    """A function and its place; for what follows a break also the line there."""
    text = f"{code.co_qualname} ({code.co_filename}:{code.co_firstlineno})"
    origin = origins.by_code.get(id(code))
    if origin is None:
        return text
    line = origin.original.neutral.position_at(origin.resume.target)[0]
    return text if line is None else f"{text} from line {line} on"


def _is_off(record: GuardRecord) -> bool:
    """Whether a guard reads what is switched off here; the guard on torch's state has it, too."""
    source = record.source
    return isinstance(source, ConstSource) and source.value is torch._C._is_torch_function_enabled


def reason(policy: Policy, code: CodeType, scope: Scope, state: GlobalState) -> str | None:
    """What fails of the guards of this code's latest graph; None if it has no graph. ``state`` is
    that of the thread before the capture, which changes it.
    """
    for records, shapes in reversed(policy.captured.get(code, ())):
        expected = next((r.expected for r in records if r.kind is GuardKind.GLOBAL_STATE), None)
        others = [r for r in records if r.kind is not GuardKind.GLOBAL_STATE and not _is_off(r)]
        failed = expected.difference(state) if expected is not None else None
        if failed is None:
            with torch._C.DisableTorchFunction():  # modes do not see what guards read
                failed = explain_failure(others, shapes, scope)
        if failed is not None:
            return failed
    return GONE if code in policy.captured else None
