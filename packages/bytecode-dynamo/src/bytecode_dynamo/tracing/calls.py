"""Calling: binding arguments, inlining Python functions, known callables, constructing objects."""

from __future__ import annotations

import functools
import inspect
import math
import types
from typing import Any

from bytecode_dynamo.builtins import (  # fmt: skip
    collectives,
    construct,
    construct_builtins,
    distributed_tensors,
    other_compiler,
    special_methods,
    torch_functions,
    wrapped,
)
from bytecode_dynamo.builtins.size_arithmetic import function_of_size
from bytecode_dynamo.bytecode import GENERATOR_FLAGS, UnsupportedCode
from bytecode_dynamo.bytecode.decode import decoded
from bytecode_dynamo.errors import GraphBreak, ObservedException
from bytecode_dynamo.function_table import CODE_RULES, FUNCTIONS
from bytecode_dynamo.guards.source import AttrSource, ConstSource
from bytecode_dynamo.hook import policy as hook_policy
from bytecode_dynamo.state import protocol
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.effects import Identity
from bytecode_dynamo.state.frame import Frame, FrameExit
from bytecode_dynamo.state.protocol import (
    NO_KEYWORDS,
    apply_rule,
    call_function,
    call_known,
    call_torch,
    fold_call,
    get_attribute,
    instantiate,
    new_dict,
    new_frame,
    new_value,
    raise_error,
    resume_frame,
    wrap_value,
)
from bytecode_dynamo.state.tracker import Args, Kwargs, VariableTracker
from bytecode_dynamo.variables import tensor_setters
from bytecode_dynamo.variables.callable import CallableVariable
from bytecode_dynamo.variables.class_object import ClassVariable
from bytecode_dynamo.variables.constant import NONE, ConstantVariable
from bytecode_dynamo.variables.derived import native
from bytecode_dynamo.variables.exception import ExceptionVariable
from bytecode_dynamo.variables.function import FunctionVariable
from bytecode_dynamo.variables.generator import GeneratorVariable
from bytecode_dynamo.variables.input_state import TORCHS
from bytecode_dynamo.variables.mapping import DictVariable
from bytecode_dynamo.variables.sequence import SequenceVariable, TupleVariable, new_tuple
from bytecode_dynamo.variables.sets import SetVariable
from bytecode_dynamo.variables.tensor import TensorVariable
from bytecode_dynamo.variables.userobject import UserObjectVariable

from .evaluator import run_inlined

PURE_MODULES = frozenset(
    {
        "math",
        "cmath",
        "builtins",
        "_operator",
        "operator",
        "_bisect",
        "unicodedata",
        "_string",
        "_struct",
    }
)
BREAK_IDS = {
    "numpy": "BD005",
    "io": "BD003",
    "logging": "BD003",
    "warnings": "BD003",
    "time": "BD003",
}


@protocol.call_function.implement
def _call_function(
    ctx: Context, function: FunctionVariable, args: Args, kwargs: Kwargs = NO_KEYWORDS
) -> VariableTracker:
    """Inline a Python function."""
    rule = FUNCTIONS.find(function.value) if function.value is not None else None
    if rule is not None:
        return apply_rule(ctx, function.value, rule, args, kwargs)
    by_code = CODE_RULES.get(function.code)
    if by_code is not None:
        return by_code(ctx, function, list(args), dict(kwargs))
    for evaluate in (
        other_compiler.evaluate,
        collectives.evaluate,
        distributed_tensors.evaluate,
    ):
        known = evaluate(ctx, function, list(args), dict(kwargs))
        if known is not None:
            return known
    if function.value is not None and not other_compiler.is_passed_through(function):
        if torch_functions.is_graph_function(function.value):
            return call_known(ctx, function.value, args, kwargs)
        original = wrapped.original_of(function.value)
        if original is not None:
            return wrap_value(ctx, original, ConstSource(original)).call(
                ctx, list(args), dict(kwargs)
            )
        hook_policy.check_inlining(function.value)
    if ctx.depth >= ctx.config.inline_depth:
        raise GraphBreak("BD016", f"call of {function.name}")
    frame = new_frame(ctx, function, bind_arguments(ctx, function, args, kwargs))
    if function.code.co_flags & GENERATOR_FLAGS:
        if function.code.co_flags & inspect.CO_GENERATOR:
            made = (tuple(args), tuple(kwargs.items()))
            frame.parent = None  # its locals may hold the generator
            key = Identity(types.GeneratorType)
            return GeneratorVariable(
                key, frame=frame, function=function, args=made, abandoned=ctx.abandoned
            )
        place = f"{function.code.co_filename}:{function.code.co_firstlineno}"
        raise GraphBreak(
            "BD013",
            f"call of coroutine function {function.name} ({place})",
            "call and await it outside the compiled region",
        )
    return resume_frame(ctx, frame).value


