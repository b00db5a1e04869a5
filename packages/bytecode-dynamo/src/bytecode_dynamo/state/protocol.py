"""The protocol of trackers: operations declared here, below them, and implemented by the rooms
above.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Generic, NoReturn, ParamSpec, TypeVar

from symshapes import DataDependentError, GuardOnDataDependent

from bytecode_dynamo.class_flags import type_name
from bytecode_dynamo.errors import GraphBreak, NotConstant, ObservedException
from bytecode_dynamo.guards.source import Source
from bytecode_dynamo.rule_table import RuleFor, positions_of

from .context import Context
from .effects import Identity
from .frame import Frame, FrameExit
from .tracker import Args, Kwargs, VariableTracker

_P = ParamSpec("_P")
_R = TypeVar("_R")
NO_KEYWORDS: Kwargs = types.MappingProxyType({})


class Operation(Generic[_P, _R]):
    """An operation that one module above implements."""

    def __init__(self, declaration: Callable[_P, _R]) -> None:
        self.__doc__ = declaration.__doc__
        self.__name__ = declaration.__name__
        self._rule: Callable[_P, _R] | None = None

    def implement(self, rule: Callable[_P, _R]) -> Callable[_P, _R]:
        """Decorator for the implementation. Raises ValueError for a second one."""
        if self._rule is not None:
            raise ValueError(f"two rules for {self.__name__}")
        self._rule = rule
        return rule

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        assert self._rule is not None
        return self._rule(*args, **kwargs)


# -- trackers of values ------------------------------------------------------------------------


@Operation
def wrap_value(ctx: Context, value: Any, source: Source) -> VariableTracker:
    """The tracker of an existing value; adds the guards that its type needs."""
    ...


@Operation
def wrap_contents(
    ctx: Context, value: Any, source: Source, contents: VariableTracker, base: type
) -> VariableTracker:
    """The tracker of an existing object with built-in contents: the contents' own if its class
    is built in.
    """
    ...


@Operation
def wrap_callable(ctx: Context, value: Any, source: Source) -> VariableTracker:
    """The tracker of a function written in C."""
    ...


@Operation
def new_value(ctx: Context, value: Any) -> VariableTracker:
    """The tracker of a value computed while evaluating; its containers are new objects."""
    ...


@Operation
def new_class(ctx: Context, cls: type) -> VariableTracker:
    """The tracker of a class that other guards pin."""
    ...


@Operation
def new_list(
    ctx: Context, items: Sequence[VariableTracker], cls: type = list, maxlen: int | None = None
) -> VariableTracker:
    """A new list (or deque)."""
    ...


@Operation
def new_dict(
    ctx: Context, pairs: Sequence[tuple[VariableTracker, VariableTracker]], cls: type = dict
) -> VariableTracker:
    """A new dict; of equal keys the first stays, with the last value."""
    ...


@Operation
def new_iterator(
    ctx: Context, items: Sequence[VariableTracker], base: VariableTracker | None = None
) -> VariableTracker:
    """An iterator over fixed items."""
    ...


@Operation
def iterate_list(ctx: Context, base: Any) -> VariableTracker:
    """An iterator over a list or deque."""
    ...


@Operation
def iterate_range(ctx: Context, value: range) -> VariableTracker:
    """An iterator over a range."""
    ...


@Operation
def pairs_of(ctx: Context, value: VariableTracker) -> list[tuple[VariableTracker, VariableTracker]]:
    """Entries of a mapping or an iterable of pairs."""
    ...


# -- attributes and operators ------------------------------------------------------------------


@Operation
def get_attribute(ctx: Context, owner: VariableTracker, name: str) -> VariableTracker:
    """``owner.name``."""
    ...


@Operation
def class_attribute(ctx: Context, owner: VariableTracker, cls: type, name: str) -> VariableTracker:
    """``owner.name`` by its class only."""
    ...


@Operation
def binary_operation(
    ctx: Context, symbol: str, left: VariableTracker, right: VariableTracker
) -> VariableTracker:
    """A binary operator."""
    ...


@Operation
def is_less(ctx: Context, left: VariableTracker, right: VariableTracker) -> bool:
    """``left < right`` as a Python bool."""
    ...


@Operation
def is_alike(ctx: Context, left: VariableTracker, right: VariableTracker) -> bool:
    """``left is right or left == right``: how containers compare."""
    ...


@Operation
def call_special(ctx: Context, owner: VariableTracker, name: str, args: Args) -> VariableTracker:
    """``owner.__getitem__(key)`` and its relatives, by the capability of the tracker."""
    ...


# -- calls -------------------------------------------------------------------------------------


@Operation
def call_function(
    ctx: Context, function: Any, args: Args, kwargs: Kwargs = NO_KEYWORDS
) -> VariableTracker:
    """Inline a Python function."""
    ...


@Operation
def resume_frame(ctx: Context, frame: Frame, raised: ObservedException | None = None) -> FrameExit:
    """Run an inlined frame until it returns or yields; first raise an exception where it
    stands.
    """
    ...


@Operation
def new_frame(ctx: Context, function: Any, slots: dict[str, VariableTracker]) -> Frame:
    """A frame of a function about to be inlined."""
    ...


@Operation
def call_known(
    ctx: Context, function: Any, args: Args, kwargs: Kwargs = NO_KEYWORDS
) -> VariableTracker:
    """A call of a built-in or torch function."""
    ...


@Operation
def instantiate(ctx: Context, cls: type, args: Args, kwargs: Kwargs) -> VariableTracker:
    """``cls(*args, **kwargs)``."""
    ...


@Operation
def call_torch(
    ctx: Context, target: Any, args: Args, kwargs: Kwargs = NO_KEYWORDS
) -> VariableTracker:
    """Record a torch function, or a tensor method by its name."""
    ...


@Operation
def dispatch_override(
    ctx: Context, op: str, target: Any, args: Args, kwargs: Kwargs
) -> VariableTracker | None:
    """The result of ``__torch_function__`` for a torch call; None if nothing has one."""
    ...


@Operation
def call_polyfill(
    ctx: Context, function: Any, args: Args, kwargs: Kwargs = NO_KEYWORDS
) -> VariableTracker:
    """Evaluate a polyfill in place of a function written in C."""
    ...


@Operation
def globals_of(ctx: Context, function: Any) -> VariableTracker:
    """``function.__globals__``."""
    ...


def apply_rule(
    ctx: Context, function: Any, rule: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> VariableTracker:
    """Evaluate a call by its rule. Arguments that the rule does not accept break the graph:
    eager mode judges them.
    """
    if kwargs and not isinstance(function, str):
        args, kwargs = _by_position(ctx, function, rule, args, kwargs)
    if isinstance(rule, RuleFor):
        rule, args = rule.rule, (rule.key, *args)
    try:
        return rule(ctx, *args, **kwargs) or new_value(ctx, None)
    except TypeError as error:
        if error.__traceback__ is None or error.__traceback__.tb_next is not None:
            raise
        raise GraphBreak(
            "BD007", f"{getattr(function, '__name__', function)} with these arguments: {error}"
        ) from None


def _by_position(
    ctx: Context, function: Any, rule: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """A call's arguments, with those by position that the rule names otherwise."""
    bound = 1
    if isinstance(rule, RuleFor):
        bound, rule = 2, rule.rule
    missing = positions_of(function, rule, bound, args, kwargs)
    named, placed = dict(kwargs), list(args)
    for parameter in missing:
        if parameter.name in named:
            placed.append(named.pop(parameter.name))
        elif parameter.default is not parameter.empty:
            placed.append(new_value(ctx, parameter.default))
        else:
            return args, kwargs
    return placed, named


