"""``repr``, ``str`` and ``format``."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from bytecode_dynamo.errors import GraphBreak, NotConstant
from bytecode_dynamo.function_table import evaluates_call
from bytecode_dynamo.polyfills import library as polyfills
from bytecode_dynamo.state.protocol import call_polyfill, fold_call, raise_error
from bytecode_dynamo.state.tracker import VariableTracker
from bytecode_dynamo.variables.attribute import find_special
from bytecode_dynamo.variables.class_object import ClassVariable
from bytecode_dynamo.variables.constant import ConstantVariable
from bytecode_dynamo.variables.tensor import TENSOR_METHODS, TensorVariable
from bytecode_dynamo.variables.text import changes, text_of
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
            raise GraphBreak("BD004", f"text of {value.describe()}")
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
        return fold_call(ctx, function, [ConstantVariable(item) for item in given], {})

    return rule


def _container_text(ctx: Context, value: VariableTracker) -> VariableTracker:
    """The text of a container whose items may have their own text."""
    rule = CONTAINER_TEXTS.get(value.python_type())
    if rule is None:
        raise GraphBreak("BD007", f"text of {value.describe()}")
    return call_polyfill(ctx, rule, [value], {})


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
