"""Formatting with ``%``: objects among the values are replaced by their text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from bytecode_dynamo.variables.base import VariableTracker
from bytecode_dynamo.variables.constant import ConstantVariable, SymbolicVariable
from bytecode_dynamo.variables.mapping import DictVariable
from bytecode_dynamo.variables.sequence import TupleVariable

if TYPE_CHECKING:
    from bytecode_dynamo.context import Context

TEXT_PLACES = re.compile(r"%(?:\((\w*)\))?[-+ #0]*(\*|\d+)?(?:\.(\*|\d+))?[hlL]?([a-zA-Z%])")


class Verbatim(str):
    """A text that is its own ``repr``."""

    __repr__ = str.__str__


def formatted_texts(ctx: Context, template: str, given: VariableTracker) -> VariableTracker:
    """What ``template % given`` formats, with the text of objects in their place where it asks for text."""
    if isinstance(given, DictVariable):
        return given
    values = list(given.unpack(ctx)) if isinstance(given, TupleVariable) else [given]
    kinds = [
        kind for _, *stars, kind in TEXT_PLACES.findall(template) for kind in (*filter("*".__eq__, stars), kind) if kind != "%"
    ]
    for at, (kind, value) in enumerate(zip(kinds, values)):
        if kind in "rsa" and not isinstance(value, (ConstantVariable, SymbolicVariable)):
            text = ctx.call_known({"r": repr, "s": str, "a": ascii}[kind], [value], {})
            values[at] = ConstantVariable(Verbatim(text.as_constant(ctx)))
    return ctx.create_tuple(values)