def fold_call(
    ctx: Context, function: Callable[..., Any], args: Args, kwargs: Kwargs = NO_KEYWORDS
) -> VariableTracker:
    """Call a pure function on known values now; its exception is raised in the program."""
    try:
        values, named = constants(ctx, args, kwargs)
    except NotConstant as error:
        name = getattr(function, "__name__", str(function))
        raise GraphBreak("BD007", f"{name} of {error}") from None
    try:
        result = function(*values, **named)
    except Exception as error:
        raise_error(ctx, type(error), *error.args)
    return new_value(ctx, result)


# -- exceptions --------------------------------------------------------------------------------


@Operation
def new_exception(ctx: Context, cls: type, args: Args) -> VariableTracker:
    """A new exception object."""
    ...


@Operation
def new_constant(ctx: Context, value: Any) -> VariableTracker:
    """The tracker of an immutable value, or of the text of another."""
    ...


def handled_exception(ctx: Context) -> VariableTracker | None:
    """The exception of the innermost handler."""
    frame = ctx.frame
    while frame is not None and not frame.handled:
        frame = frame.parent
    return frame.handled[-1] if frame is not None else None


def observed(ctx: Context, error: VariableTracker) -> ObservedException:
    """The raise of an exception; the exception being handled becomes its context."""
    handled = handled_exception(ctx)
    key = error.identity()
    if handled is not None and handled is not error and isinstance(key, Identity):
        ctx.effects.write((key, "__context__"), handled)
    return ObservedException(error)


