"""``repr``, ``str``, ``format``, and formatting with ``%`` and ``str.format``."""

from __future__ import annotations

import operator
import re
import types
from typing import TYPE_CHECKING, Any

from bytecode_dynamo.errors import GraphBreak, NotConstant
from bytecode_dynamo.function_table import evaluates_call
from bytecode_dynamo.marker import Verbatim
from bytecode_dynamo.polyfills import library as polyfills
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.protocol import call_known, call_polyfill, fold_call, raise_error
from bytecode_dynamo.state.tracker import VariableTracker
from bytecode_dynamo.variables.attribute import find_special
from bytecode_dynamo.variables.class_object import ClassVariable
from bytecode_dynamo.variables.constant import ConstantVariable, SymbolicVariable
from bytecode_dynamo.variables.mapping import DictVariable
from bytecode_dynamo.variables.sequence import TupleVariable
from bytecode_dynamo.variables.tensor import TENSOR_METHODS, TensorVariable
from bytecode_dynamo.variables.text import TextVariable, changes, interpolated, text_of
from bytecode_dynamo.variables.userobject import UserObjectVariable

if TYPE_CHECKING:
    from bytecode_dynamo.state.context import Context


def text_rule(function: Any) -> Any:
    """The rule of ``repr``, ``str`` or ``format``: constants, containers, objects with their own
    method.
    """

    def rule(ctx: Context, value: VariableTracker, *args: VariableTracker) -> VariableTracker:
        name = {repr: "__repr__", str: "__str__", format: "__format__"}.get(function, "__repr__")
        if isinstance(value, TensorVariable):
            raise GraphBreak(
                "BD004",
                f"text of {value.describe()}",
                "format the tensor outside the compiled region, or only its shape and dtype",
            )
        if isinstance(value, UserObjectVariable):
            plain, cls = vars(object), value.python_type()
            empty = not args or (isinstance(args[0], ConstantVariable) and args[0].value == "")
            found = find_special(ctx, cls, "__format__")[1]
            if name == "__format__" and found is plain[name] and not empty:
                raise_error(
                    ctx, TypeError, f"unsupported format string passed to {cls.__name__}.__format__"
                )
            if name == "__format__" and (
                found is plain[name] or (empty and isinstance(found, types.MethodDescriptorType))
            ):
                name, args = "__str__", ()
            if name == "__str__" and find_special(ctx, cls, name)[1] is plain[name]:
                name = "__repr__"
            if find_special(ctx, cls, name)[1] is not plain[name]:
                return value.ask(ctx, name, list(args))
        if isinstance(value, ClassVariable):
            own = value.of_metaclass(ctx, name, list(args))
            own = (
                value.of_metaclass(ctx, "__str__", [])
                if own is None and name == "__format__"
                else own
            )
            own = value.of_metaclass(ctx, "__repr__", []) if own is None else own
            if own is not None:
                return own
        if changes(value):
            return text_of(ctx, function, [value, *args])
        try:
            given = [item.as_constant(ctx) for item in (value, *args)]
        except NotConstant:
            return _container_text(ctx, value)
        return fold_call(ctx, function, [ConstantVariable(item) for item in given])

    return rule


def _container_text(ctx: Context, value: VariableTracker) -> VariableTracker:
    """The text of a container whose items may have their own text."""
    rule = CONTAINER_TEXTS.get(value.python_type())
    if rule is None:
        raise GraphBreak("BD007", f"text of {value.describe()}")
    return call_polyfill(ctx, rule, [value])


CONTAINER_TEXTS: dict[type, Any] = {
    list: polyfills.describe_list,
    tuple: polyfills.describe_tuple,
    dict: polyfills.describe_dict,
    types.MappingProxyType: polyfills.describe_proxy,
    **{type(view): polyfills.describe_view for view in ({}.keys(), {}.values(), {}.items())},
}


for _function in (repr, format, ascii):
    evaluates_call(_function)(text_rule(_function))


TENSOR_METHODS |= {
    f"__{_function.__name__}__": text_rule(_function) for _function in (repr, str, format)
}


TEXT_PLACES = re.compile(r"%(?:\((\w*)\))?[-+ #0]*(\*|\d+)?(?:\.(\*|\d+))?[hlL]?([a-zA-Z%])")


PLAIN = (ConstantVariable, SymbolicVariable, TextVariable)
"""Values that are formatted without running code of the program."""


def formatted(ctx: Context, template: ConstantVariable, given: VariableTracker) -> VariableTracker:
    """``template % given``, with objects replaced by their text."""
    if isinstance(given, DictVariable):
        return fold_call(ctx, operator.mod, [template, given])
    values = list(given.unpack(ctx)) if isinstance(given, TupleVariable) else [given]
    kinds = [
        kind
        for _, *stars, kind in TEXT_PLACES.findall(template.value)
        for kind in (*filter("*".__eq__, stars), kind)
        if kind != "%"
    ]
    for at, (kind, value) in enumerate(zip(kinds, values)):
        if kind in "rsa" and not isinstance(value, PLAIN):
            text = call_known(ctx, {"r": repr, "s": str, "a": ascii}[kind], [value])
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
