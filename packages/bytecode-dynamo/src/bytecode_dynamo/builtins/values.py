"""Decimals, dates and times: immutable values, guarded by their text."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

from bytecode_dynamo.function_table import constructs_each
from bytecode_dynamo.guards.records import GuardKind
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


def require_arithmetic(ctx: Context, cls: type) -> None:
    """Guard on the precision and rounding of decimal arithmetic."""
    if cls is decimal.Decimal:
        rules = _arithmetic()
        ctx.guards.require(ConstSource(decimal), GuardKind.CUSTOM, lambda _: _arithmetic() == rules)


def _arithmetic() -> tuple[Any, ...]:
    now = decimal.getcontext()
    settings = ("prec", "rounding", "Emin", "Emax", "capitals", "clamp")
    return (*(getattr(now, name) for name in settings), tuple(now.traps.items()))


@constructs_each(*BY_TEXT)
def make_value(
    ctx: Context, cls: type, *args: VariableTracker, **named: VariableTracker
) -> VariableTracker:
    require_arithmetic(ctx, cls)
    return fold_call(ctx, cls, args, named)
