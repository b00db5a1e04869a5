"""Calling: binding arguments, inlining Python functions, known callables, constructing objects."""

# The class is a part of Context, whose other parts its methods use.
# pyright: reportGeneralTypeIssues=false

from __future__ import annotations

import functools
import inspect
import math
import types
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from . import hook_policy
from .builtins import (
    collectives,
    construct,
    operators,
    other_compiler,
    overrides,
    torch_functions,
    wrapped,
)

from .builtins import (  # noqa: F401 (modules that register rules)  # isort: skip
    arrays, autograd, autograd_function, branching, class_statement, class_tests,
    construct_iterators, copying,
    generators, getters, module_hooks, objects, optimizers, python_random, references, reflection,
    saved_tensors,
    settings, transforms, triton_kernels, values,
)  # fmt: skip
from .builtins.registry import CODE_RULES, FUNCTIONS, apply_rule
from .builtins.size_arithmetic import function_of_size, is_number
from .bytecode import GENERATOR_FLAGS, RUNNING, UnsupportedCode
from .effects import Identity
from .errors import GraphBreak, ObservedException
from .evaluation import FrameExit
from .evaluator import run_inlined
from .frame import Frame, GlobalNames, decoded
from .source import AttrSource, ConstSource
from .variables import cached_function, reporting, tensor_setters, underlying  # noqa: F401 (register rules)
from .variables.base import VariableTracker
from .variables.callable import CallableVariable, ClassVariable, SuperVariable
from .variables.constant import ConstantVariable
from .variables.derived import native
from .variables.function import CellVariable, FunctionVariable
from .variables.generator import GeneratorVariable
from .variables.mapping import DictVariable, pairs_of
from .variables.sequence import ListVariable, SequenceVariable, TupleVariable
from .variables.sets import SetVariable
from .variables.tensor import TensorVariable
from .variables.text import TextVariable
from .variables.userobject import ExceptionVariable, UserObjectVariable

if TYPE_CHECKING:
    from .context import Context

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


