"""Why a guard does not hold in a call: one line with the program's expression, what it was and what
it is now.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import FunctionType
from typing import Any

import sympy
from symshapes import is_of_handler, python_text

from .global_state import GlobalState
from .records import (
    ABSENT,
    FunctionFacts,
    GuardKind,
    GuardRecord,
    ShapeGuards,
    changed,
    raised,
    same_constant,
    same_key,
)
from .source import Scope, Source
from .step import describe
from .tensor_facts import TensorFacts

Failure = Callable[[str, Any, Any, Scope], str | None]


def shape_failure(shapes: ShapeGuards, scope: Scope) -> str | None:
    """The first condition on sizes that fails."""
    values: dict[sympy.Symbol, Any] = {}
    for symbol, source in shapes.symbols.items():
        try:
            values[symbol] = source.resolve(scope)
        except Exception as error:
            return f"{source.shown} was a number, now {raised(error)}"
        expected = int if symbol.is_integer else float
        found = type(values[symbol])
        if found is not expected:
            return f"type({source.shown}) was {expected.__name__}, now {describe(found)}"
    for guard in shapes.guards:
        try:
            held = guard.holds(values)
        except KeyError:
            held = False
        if not held:
            return _condition(shapes, guard.expr, guard.provenance, values)
    return None


def _condition(shapes: ShapeGuards, expr: Any, provenance: str, values: dict[Any, Any]) -> str:
    names = {symbol: source.shown for symbol, source in shapes.symbols.items()}
    used = sorted(expr.free_symbols & names.keys(), key=lambda symbol: names[symbol])
    condition = python_text(expr, names)
    if condition.startswith("(") and condition.endswith(")"):
        condition = condition[1:-1]
    now = ", ".join(f"{names[symbol]} is {values[symbol]}" for symbol in used)
    asked = f"; the condition is from {provenance}" if provenance.startswith("File ") else ""
    return f"{condition} was True, now False: {now}{asked}"


def failure(record: GuardRecord, scope: Scope) -> str | None:
    """Why a record does not hold in a call, or None if it does."""
    name = record.source.shown
    try:
        value = record.source.resolve(scope)
    except Exception as error:
        was = "there" if record.kind is GuardKind.CUSTOM else _expectation(record)
        return f"{name} was {was}, now {raised(error)}"
    return FAILURES[record.kind](name, value, record.expected, scope)


def holds(record: GuardRecord, scope: Scope) -> bool:
    """Whether a record holds in a call: :func:`failure` without its text."""
    try:
        value = record.source.resolve(scope)
    except Exception as error:
        if is_of_handler(error):
            raise
        return False
    if record.kind is GuardKind.CUSTOM:
        return bool(record.expected(value))
    return FAILURES[record.kind]("", value, record.expected, scope) is None


def _expectation(record: GuardRecord) -> str:
    expected = record.expected
    if record.kind is GuardKind.TENSOR:
        return f"a {expected.type.__name__}"
    if record.kind is GuardKind.FUNCTION_CODE:
        return expected.name
    if record.kind in (GuardKind.TYPE_IS, GuardKind.IDENTITY, GuardKind.EQUALS):
        return describe(expected)
    return "there"


def _compare(
    change: Callable[[Any], Any], same: Callable[[Any, Any], bool], what: str = "{}"
) -> Failure:
    def check(name: str, value: Any, expected: Any, scope: Scope) -> str | None:
        try:
            now = change(value)
        except Exception as error:
            if is_of_handler(error):
                raise
            return f"{what.format(name)} was {describe(expected)}, now {raised(error)}"
        return None if same(now, expected) else changed(what.format(name), expected, now)

    return check


def _keys(name: str, value: Any, expected: tuple[Any, ...], scope: Scope) -> str | None:
    try:
        now = tuple(value)
    except Exception as error:
        if is_of_handler(error):
            raise
        return f"the keys of {name} were {describe(list(expected))}, now {raised(error)}"
    if len(now) == len(expected) and all(map(same_key, now, expected)):
        return None
    return _members(f"the keys of {name}", list(expected), list(now))


def _members(what: str, old: list[Any], new: list[Any]) -> str:
    """What was added or removed; else both."""
    gone = [key for key in old if not any(key is other or key == other for other in new)]
    added = [key for key in new if not any(key is other or key == other for other in old)]
    if not gone and not added:
        return f"{what} were {describe(old)}, now {describe(new)}"
    parts = ((added, "are new"), (gone, "are gone"))
    texts = [f"{describe(keys)} {verb}" for keys, verb in parts if keys]
    return f"{what} were {describe(old)}, now {' and '.join(texts)}"


def _has_attr(wanted: bool) -> Failure:
    def check(name: str, value: Any, expected: str, scope: Scope) -> str | None:
        is_dict = isinstance(value, dict)
        names = value if is_dict else getattr(value, "__dict__", {})
        if (expected in names) is wanted:
            return None
        owner, _, rest = name.rpartition(".__dict__")
        if name in ("globals()", "builtins"):
            member = f"{expected} in {name}"
        elif is_dict and (rest or not owner):
            member = f"{name}[{expected!r}]"
        else:
            member = f"{owner if is_dict else name}.{expected}"
        was, now = ("set", "it is missing") if wanted else ("missing", None)
        return f"{member} was {was}, now {now or describe(names[expected])}"

    return check


def _aliased(wanted: bool) -> Failure:
    def check(name: str, value: Any, expected: Source, scope: Scope) -> str | None:
        if (value is expected.resolve(scope)) is wanted:
            return None
        return f"{name} is {expected.shown} was {wanted}, now {not wanted}"

    return check


def _function_code(name: str, value: Any, expected: FunctionFacts, scope: Scope) -> str | None:
    old = expected.name.rpartition("<locals>.")[2]
    if type(value) is not FunctionType:
        return f"{name} was the function {old}, now {describe(value)}"
    now = FunctionFacts.of(value)
    if now.code is not expected.code:
        code = now.code
        where = f"{describe(value)} ({code.co_filename}:{code.co_firstlineno})"
        return f"{name} was the function {old}, now another one, {where}"
    if now.defaults != expected.defaults:
        return f"{name} had {expected.defaults or 0} defaults, now {now.defaults or 0}"
    if now.keyword_defaults != expected.keyword_defaults:
        names, new = expected.keyword_defaults or (), now.keyword_defaults or ()
        return f"{name} had keyword-only defaults for {names}, now for {new}"
    return None


def _class_attr(name: str, value: Any, expected: tuple[str, Any], scope: Scope) -> str | None:
    attribute, wanted = expected
    if not isinstance(value, type):
        return f"{name} was a class, now {describe(value)}"
    found = next(
        (owner.__dict__[attribute] for owner in value.__mro__ if attribute in owner.__dict__),
        ABSENT,
    )
    if found is wanted:
        return None
    return changed(f"{name}.{attribute}", wanted, found)


def _custom(name: str, value: Any, expected: Callable[[Any], bool], scope: Scope) -> str | None:
    return None if expected(value) else expected.change(name, value)  # type: ignore[attr-defined]


def _finite(name: str, value: Any, expected: bool, scope: Scope) -> str | None:
    if type(value) is float and math.isfinite(value):
        return None
    return f"{name} was a finite float, now {describe(value)}"


def _tensor(name: str, value: Any, expected: TensorFacts, scope: Scope) -> str | None:
    return expected.failure(name, value)


def _state(name: str, value: GlobalState, expected: GlobalState, scope: Scope) -> str | None:
    return expected.difference(value)


FAILURES: dict[GuardKind, Failure] = {
    GuardKind.TYPE_IS: _compare(type, lambda a, b: a is b, "type({})"),
    GuardKind.IDENTITY: _compare(lambda v: v, lambda a, b: a is b),
    GuardKind.EQUALS: _compare(lambda v: v, same_constant),
    GuardKind.LENGTH: _compare(len, lambda a, b: a == b, "len({})"),
    GuardKind.DICT_KEYS: _keys,
    GuardKind.HAS_ATTR: _has_attr(True),
    GuardKind.NO_ATTR: _has_attr(False),
    GuardKind.TENSOR: _tensor,
    GuardKind.ALIASED: _aliased(True),
    GuardKind.NOT_ALIASED: _aliased(False),
    GuardKind.FUNCTION_CODE: _function_code,
    GuardKind.CLASS_ATTR: _class_attr,
    GuardKind.GLOBAL_STATE: _state,
    GuardKind.FINITE: _finite,
    GuardKind.CUSTOM: _custom,
}