@protocol.resume_frame.implement
def _resume_frame(ctx: Context, frame: Frame, raised: ObservedException | None = None) -> FrameExit:
    """Run an inlined frame until it returns or yields; first raise an exception where it
    stands.
    """
    ctx.depth += 1
    frame.parent = ctx.frame
    try:
        return run_inlined(ctx, frame, raised)
    except RecursionError:
        raise GraphBreak(
            "BD016",
            f"call of {frame.function_name}: Python's recursion limit",
            "raise it with sys.setrecursionlimit, or use a loop",
        ) from None
    finally:
        ctx.depth -= 1


@protocol.new_frame.implement
def _new_frame(
    ctx: Context, function: FunctionVariable, slots: dict[str, VariableTracker]
) -> Frame:
    """A frame of a function about to be inlined."""
    home = str(function.globals.get("__name__"))
    ctx.evaluated.codes.setdefault(id(function.code), (function.code, home))
    try:
        code = decoded(function.code)
    except UnsupportedCode as error:
        raise GraphBreak("BD006", f"{function.name}: {error}") from None
    return Frame(
        code,
        ctx.names_of(function.globals),
        slots,
        ctx.frame,
        closure=function.closure,
        function_name=function.name,
        function=function,
    )


@protocol.call_polyfill.implement
def _call_polyfill(
    ctx: Context, function: Any, args: Args, kwargs: Kwargs = NO_KEYWORDS
) -> VariableTracker:
    """Evaluate a polyfill in place of a function written in C."""
    code, variables = function.__code__, function.__globals__
    defaults = tuple(map(ConstantVariable, function.__defaults__ or ()))
    named = tuple(
        (name, ConstantVariable(value)) for name, value in (function.__kwdefaults__ or {}).items()
    )
    made = FunctionVariable(
        code, variables, function.__name__, defaults, named, key=Identity(types.FunctionType)
    )
    return call_function(ctx, made, args, kwargs)


@protocol.call_known.implement
def _call_known(
    ctx: Context, function: Any, args: Args, kwargs: Kwargs = NO_KEYWORDS
) -> VariableTracker:
    """A call of a built-in or torch function."""
    rule = FUNCTIONS.find(function)
    if rule is not None:
        return apply_rule(ctx, function, rule, args, kwargs)
    if isinstance(function, type):
        return instantiate(ctx, function, args, kwargs)
    if torch_functions.is_graph_function(function):
        return call_torch(ctx, function, args, kwargs)
    receiver = getattr(function, "__self__", None)
    is_descriptor = isinstance(receiver, (types.GetSetDescriptorType, property))
    if is_descriptor and function.__name__ in ("__get__", "__set__"):
        return _call_accessor(ctx, function.__name__, receiver, args)
    owner = getattr(function, "__objclass__", None)
    if owner is not None and args:
        return _call_descriptor(ctx, function, owner, args, kwargs)
    if isinstance(receiver, type):
        return construct.call_class_method(ctx, receiver, function, args, kwargs)
    module = (getattr(function, "__module__", None) or "").partition(".")[0]
    if module == "math":
        made = _rounded(ctx, function, args)
        args = [_as_number(ctx, function, arg) for arg in args] if made is None else args
        made = made or function_of_size(ctx, function, args)
        if made is not None:
            return made
    if module in PURE_MODULES:
        return fold_call(ctx, function, args, kwargs)
    name = CallableVariable(function).describe()
    if module == "torch":
        raise GraphBreak("BD018", f"call of {name}")
    raise GraphBreak(BREAK_IDS.get(module, "BD002"), f"call of {name}")


def _call_accessor(ctx: Context, method: str, descriptor: Any, args: Args) -> VariableTracker:
    """``descriptor.__get__(owner)`` or ``descriptor.__set__(owner, value)``."""
    is_property = isinstance(descriptor, property)
    if method == "__get__" and is_property and not isinstance(args[0], TensorVariable):
        getter = wrap_value(ctx, descriptor.fget, AttrSource(ConstSource(descriptor), "fget"))
        if args[0].is_none:
            return new_value(ctx, descriptor)
        return getter.call(ctx, [args[0]], {})
    name = str(getattr(descriptor, "__name__", None) or getattr(descriptor.fget, "__name__", None))
    if method == "__set__":
        return _set_natively(ctx, name, *args)
    owner = args[0]
    if isinstance(owner, TensorVariable) and descriptor is TORCHS[owner.torch_class].get(name):
        return owner.get_by_torch(ctx, name)
    return get_attribute(ctx, owner, name)


def _set_natively(
    ctx: Context, name: str, owner: VariableTracker, value: VariableTracker
) -> VariableTracker:
    """``torch.Tensor.data.__set__(owner, value)``, ignoring an override in the class."""
    if not isinstance(owner, TensorVariable):
        raise GraphBreak("BD020", f"assignment to {name!r} of {owner.describe()} by its descriptor")
    tensor_setters.set_by_torch(ctx, owner, name, value)
    return NONE