def raise_exception(ctx: Context, cls: type, args: Args) -> NoReturn:
    """Raise an exception in the evaluated program."""
    raise observed(ctx, new_exception(ctx, cls, args))


def raise_error(ctx: Context, cls: type, *args: Any) -> NoReturn:
    """Raise an exception with constant arguments in the evaluated program."""
    raise_exception(ctx, cls, [new_constant(ctx, arg) for arg in args])


def raise_no_attribute(ctx: Context, owner: type | str, name: str) -> NoReturn:
    """Raise the AttributeError for an object of a class, or for what is described as
    ``owner``.
    """
    what = owner if isinstance(owner, str) else f"{type_name(owner)!r} object"
    raise_error(ctx, AttributeError, f"{what} has no attribute {name!r}")


@contextmanager
def raising(ctx: Context, *errors: type[Exception]) -> Iterator[None]:
    """Raise these errors of the block in the evaluated program."""
    try:
        yield
    except errors as error:
        raise_error(ctx, type(error), *error.args)


# -- iteration and decisions -------------------------------------------------------------------


def stop_iteration(ctx: Context, iterator: VariableTracker) -> NoReturn:
    """Raise the StopIteration of a finished iterator, with a generator's return value."""
    result = iterator.result(ctx)
    raise_exception(ctx, StopIteration, [] if result is None or result.is_none else [result])


def next_item(ctx: Context, iterator: VariableTracker) -> VariableTracker:
    """``next(iterator)``."""
    item = iterator.next(ctx)
    return stop_iteration(ctx, iterator) if item is None else item


def constants(ctx: Context, args: Args, kwargs: Kwargs) -> tuple[list[Any], dict[str, Any]]:
    """The Python values of a call's arguments; raises NotConstant if one is unknown."""
    values = [arg.as_constant(ctx) for arg in args]
    return values, {name: value.as_constant(ctx) for name, value in kwargs.items()}


def constant_of(ctx: Context, value: VariableTracker, what: str) -> Any:
    """The Python value of a tracker; breaks the graph, naming ``what``, if it is unknown."""
    try:
        return value.as_constant(ctx)
    except NotConstant:
        raise GraphBreak("BD007", f"{value.describe()} as {what}") from None


def decide(ctx: Context, compute: Callable[[], Any], what: str) -> Any:
    """A Python value computed from fake values; may add guards on sizes, or break the graph."""
    try:
        with ctx.mode:
            return compute()
    except (DataDependentError, GuardOnDataDependent):
        raise GraphBreak("BD001", f"the value of {what} decides what happens next") from None
    except (TypeError, ValueError, ZeroDivisionError, OverflowError, RuntimeError) as error:
        return raise_error(ctx, type(error), *error.args)


def written_as(function: Callable[..., Any]) -> Callable[..., VariableTracker]:
    """The rule that evaluates a polyfill in place of a function written in C."""
    return lambda ctx, *args, **named: call_polyfill(ctx, function, args, named)


def until_stop(advance: Callable[[], VariableTracker]) -> VariableTracker | None:
    """Call something like ``__next__``; None when it raises StopIteration."""
    try:
        return advance()
    except ObservedException as raised:
        if issubclass(raised.value.python_type(), StopIteration):
            return None
        raise
