"""Classes that the program makes: a class made while capturing stands for the one that each call
makes anew.

Its functions are stand-ins of the same code; a name that holds something else that is not known
while capturing has a placeholder. Both lead back to their trackers, so that attributes are found by
Python's own rules, and what libraries do to a class (``dataclass``, ``Enum``) is done to the
stand-in.
"""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import enum
import functools
import sys
import types
import typing
from dataclasses import dataclass, field
from typing import Any

from bytecode_dynamo.errors import GraphBreak, NotConstant
from bytecode_dynamo.function_table import (
    constructs,
    constructs_each,
    evaluates_call,
    evaluates_each,
)
from bytecode_dynamo.reconstruction import rebuilding
from bytecode_dynamo.reconstruction.value_builder import ValueBuilder
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.effects import DELETED, Identity
from bytecode_dynamo.state.protocol import (
    constants,
    new_class,
    new_dict,
    new_frame,
    pairs_of,
    raise_error,
    raising,
    resume_frame,
)
from bytecode_dynamo.state.tracker import VariableTracker
from bytecode_dynamo.variables.base import realize
from bytecode_dynamo.variables.callable import (
    CallableVariable,
    KnownObjectVariable,
    NamespaceVariable,
)
from bytecode_dynamo.variables.class_object import ClassVariable
from bytecode_dynamo.variables.constant import ConstantVariable, SliceVariable
from bytecode_dynamo.variables.function import CellVariable, FunctionVariable, PartialVariable
from bytecode_dynamo.variables.mapping import DictVariable
from bytecode_dynamo.variables.sequence import ListVariable, RangeVariable, TupleVariable, new_tuple
from bytecode_dynamo.variables.userobject import UserObjectVariable

Step = tuple[Any, tuple[Any, ...], dict[str, Any]]


@dataclass
class Recipe:
    """A chain of calls (function, arguments, keywords), each of which takes the previous result as
    its first argument.
    """

    made: Any
    """The stand-in for the result while capturing."""
    steps: tuple[Step, ...]
    key: Identity = field(init=False)

    def __post_init__(self) -> None:
        self.key = Identity(type(self.made))

    def build(self, gen: ValueBuilder) -> None:
        """Push the result, which is built once."""
        if self.key in gen.built:
            gen.emitter.load_fast(gen.built[self.key])
            return
        self._complete_functions(gen)
        name: str | None = None
        for function, args, named in self.steps:
            if name is not None:
                gen.emitter.load_callee_const(function)
                gen.emitter.load_fast(name)
                gen.push_all((*args, *named.values()))
                gen.emitter.call(1 + len(args) + len(named), list(named))
            else:
                gen.call(KnownObjectVariable(function), args, list(named.items()))
            name = gen.temporary()
            gen.emitter.store_fast(name)
        assert name is not None
        gen.emitter.load_fast(name)
        gen.keep(self.key)
        for attribute, held in gen.ctx.effects.attributes(self.key).items():
            gen.pending.append(
                lambda attribute=attribute, held=held: self._set(gen, attribute, held)
            )

    def _complete_functions(self, gen: ValueBuilder) -> None:
        """Build functions with attributes set by the program, such as ``__isabstractmethod__``."""
        gen.begin(self.key)
        for _, args, _ in self.steps:
            for held in (
                [value for _, value in pairs_of(gen.ctx, args[-1])]
                if args and isinstance(args[-1], DictVariable)
                else ()
            ):
                if (
                    isinstance(held, FunctionVariable)
                    and held.key is not None
                    and gen.ctx.effects.attributes(held.key)
                ):
                    gen.spill(held)
                    gen.flush()

    def _set(self, gen: ValueBuilder, attribute: str, held: Any) -> None:
        gen.emitter.load_callee_const(delattr if held is DELETED else setattr)
        gen.emitter.load_fast(gen.built[self.key])
        gen.load_const(attribute)
        if held is not DELETED:
            gen(held)
        gen.emitter.call(2 + (held is not DELETED))
        gen.emitter.pop()


Value = VariableTracker
QUIET_MODULES = (
    "builtins",
    "abc",
    "enum",
    "typing",
    "collections",
    "functools",
    "_collections_abc",
)


