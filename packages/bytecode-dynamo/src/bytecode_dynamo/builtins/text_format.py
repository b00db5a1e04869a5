"""Formatting with ``%`` and ``str.format``: objects among the values are replaced by their text."""

from __future__ import annotations

import operator
import re

from bytecode_dynamo.function_table import evaluates_call
from bytecode_dynamo.marker import Verbatim
from bytecode_dynamo.polyfills import library as polyfills
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.protocol import call_known, call_polyfill, fold_call
from bytecode_dynamo.state.tracker import VariableTracker
from bytecode_dynamo.variables.constant import ConstantVariable, SymbolicVariable
from bytecode_dynamo.variables.mapping import DictVariable
from bytecode_dynamo.variables.sequence import TupleVariable
from bytecode_dynamo.variables.text import TextVariable, interpolated, text_of

TEXT_PLACES = re.compile(r"%(?:\((\w*)\))?[-+ #0]*(\*|\d+)?(?:\.(\*|\d+))?[hlL]?([a-zA-Z%])")


PLAIN = (ConstantVariable, SymbolicVariable, TextVariable)
"""Values that are formatted without running code of the program."""


def formatted(ctx: Context, template: ConstantVariable, given: VariableTracker) -> VariableTracker:
    """``template % given``, with objects replaced by their text."""
    if isinstance(given, DictVariable):
        return fold_call(ctx, operator.mod, [template, given], {})
    values = list(given.unpack(ctx)) if isinstance(given, TupleVariable) else [given]
    kinds = [
        kind
        for _, *stars, kind in TEXT_PLACES.findall(template.value)
        for kind in (*filter("*".__eq__, stars), kind)
        if kind != "%"
    ]
    for at, (kind, value) in enumerate(zip(kinds, values)):
        if kind in "rsa" and not isinstance(value, PLAIN):
            text = call_known(ctx, {"r": repr, "s": str, "a": ascii}[kind], [value], {})
            late = kind == "s" and isinstance(text, TextVariable)
            values[at] = text if late else ConstantVariable(Verbatim(text.as_constant(ctx)))
    return text_of(ctx, interpolated, [template, *values])


@evaluates_call(str.format)
def format_(
    ctx: Context, template: VariableTracker, *args: VariableTracker, **kwargs: VariableTracker
) -> VariableTracker:
    if not all(isinstance(value, PLAIN) for value in (template, *args, *kwargs.values())):
        return call_polyfill(ctx, polyfills.format_text, [template, *args], kwargs)
    if kwargs:
        return fold_call(ctx, str.format, [template, *args], kwargs)
    return text_of(ctx, str.format, [template, *args])
