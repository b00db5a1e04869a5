"""What captures log, each kind of record to a logger of its own.

``fields`` of a record say the same as its message, for handlers that write data.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import asdict
from types import CodeType

from bytecode_dynamo.errors import BreakRecord
from bytecode_dynamo.guards.records import GuardRecord, ShapeGuards
from bytecode_dynamo.guards.text import format_guards

from .recompilation import where

_breaks = logging.getLogger("bytecode_dynamo.graph_breaks")
_guards = logging.getLogger("bytecode_dynamo.guards")
_recompiles = logging.getLogger("bytecode_dynamo.recompiles")


def log_break(what: str, record: BreakRecord) -> None:
    """A graph that ends, or a frame that is not captured."""
    fields = {"id": record.id, "reason": record.reason, "stack": [*map(asdict, record.stack)]}
    _breaks.info("%s: %s", what, record.format(), extra={"fields": fields})


def logs_recompiles() -> bool:
    """Whether anybody reads why code is compiled again, which takes time to find out."""
    return _recompiles.isEnabledFor(logging.INFO)


def log_recompile(code: CodeType, reason: str | None) -> None:
    """A function that is compiled once more, and why nothing compiled fitted."""
    fields = {**_place(code), "reason": reason}
    _recompiles.info("recompiled %s: %s", where(code), reason, extra={"fields": fields})


def log_guards(code: CodeType, records: Iterable[GuardRecord], shapes: ShapeGuards) -> None:
    """The guards of a new entry."""
    if _guards.isEnabledFor(logging.DEBUG):
        text = format_guards(records, shapes)
        fields = {**_place(code), "guards": text.splitlines()}
        _guards.debug("guards of %s:\n%s", where(code), text, extra={"fields": fields})


def _place(code: CodeType) -> dict[str, object]:
    return {"function": code.co_qualname, "file": code.co_filename, "line": code.co_firstlineno}