class Placeholder:
    """The value in a stand-in class for one that is unknown while capturing."""


@evaluates_call(builtins.__build_class__)
def build_class(
    ctx: Context, body: Value, name: Value, /, *bases: Value, **options: Value
) -> Value:
    """A class statement: its body is evaluated in a new namespace."""
    if not isinstance(body, FunctionVariable):
        raise GraphBreak(
            "BD019",
            "a class statement with another body",
            "define the class outside the compiled region",
        )
    frame = new_frame(ctx, body, {})
    frame.namespace = new_dict(ctx, [])
    resume_frame(ctx, frame)
    return make_class(ctx, name.as_constant(ctx), list(bases), frame.namespace, options)


def make_class(
    ctx: Context, name: str, bases: list[Value], namespace: DictVariable, options: dict[str, Value]
) -> Value:
    """``metaclass(name, bases, namespace, **options)``."""
    held = {key.as_constant(ctx): realize(ctx, value) for key, value in pairs_of(ctx, namespace)}
    cell = held.pop("__classcell__", None)
    given = tuple(base.as_constant(ctx) for base in bases)
    known = {key: value.as_constant(ctx) for key, value in options.items()}
    _require_quiet(given, known)
    stand_ins = {key: stand_in(ctx, value, key.startswith("__")) for key, value in held.items()}
    with raising(ctx, TypeError, ValueError):
        made = rebuilding.make_class(name, given, known, stand_ins)
    if isinstance(made, enum.EnumMeta) and any(
        isinstance(value, Placeholder) for value in stand_ins.values()
    ):
        raise GraphBreak(
            "BD019",
            f"an enumeration of values that are not known: {name}",
            "define the class outside the compiled region",
        )
    pairs = [(ConstantVariable(key), value) for key, value in options.items()]
    entries = [(ConstantVariable(key), value) for key, value in held.items()]
    args = [ConstantVariable(name), new_tuple(bases), new_dict(ctx, pairs), new_dict(ctx, entries)]
    recipe = ctx.made[id(made)] = Recipe(made, ((rebuilding.make_class, tuple(args), {}),))
    ctx.identities[id(made)] = recipe.key
    cls = ClassVariable(made)
    if isinstance(cell, CellVariable):
        ctx.effects.write(cell.key, cls)
    for key, value in held.items():
        if isinstance(value, UserObjectVariable) and hasattr(value.python_type(), "__set_name__"):
            value.call_method(ctx, "__set_name__", [cls, ConstantVariable(key)], {})
    return cls


