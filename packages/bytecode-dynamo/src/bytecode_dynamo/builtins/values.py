"""Decimals, dates and times: immutable values, guarded by their text."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

from bytecode_dynamo.function_table import constructs_each
from bytecode_dynamo.guards.records import Answer, GuardKind
from bytecode_dynamo.guards.source import ConstSource, Source
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.protocol import fold_call
from bytecode_dynamo.state.tracker import VariableTracker
from bytecode_dynamo.variables.constant import BY_TEXT, constant_by_text
from bytecode_dynamo.variables.wrap import tracker_for, wrap_object


@tracker_for(decimal.Decimal, datetime.date, datetime.time, datetime.timedelta, datetime.timezone)
def wrap_by_text(ctx: Context, value: Any, source: Source) -> VariableTracker:
    if type(value) not in BY_TEXT or not isinstance(
        getattr(value, "tzinfo", None), (datetime.timezone, type(None))
    ):
        return wrap_object(ctx, value, source)
    require_arithmetic(ctx, type(value))
    return constant_by_text(ctx, value, source)


_SETTINGS = ("prec", "rounding", "Emin", "Emax", "capitals", "clamp")


def require_arithmetic(ctx: Context, cls: type) -> None:
    """Guard on the precision and rounding of decimal arithmetic."""
    if cls is decimal.Decimal:
        rules = _arithmetic()
        parts = tuple(f"{{}}.getcontext().{name}" for name in (*_SETTINGS, "traps"))
        same = Answer("{}.getcontext()", lambda _: _arithmetic(), rules, parts=parts)
        ctx.guards.require(ConstSource(decimal), GuardKind.CUSTOM, same)


def _arithmetic() -> tuple[Any, ...]:
    now = decimal.getcontext()
    return (*(getattr(now, name) for name in _SETTINGS), tuple(now.traps.items()))


@constructs_each(*BY_TEXT)
def make_value(
    ctx: Context, cls: type, *args: VariableTracker, **named: VariableTracker
) -> VariableTracker:
    require_arithmetic(ctx, cls)
    return fold_call(ctx, cls, args, named)