class Calls:
    """The part of :class:`Context` that evaluates calls."""

    def get_attr(self: Context, owner: VariableTracker, name: str) -> VariableTracker:
        """``owner.name``."""
        if name == "__class__":
            return self.constant_class(owner.class_of(self))
        try:
            return owner.get_attr(self, name)
        except ObservedException as raised:
            error = raised.value
            if isinstance(error, ExceptionVariable) and issubclass(error.key.cls, AttributeError):
                error.note_missing(self, name, owner)
            raise

    def less(self: Context, left: VariableTracker, right: VariableTracker) -> bool:
        """``left < right`` as a Python bool."""
        return operators.compare(self, "<", left, right).truth(self)

    def alike(self: Context, left: VariableTracker, right: VariableTracker) -> bool:
        """``left is right or left == right``: how containers compare."""
        if isinstance(left, TextVariable) or isinstance(right, TextVariable):
            return self.equal(left, right)
        numbers = is_number(left) and is_number(right)  # whose identity may be unknown
        known = left is right or not numbers or (type(left) is type(right) is ConstantVariable)
        return (known and operators.is_same(self, left, right)) or self.equal(left, right)

    def equal(self: Context, left: VariableTracker, right: VariableTracker) -> bool:
        """``left == right`` as a Python bool."""
        return operators.compare(self, "==", left, right).truth(self)

    def binary(
        self: Context, symbol: str, left: VariableTracker, right: VariableTracker
    ) -> VariableTracker:
        """A binary operator."""
        return operators.binary(self, symbol, left, right)

    def product(self: Context, items: Sequence[VariableTracker]) -> VariableTracker:
        """The product of sizes."""
        total: VariableTracker = ConstantVariable(1)
        for item in items:
            total = operators.binary(self, "*", total, item)
        return total

    def symbolic_extreme(
        self: Context, symbol: str, left: VariableTracker, right: VariableTracker
    ) -> VariableTracker:
        """``max`` (symbol ``>``) or ``min`` of numbers of which one is symbolic."""
        function: Any = torch.sym_max if symbol == ">" else torch.sym_min
        return self.create(function(left.as_fake(self), right.as_fake(self)))

    # -- Python functions --------------------------------------------------------------------------

    def call_function(
        self: Context,
        function: FunctionVariable,
        args: Sequence[VariableTracker],
        kwargs: Mapping[str, VariableTracker],
    ) -> VariableTracker:
        """Inline a Python function."""
        rule = FUNCTIONS.find(function.value) if function.value is not None else None
        if rule is not None:
            return apply_rule(function.value, rule, self, args, kwargs)
        by_code = CODE_RULES.get(function.code)
        if by_code is not None:
            return by_code(self, function, list(args), dict(kwargs))
        for evaluate in (other_compiler.evaluate, collectives.evaluate):
            known = evaluate(self, function, list(args), dict(kwargs))
            if known is not None:
                return known
        if function.value is not None and not other_compiler.is_passed_through(function):
            if torch_functions.is_graph_function(function.value):
                return self.call_known(function.value, args, kwargs)
            original = wrapped.original_of(function.value)
            if original is not None:
                return self.wrap(original, ConstSource(original)).call(
                    self, list(args), dict(kwargs)
                )
            hook_policy.check_inlining(function.value)
        if self.depth >= self.config.inline_depth:
            raise GraphBreak("BD016", f"call of {function.name}")
        frame = self.new_frame(function, bind_arguments(self, function, args, kwargs))
        if function.code.co_flags & GENERATOR_FLAGS:
            if function.code.co_flags & inspect.CO_GENERATOR:
                made = (tuple(args), tuple(kwargs.items()))
                frame.parent = None  # which may hold the generator
                key = Identity(types.GeneratorType)
                return GeneratorVariable(
                    key, frame=frame, function=function, args=made, abandoned=self.abandoned
                )
            place = f"{function.code.co_filename}:{function.code.co_firstlineno}"
            raise GraphBreak("BD013", f"call of coroutine function {function.name} ({place})")
        return self.resume_frame(frame).value

    def resume_frame(
        self: Context, frame: Frame, raised: ObservedException | None = None
    ) -> FrameExit:
        """Run an inlined frame until it returns or yields; first raise an exception where it
        stands.
        """
        self.depth += 1
        frame.parent = self.frame
        try:
            return run_inlined(self, frame, raised)
        except RecursionError:
            raise GraphBreak(
                "BD016", f"call of {frame.function_name}: Python's recursion limit"
            ) from None
        finally:
            self.depth -= 1

    def new_frame(
        self: Context, function: FunctionVariable, slots: dict[str, VariableTracker]
    ) -> Frame:
        """A frame of a function about to be inlined."""
        try:
            code = decoded(function.code)
        except UnsupportedCode as error:
            raise GraphBreak("BD006", f"{function.name}: {error}") from None
        return Frame(
            code,
            self.names_of(function),
            slots,
            self.frame,
            closure=function.closure,
            function_name=function.name,
        )

    def names_of(self: Context, function: FunctionVariable) -> GlobalNames:
        """How a function's globals are read."""
        mapping = function.globals
        if mapping is self.root_names.mapping:
            return self.root_names
        names = self.other_names.get(id(mapping))
        if names is None:
            builtins = mapping.get("__builtins__", self.root_names.builtins)
            builtins = builtins if isinstance(builtins, dict) else vars(builtins)
            names = GlobalNames(mapping, builtins, False, hook_policy.globals_source(mapping))
            self.other_names[id(mapping)] = names
        return names

    def globals_of(self: Context, function: FunctionVariable) -> VariableTracker:
        """``function.__globals__``."""
        return reflection.GlobalsVariable(self.names_of(function))

    def finish_send(self: Context, frame: Frame, result: VariableTracker) -> None:
        """The stack after a delegated generator is done."""
        if RUNNING.send_jump_effect < 0:
            frame.stack.pop()
        frame.push(result)

    def stop_iteration(self: Context, iterator: VariableTracker) -> NoReturn:
        """Raise the StopIteration of a finished iterator, with what a generator returned."""
        result = iterator.result(self) if isinstance(iterator, GeneratorVariable) else self.none
        self.raise_observed(StopIteration, [] if result.is_none else [result])

    def zero_argument_super(self: Context, frame: Frame) -> VariableTracker:
        """``super()`` in a method."""
        cell = frame.slots.get("__class__")
        first = frame.slots.get(frame.code.varnames[0]) if frame.code.argcount else None
        cell = self.real(cell) if cell is not None else None
        if not isinstance(cell, CellVariable) or first is None:
            self.raise_error(RuntimeError, "super(): no arguments")
        cls = cell.contents(self)
        owner = self.real(first)
        if isinstance(owner, CellVariable):
            owner = owner.contents(self) or self.none
        assert cls is not None
        return SuperVariable(cls.as_constant(self), owner)

    # -- known callables ---------------------------------------------------------------------------

    def call_known(
        self: Context,
        function: Any,
        args: Sequence[VariableTracker],
        kwargs: Mapping[str, VariableTracker],
    ) -> VariableTracker:
        """A call of a built-in or torch function."""
        rule = FUNCTIONS.find(function)
        if rule is not None:
            return apply_rule(function, rule, self, args, kwargs)
        if isinstance(function, type):
            return self.construct(function, args, kwargs)
        if torch_functions.is_graph_function(function):
            return torch_functions.call(self, "call_function", function, list(args), dict(kwargs))
        receiver = getattr(function, "__self__", None)
        if isinstance(receiver, (types.GetSetDescriptorType, property)) and function.__name__ in (
            "__get__",
            "__set__",
        ):
            descriptor: Any = receiver
            if (
                isinstance(descriptor, property)
                and function.__name__ == "__get__"
                and not isinstance(args[0], TensorVariable)
            ):
                getter = self.wrap(descriptor.fget, AttrSource(ConstSource(descriptor), "fget"))
                return (
                    self.create(descriptor) if args[0].is_none else getter.call(self, [args[0]], {})
                )
            name = str(
                getattr(descriptor, "__name__", None) or getattr(descriptor.fget, "__name__", None)
            )
            return (
                self.get_attr(args[0], name)
                if function.__name__ == "__get__"
                else self._set_natively(name, *args)
            )
        owner = getattr(function, "__objclass__", None)
        if owner is not None and args:
            return self._call_descriptor(function, owner, args, kwargs)
        if isinstance(receiver, type):
            return construct.call_class_method(self, receiver, function, args, kwargs)
        module = (getattr(function, "__module__", None) or "").partition(".")[0]
        if module == "math":
            made = self._rounded(function, args)
            args = [self._as_number(function, arg) for arg in args] if made is None else args
            made = made or function_of_size(self, function, args)
            if made is not None:
                return made
        if module in PURE_MODULES:
            return self.fold(function, args, kwargs)
        name = CallableVariable(function).describe()
        if module == "torch":
            raise GraphBreak("BD018", f"call of {name}")
        raise GraphBreak(BREAK_IDS.get(module, "BD002"), f"call of {name}")

    def _set_natively(
        self: Context, name: str, owner: VariableTracker, value: VariableTracker
    ) -> VariableTracker:
        """``torch.Tensor.data.__set__(owner, value)``: whatever the class has for the name."""
        if not isinstance(owner, TensorVariable):
            raise GraphBreak(
                "BD020", f"assignment to {name!r} of {owner.describe()} by its descriptor"
            )
        tensor_setters.set_by_torch(self, owner, name, value)
        return self.none

    def _rounded(
        self: Context, function: Any, args: Sequence[VariableTracker]
    ) -> VariableTracker | None:
        """What an object's own ``__floor__``, ``__ceil__`` or ``__trunc__`` gives, whatever that
        is.
        """
        if (
            function not in (math.floor, math.ceil, math.trunc)
            or not args
            or not isinstance(args[0], UserObjectVariable)
        ):
            return None
        own = args[0].special(self, f"__{function.__name__}__")
        return own.call(self, [], {}) if own is not None else None

    def _as_number(self: Context, function: Any, value: VariableTracker) -> VariableTracker:
        """What a function of math makes of an object first."""
        if not isinstance(value, UserObjectVariable):
            return value
        own = value.special(self, f"__{function.__name__}__")
        return (
            own.call(self, [], {})
            if own is not None
            else construct.converted(self, float, [value]) or value
        )

    def _call_descriptor(
        self: Context,
        function: Any,
        owner: type,
        args: Sequence[VariableTracker],
        kwargs: Mapping[str, VariableTracker],
    ) -> VariableTracker:
        """``list.append(xs, x)``: a method of a class, called with its object."""
        name = function.__name__
        first, rest = native(args[0]), list(args[1:])
        if isinstance(first, ClassVariable) and owner is type and name == "__call__":
            return construct.construct_user(self, first.value, rest, dict(kwargs))
        if (
            isinstance(first, ClassVariable)
            and owner is type
            and name not in operators.DUNDERS | {"mro": 0, "__subclasses__": 0}
        ):
            raise GraphBreak("BD002", f"type.{name} of {first.describe()}")
        if (
            isinstance(first, ExceptionVariable)
            and issubclass(owner, BaseException)
            and name == "__init__"
            and not kwargs
        ):
            first.set_attr(self, "args", self.create_tuple(rest))
            return self.none
        if isinstance(first, UserObjectVariable) and not first.key.cls.__module__.startswith(
            "torch.nn"
        ):
            raise GraphBreak("BD007", f"{owner.__name__}.{name} of {first.describe()}")
        rule = None if isinstance(first, UserObjectVariable) else operators.DUNDERS.get(name)
        if rule is not None:
            result = apply_rule(function, rule, self, [first, *rest], kwargs)
        elif isinstance(
            first, (SequenceVariable, DictVariable, SetVariable)
        ) and not first.has_method(name):
            if not isinstance(first, TupleVariable):
                raise GraphBreak("BD007", f"{owner.__name__}.{name} of {first.describe()}")
            return self.fold(function, args, kwargs)
        else:
            result = first.call_method(self, name, rest, dict(kwargs))
        return args[0] if result is first else result

    def torch_call(
        self: Context,
        op: str,
        target: Any,
        args: Sequence[VariableTracker],
        kwargs: Mapping[str, VariableTracker],
    ) -> VariableTracker:
        """Record a torch function or tensor method."""
        return torch_functions.call(self, op, target, list(args), dict(kwargs))

    def dispatch_override(
        self: Context,
        op: str,
        target: Any,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker | None:
        """What ``__torch_function__`` makes of a torch call; None when nobody has one."""
        return overrides.dispatch(self, op, target, args, kwargs)

    def construct(
        self: Context,
        cls: type,
        args: Sequence[VariableTracker],
        kwargs: Mapping[str, VariableTracker],
    ) -> VariableTracker:
        """``cls(*args, **kwargs)``."""
        return construct.construct(self, cls, list(args), dict(kwargs))

    def new_object(self: Context, cls: type) -> VariableTracker:
        """``object.__new__(cls)``."""
        return construct.new_object(self, cls)

    def polyfill(
        self: Context,
        function: Any,
        args: Sequence[VariableTracker],
        kwargs: Mapping[str, VariableTracker],
    ) -> VariableTracker:
        """Evaluate one of our own Python functions in place of one written in C."""
        code, variables = function.__code__, function.__globals__
        defaults = tuple(map(ConstantVariable, function.__defaults__ or ()))
        named = tuple(
            (name, ConstantVariable(value))
            for name, value in (function.__kwdefaults__ or {}).items()
        )
        made = FunctionVariable(
            code, variables, function.__name__, defaults, named, key=Identity(types.FunctionType)
        )
        return self.call_function(made, args, kwargs)

    def apply_rule(
        self: Context, name: str, rule: Any, args: Sequence[VariableTracker], kwargs: Any
    ) -> VariableTracker:
        """Evaluate a method by its rule."""
        return apply_rule(name, rule, self, args, kwargs)

    # -- protocols ---------------------------------------------------------------------------------

    def until_stop(self: Context, advance: Callable[[], VariableTracker]) -> VariableTracker | None:
        """Call something like ``__next__``; None when it raises StopIteration."""
        try:
            return advance()
        except ObservedException as raised:
            if issubclass(raised.value.python_type(), StopIteration):
                return None
            raise

    def next_or_raise(self: Context, iterator: VariableTracker) -> VariableTracker:
        """``next(iterator)``."""
        item = iterator.next(self)
        return self.stop_iteration(iterator) if item is None else item

    def pairs_of(
        self: Context, value: VariableTracker
    ) -> list[tuple[VariableTracker, VariableTracker]]:
        """Entries of a mapping or an iterable of pairs."""
        return pairs_of(self, value)

    def find_method(self: Context, owner: VariableTracker, name: str) -> VariableTracker | None:
        """A method of an object, or None when it has no such attribute."""
        if isinstance(owner, (ListVariable, TensorVariable)) or not hasattr(
            owner.python_type(), name
        ):
            return None
        return self.get_attr(owner, name)

    def special_method(
        self: Context, owner: VariableTracker, name: str, args: Sequence[VariableTracker]
    ) -> VariableTracker:
        """``owner.__getitem__(key)`` and its relatives, by the capability of the tracker."""
        return operators.DUNDERS[name](self, owner, *args) or self.none


@functools.lru_cache(maxsize=4096)
def signature_stub(code: types.CodeType) -> types.FunctionType:
    """A function with the parameters of a code object that returns what each of them is given."""
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
    ctx: Context,
    function: FunctionVariable,
    args: Sequence[VariableTracker],
    kwargs: Mapping[str, VariableTracker],
) -> dict[str, VariableTracker]:
    """Local variables of a call; a mismatch raises TypeError in the program, in the interpreter's
    words.
    """
    code = function.code
    defaults, keyword_defaults = function.current_defaults(ctx)
    stub = types.FunctionType(signature_stub(code).__code__, {}, function.name, defaults)
    stub.__kwdefaults__ = keyword_defaults
    stub.__qualname__ = getattr(function.value, "__qualname__", code.co_qualname)
    try:
        values = stub(*args, **kwargs)
    except TypeError as error:
        ctx.raise_error(TypeError, *error.args)
    slots = dict(zip(code.co_varnames, values))
    for name, value in slots.items():
        if isinstance(value, tuple):
            slots[name] = ctx.create_tuple(value)
        elif isinstance(value, dict):
            slots[name] = ctx.create_dict(
                [(ConstantVariable(key), held) for key, held in value.items()]
            )
    return slots