def _require_quiet(bases: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Break if creating the class runs functions of the program."""
    resolved = types.resolve_bases(bases)
    meta = types.prepare_class("made", resolved, dict(options))[0]
    if not _is_quiet(meta):
        raise GraphBreak(
            "BD019",
            f"a class statement with the metaclass {meta.__qualname__}",
            "define the class outside the compiled region",
        )
    for one in (one for base in resolved for one in base.__mro__):
        if "__init_subclass__" in one.__dict__ and not _is_quiet(one):
            raise GraphBreak(
                "BD019",
                f"a class statement that {one.__qualname__} is told of",
                "define the class outside the compiled region",
            )


def _is_quiet(cls: type) -> bool:
    """Whether a class is Python's or torch's own."""
    known = cls.__module__ in QUIET_MODULES or cls.__module__.partition(".")[0] == "torch"
    return known and getattr(sys.modules.get(cls.__module__), cls.__name__, None) is cls


def stand_in(ctx: Context, value: Value, is_setting: bool = False) -> Any:
    """The stand-in for a value in a stand-in class."""
    value = realize(ctx, value)
    if isinstance(value, FunctionVariable) and value.value is None:
        made = rebuilding.make_function(
            value.code, value.globals, tuple(stand_in(ctx, default) for default in value.defaults),
            {key: stand_in(ctx, default) for key, default in value.keyword_defaults},
            tuple(types.CellType() for _ in value.closure),
        )  # fmt: skip
        if value.annotations is not None:
            made.__annotations__ = stand_in(ctx, value.get_attr(ctx, "__annotations__"), True)
        if value.annotate is not None:
            object.__setattr__(made, "__annotate__", stand_in(ctx, value.annotate))
        for name, held in (
            ctx.effects.attributes(value.key).items() if value.key is not None else ()
        ):
            setattr(made, name, stand_in(ctx, held, True))
        ctx.effects.remember(made, value)
        return made
    if is_setting and isinstance(value, DictVariable):
        return {stand_in(ctx, key): stand_in(ctx, held, True) for key, held in pairs_of(ctx, value)}
    if is_setting and isinstance(value, ListVariable) and value.key.cls is list:
        return [stand_in(ctx, held, True) for held in value.unpack(ctx)]
    if _is_lasting(ctx, value):
        with contextlib.suppress(NotConstant):
            return value.as_constant(ctx)
    elif any(hasattr(value.python_type(), name) for name in ("__get__", "__set__", "__delete__")):
        raise GraphBreak(
            "BD019",
            f"a class statement with the descriptor {value.describe()}",
            "define the class outside the compiled region",
        )
    placeholder = Placeholder()
    ctx.effects.remember(placeholder, value)
    return placeholder


def _is_lasting(ctx: Context, value: Value) -> bool:
    """Whether a value is immutable."""
    if isinstance(value, TupleVariable):
        return all(_is_lasting(ctx, realize(ctx, item)) for item in value.items)
    known = (ConstantVariable, KnownObjectVariable, FunctionVariable, RangeVariable, SliceVariable)
    return isinstance(value, known) or value.python_type() is frozenset


# -- what a class statement holds, and what is done to classes -------------------------------------


def call_known(ctx: Context, function: Any, /, *args: Value, **named: Value) -> Value:
    """The result of a call on stand-ins, with the recipe to create it again."""
    with raising(ctx, TypeError, ValueError):
        made = function(
            *(stand_in(ctx, arg) for arg in args),
            **{key: stand_in(ctx, arg) for key, arg in named.items()},
        )
    ctx.made[id(made)] = Recipe(made, ((function, args, named),))
    return NamespaceVariable(made)


constructs_each(
    *(property, staticmethod, classmethod, enum.auto),
    *(functools.cached_property, functools.partialmethod),
)(call_known)
evaluates_each(dataclasses.field)(call_known)


def _changes_property(name: str) -> Any:
    def rule(ctx: Context, prop: Value, function: Value) -> Value:
        if not isinstance(prop, NamespaceVariable) or id(prop.value) not in ctx.made:
            raise GraphBreak("BD019", f"{name} of a property that exists")
        return call_known(ctx, getattr(property, name), prop, function)

    return rule


for _name in ("getter", "setter", "deleter"):
    evaluates_call(getattr(property, _name))(_changes_property(_name))


@evaluates_each(
    *(dataclasses.dataclass, functools.total_ordering, enum.unique),
    *(typing.runtime_checkable, typing.final),
)
def decorate_class(
    ctx: Context, function: Any, cls: Value | None = None, **options: Value
) -> Value:
    """Apply a class decorator to the stand-in."""
    if cls is None:
        keywords = new_dict(ctx, [(ConstantVariable(name), x) for name, x in options.items()])
        return PartialVariable(CallableVariable(function), (), keywords)
    recipe = ctx.made.get(id(cls.as_constant(ctx)))
    if recipe is None:
        raise GraphBreak("BD019", f"{function.__name__} of {cls.describe()}, which exists")
    with raising(ctx, TypeError, ValueError):
        made = function(recipe.made, **constants(ctx, [], options)[1])
    changed = ctx.made[id(made)] = Recipe(made, (*recipe.steps, (function, (), options)))
    ctx.identities[id(made)] = changed.key
    return ClassVariable(made)


@constructs(type)
def make_type(ctx: Context, value: Value, /, *rest: Value, **named: Value) -> Value:
    """``type(value)`` or ``type(name, bases, namespace)``."""
    if not rest:
        return new_class(ctx, value.python_type())
    if len(rest) != 2:
        return raise_error(ctx, TypeError, "type() takes 1 or 3 arguments")
    bases, namespace = rest
    if not isinstance(namespace, DictVariable):
        raise GraphBreak(
            "BD019",
            "a class made by type() from another mapping",
            "define the class outside the compiled region",
        )
    return make_class(ctx, value.as_constant(ctx), bases.unpack(ctx), namespace, named)