def _rounded(ctx: Context, function: Any, args: Args) -> VariableTracker | None:
    """The result of an object's own ``__floor__``, ``__ceil__`` or ``__trunc__``."""
    if (
        function not in (math.floor, math.ceil, math.trunc)
        or not args
        or not isinstance(args[0], UserObjectVariable)
    ):
        return None
    own = args[0].special(ctx, f"__{function.__name__}__")
    return own.call(ctx, [], {}) if own is not None else None


def _as_number(ctx: Context, function: Any, value: VariableTracker) -> VariableTracker:
    """The number that a math function converts an object to."""
    if not isinstance(value, UserObjectVariable):
        return value
    own = value.special(ctx, f"__{function.__name__}__")
    if own is not None:
        return own.call(ctx, [], {})
    return construct_builtins.converted(ctx, float, [value]) or value


def _call_descriptor(
    ctx: Context, function: Any, owner: type, args: Args, kwargs: Kwargs
) -> VariableTracker:
    """``list.append(xs, x)``: a method of a class, called with its object."""
    name = function.__name__
    first, rest = native(args[0]), list(args[1:])
    if isinstance(first, ClassVariable) and owner is type and name == "__call__":
        return construct.construct_user(ctx, first.value, rest, dict(kwargs))
    if (
        isinstance(first, ClassVariable)
        and owner is type
        and name not in special_methods.DUNDERS | {"mro": 0, "__subclasses__": 0}
    ):
        raise GraphBreak("BD002", f"type.{name} of {first.describe()}")
    if (
        isinstance(first, ExceptionVariable)
        and issubclass(owner, BaseException)
        and name == "__init__"
        and not kwargs
    ):
        first.set_attr(ctx, "args", new_tuple(rest))
        return NONE
    if isinstance(first, UserObjectVariable) and not first.key.cls.__module__.startswith(
        "torch.nn"
    ):
        raise GraphBreak("BD007", f"{owner.__name__}.{name} of {first.describe()}")
    rule = None if isinstance(first, UserObjectVariable) else special_methods.DUNDERS.get(name)
    if rule is not None:
        result = apply_rule(ctx, function, rule, [first, *rest], kwargs)
    elif isinstance(first, (SequenceVariable, DictVariable, SetVariable)) and not first.has_method(
        name
    ):
        if not isinstance(first, TupleVariable):
            raise GraphBreak("BD007", f"{owner.__name__}.{name} of {first.describe()}")
        return fold_call(ctx, function, args, kwargs)
    else:
        result = first.call_method(ctx, name, rest, dict(kwargs))
    return args[0] if result is first else result


@functools.lru_cache(maxsize=4096)
def signature_stub(code: types.CodeType) -> types.FunctionType:
    """A function with the parameters of a code object that returns each argument by parameter."""
    names = [
        name if name.isidentifier() else f"_{position}"
        for position, name in enumerate(code.co_varnames)
    ]
    count, only = code.co_argcount, code.co_kwonlyargcount
    has_rest, has_named = (
        bool(code.co_flags & inspect.CO_VARARGS),
        bool(code.co_flags & inspect.CO_VARKEYWORDS),
    )
    parts = names[:count]
    if code.co_posonlyargcount:
        parts.insert(code.co_posonlyargcount, "/")
    place = count + only
    if has_rest or only:
        parts.append(f"*{names[place]}" if has_rest else "*")
    parts += names[count:place]
    if has_named:
        parts.append(f"**{names[place + has_rest]}")
    result = ", ".join(names[: place + has_rest + has_named])
    namespace: dict[str, Any] = {}
    exec(f"def stub({', '.join(parts)}): return [{result}]", namespace)
    return namespace["stub"]


def bind_arguments(
    ctx: Context, function: FunctionVariable, args: Args, kwargs: Kwargs
) -> dict[str, VariableTracker]:
    """The local variables of a call; a mismatch raises TypeError in the program."""
    code = function.code
    defaults, keyword_defaults = function.current_defaults(ctx)
    stub = types.FunctionType(signature_stub(code).__code__, {}, function.name, defaults)
    stub.__kwdefaults__ = keyword_defaults
    stub.__qualname__ = getattr(function.value, "__qualname__", code.co_qualname)
    try:
        values = stub(*args, **kwargs)
    except TypeError as error:
        raise_error(ctx, TypeError, *error.args)
    slots = dict(zip(code.co_varnames, values))
    for name, value in slots.items():
        if isinstance(value, tuple):
            slots[name] = new_tuple(value)
        elif isinstance(value, dict):
            slots[name] = new_dict(
                ctx, [(ConstantVariable(key), held) for key, held in value.items()]
            )
    return slots
