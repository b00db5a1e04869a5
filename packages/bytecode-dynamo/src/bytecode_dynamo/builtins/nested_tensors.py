"""Numbers that functions of nested tensors read from their offsets."""

from __future__ import annotations

from bytecode_dynamo.function_table import evaluates_call
from bytecode_dynamo.polyfills.nested_attention import longest_row
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.protocol import call_torch
from bytecode_dynamo.state.tracker import VariableTracker


@evaluates_call(longest_row)
def longest(ctx: Context, offsets: VariableTracker) -> VariableTracker:
    """An unbacked symbol: eager reads this number, too, whatever ``capture_scalar_outputs`` is."""
    ctx.env.allow_unbacked = True  # permanently: the graph contains such a number now
    lengths = call_torch(ctx, "diff", [offsets])
    return call_torch(ctx, "item", [call_torch(ctx, "max", [lengths])])
