"""Functions, existing or created while evaluating; bound methods; closure cells."""

from __future__ import annotations

import functools
import types
from collections.abc import Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any

from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.guards.records import Answer, GuardKind
from bytecode_dynamo.guards.source import (
    AttrSource,
    CellSource,
    ConstSource,
    DefaultsSource,
    ItemSource,
    Source,
)
from bytecode_dynamo.reconstruction import rebuilding
from bytecode_dynamo.reconstruction.value_builder import ValueBuilder
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.effects import MISSING, Identity
from bytecode_dynamo.state.protocol import (
    call_function,
    class_attribute,
    globals_of,
    new_dict,
    new_value,
    pairs_of,
    raise_error,
    raise_no_attribute,
    wrap_value,
)
from bytecode_dynamo.state.tracker import VariableTracker

from .base import Args, BoundRuleVariable, KeyedVariable, Kwargs, LazyVariable, Variable, realize
from .constant import NONE, ConstantVariable
from .context import TorchModeVariable
from .sequence import new_tuple
from .wrap import tracker_for, wrap_object

KEPT_APART = (
    *("__module__", "__doc__", "__defaults__", "__kwdefaults__"),
    *("__annotations__", "__annotate__", "__type_params__", "__name__", "__qualname__"),
)
"""Attributes of functions that are not in their ``__dict__``."""
DEFERS_ANNOTATIONS = "__annotate__" in vars(types.FunctionType)
VALUE_FORMAT = 1  # of annotationlib, which earlier versions lack


@dataclass(frozen=True, slots=True, eq=False)
class CellVariable(KeyedVariable):
    """A closure cell; its contents are in the effects (MISSING when empty)."""

    variable: str = ""
    """The variable of the root frame that this cell belongs to, or empty."""

    def contents(self, ctx: Context) -> VariableTracker | None:
        """The contents, or None if the cell is empty."""
        held = ctx.effects.read(self.key)
        return None if held is MISSING else realize(ctx, held)

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        held = self.contents(ctx)
        if not hasattr(types.CellType, name):
            return raise_no_attribute(ctx, types.CellType, name)
        if name != "cell_contents":
            raise GraphBreak("BD014", f"attribute {name!r} of a cell")
        return raise_error(ctx, ValueError, "Cell is empty") if held is None else held

    def set_attr(self, ctx: Context, name: str, value: VariableTracker) -> None:
        if name != "cell_contents":
            raise GraphBreak("BD020", f"assignment to {name!r} of a cell")
        ctx.effects.write(self.key, value)

    def reconstruct(self, gen: ValueBuilder) -> None:
        """Push one of the frame's own cells, or a new one to be filled later."""
        if self.variable:
            gen.frame_cells[self.variable] = self
            gen.emitter.load_closure(self.variable)
            return
        gen.call_const(types.CellType)
        gen.keep(self.key)
        held = self.contents(gen.ctx)
        if held is not None:
            gen.pending.append(partial(_fill_cell, gen, gen.built[self.key], held))


def _fill_cell(gen: ValueBuilder, name: str, held: VariableTracker) -> None:
    gen(held)
    gen.emitter.load_fast(name)
    gen.emitter.store_attr("cell_contents")


@tracker_for(types.CellType)
def wrap_cell(ctx: Context, value: types.CellType, source: Source) -> VariableTracker:
    ctx.guards.require(source, GuardKind.TYPE_IS, types.CellType)
    key = Identity(types.CellType, value, source)
    try:
        held: Any = LazyVariable(value.cell_contents, source=CellSource(source))
    except ValueError:
        same = Answer("{} is set", lambda cell: not is_empty_cell(cell), False)
        ctx.guards.require(source, GuardKind.CUSTOM, same)
        held = MISSING
    ctx.effects.set_initial(key, held)
    return ctx.effects.remember(value, CellVariable(key, source=source))


def is_empty_cell(cell: types.CellType) -> bool:
    """Whether a cell has no contents."""
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False


@dataclass(frozen=True, slots=True, eq=False)
class FunctionVariable(Variable):
    """A Python function. ``value`` is the existing function, or None for one created while
    evaluating.
    """

    code: types.CodeType
    globals: dict[str, Any]
    name: str
    defaults: tuple[VariableTracker, ...] = ()
    keyword_defaults: tuple[tuple[str, VariableTracker], ...] = ()
    closure: tuple[VariableTracker, ...] = ()
    value: Any = None
    key: Identity | None = None
    annotations: VariableTracker | None = None
    """A tuple of names and values, alternating."""
    annotate: VariableTracker | None = None
    """The function that computes the annotations (CPython 3.14)."""

    def python_type(self) -> type:
        return types.FunctionType

    def describe(self) -> str:
        return f"function {self.name}"

    def identity(self) -> object:
        return self.value if self.value is not None or self.key is None else self.key

    def as_constant(self, ctx: Context) -> Any:
        if self.value is None:
            return Variable.as_constant(self, ctx)
        return self.value

    def hash_key(self, ctx: Context) -> Hashable:
        return self.identity()

    def call(self, ctx: Context, args: Args, kwargs: Kwargs) -> VariableTracker:
        return call_function(ctx, self, args, kwargs)

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        written = ctx.effects.read((self.key, name)) if self.key is not None else MISSING
        if written is not MISSING:
            return written
        if name in ("__name__", "__qualname__"):
            if self.value is not None and self.source is not None:
                return wrap_value(ctx, getattr(self.value, name), AttrSource(self.source, name))
            return ConstantVariable(
                self.name
                if name == "__name__"
                else getattr(self.value, name, self.code.co_qualname)
            )
        if name == "__code__":
            return ConstantVariable(self.code)
        if name == "__get__":
            return BoundRuleVariable(self, name)
        if name == "__globals__":
            return globals_of(ctx, self)
        if self.value is None:
            return self._attribute_of_new(ctx, name)
        assert self.source is not None
        if name == "__dict__":
            return self._existing_dict(ctx, self.source)
        if name in self.value.__dict__:
            return wrap_value(
                ctx,
                self.value.__dict__[name],
                ItemSource(AttrSource(self.source, "__dict__"), name),
            )
        if name in KEPT_APART and hasattr(self.value, name):
            return wrap_value(ctx, getattr(self.value, name), AttrSource(self.source, name))
        if not hasattr(self.value, name):
            ctx.guards.require(self.source, GuardKind.NO_ATTR, name)
            return raise_no_attribute(ctx, types.FunctionType, name)
        raise GraphBreak("BD014", f"attribute {name!r} of {self.describe()}")

    def _existing_dict(self, ctx: Context, source: Source) -> VariableTracker:
        if self.key is not None and ctx.effects.attributes(self.key):
            raise GraphBreak(
                "BD014", f"__dict__ of {self.describe()}, whose attributes are assigned to"
            )
        return wrap_value(ctx, self.value.__dict__, AttrSource(source, "__dict__"))

    def _attribute_of_new(self, ctx: Context, name: str) -> VariableTracker:
        if name == "__module__":
            return new_value(ctx, self.globals.get("__name__"))
        if name == "__doc__":
            return new_value(
                ctx,
                self.code.co_consts[0]
                if self.code.co_consts and isinstance(self.code.co_consts[0], str)
                else None,
            )
        if name == "__dict__":
            held = ctx.effects.attributes(self.key).items() if self.key is not None else ()
            return new_dict(
                ctx,
                [(ConstantVariable(key), value) for key, value in held if key not in KEPT_APART],
            )
        if name == "__type_params__":
            return new_tuple([])
        if name == "__defaults__":
            return new_tuple(self.defaults) if self.defaults else NONE
        if name == "__kwdefaults__":
            pairs = [(ConstantVariable(key), value) for key, value in self.keyword_defaults]
            return new_dict(ctx, pairs) if pairs else NONE
        if name == "__annotations__":
            annotate = self.get_attr(ctx, "__annotate__") if DEFERS_ANNOTATIONS else NONE
            if not annotate.is_none:
                return annotate.call(ctx, [ConstantVariable(VALUE_FORMAT)], {})
            pairs = self.annotations.unpack(ctx) if self.annotations is not None else []
            return new_dict(ctx, list(zip(pairs[::2], pairs[1::2])))
        if name == "__annotate__" and DEFERS_ANNOTATIONS:
            return self.annotate or NONE
        if hasattr(types.FunctionType, name):
            raise GraphBreak("BD014", f"attribute {name!r} of {self.describe()}")
        return raise_no_attribute(ctx, types.FunctionType, name)

    def call_method(self, ctx: Context, name: str, args: Args, kwargs: Kwargs) -> VariableTracker:
        if name == "__get__":
            return BoundMethodVariable(self, args[0])
        if name == "__call__":
            return self.call(ctx, args, kwargs)
        return self.get_attr(ctx, name).call(ctx, args, kwargs)

    def current_defaults(
        self, ctx: Context
    ) -> tuple[tuple[VariableTracker, ...], dict[str, VariableTracker]]:
        """The current defaults of positional and keyword-only parameters."""
        positional, named = self.defaults, dict(self.keyword_defaults)
        if self.value is None and self.key is not None:
            written = ctx.effects.read((self.key, "__defaults__"))
            positional = positional if written is MISSING else tuple(written.unpack(ctx))
            written = ctx.effects.read((self.key, "__kwdefaults__"))
            if written is not MISSING:
                named = {
                    key.as_constant(ctx): realize(ctx, held) for key, held in pairs_of(ctx, written)
                }
        return positional, named

    def set_attr(self, ctx: Context, name: str, value: VariableTracker) -> None:
        if (
            self.key is None
            or name == "__code__"
            or (self.value is not None and name in ("__defaults__", "__kwdefaults__"))
        ):
            raise GraphBreak("BD020", f"assignment to {name!r} of {self.describe()}")
        if name in ("__name__", "__qualname__") and not issubclass(value.python_type(), str):
            raise_error(ctx, TypeError, f"{name} must be set to a string object")
        ctx.effects.write((self.key, name), value)

    def reconstruct(self, gen: ValueBuilder) -> None:
        if self.value is not None:
            gen.load_const(self.value)
            return
        assert self.key is not None
        gen.begin(self.key)
        gen.emitter.load_callee_const(rebuilding.make_function)
        gen.load_const(self.code)
        gen.load_const(self.globals)
        gen.build_tuple(self.defaults)
        for name, default in self.keyword_defaults:
            gen.load_const(name)
            gen(default)
        gen.emitter.build_dict(len(self.keyword_defaults))
        gen.build_tuple(self.closure)
        gen.emitter.call(5)
        gen.keep(self.key)
        store = partial(gen.store_attribute, gen.built[self.key])
        if self.annotate is not None:
            gen.pending.append(partial(store, "__annotate__", self.annotate))
        gen.fill_attributes(self.key)
        if self.annotations is not None:
            pairs = self.annotations.unpack(gen.ctx)
            made = new_dict(gen.ctx, list(zip(pairs[::2], pairs[1::2])))
            gen.pending.append(partial(store, "__annotations__", made))


@tracker_for(types.FunctionType)
def wrap_function(ctx: Context, value: types.FunctionType, source: Source) -> VariableTracker:
    ctx.guards.require(source, GuardKind.FUNCTION_CODE, value)
    if value.__closure__ is None or isinstance(source, ConstSource):
        reading = source
    else:
        reading = source
    defaults = tuple(
        LazyVariable(default, source=DefaultsSource(reading, index))
        for index, default in enumerate(value.__defaults__ or ())
    )
    keywords = tuple(
        (name, LazyVariable(default, source=DefaultsSource(reading, name)))
        for name, default in (value.__kwdefaults__ or {}).items()
    )
    cells = tuple(
        LazyVariable(cell, source=ItemSource(AttrSource(reading, "__closure__"), index))
        for index, cell in enumerate(value.__closure__ or ())
    )
    tracker = FunctionVariable(
        value.__code__, value.__globals__, value.__name__, defaults, keywords, cells, value,
        Identity(types.FunctionType, value, source), source=source,
    )  # fmt: skip
    return ctx.effects.remember(value, tracker)


@dataclass(frozen=True, slots=True, eq=False)
class BoundMethodVariable(Variable):
    """A function (or other callable) with its first argument."""

    function: VariableTracker
    owner: VariableTracker

    def python_type(self) -> type:
        return types.MethodType

    def describe(self) -> str:
        return f"method {self.function.describe()}"

    def identity(self) -> object:
        return self

    def hash_key(self, ctx: Context) -> Hashable:
        return ("method", self.function.hash_key(ctx), self.owner.hash_key(ctx))

    def call(self, ctx: Context, args: Args, kwargs: Kwargs) -> VariableTracker:
        return self.function.call(ctx, [self.owner, *args], kwargs)

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        if name == "__self__":
            return self.owner
        if name == "__func__":
            return self.function
        return self.function.get_attr(ctx, name)

    def reconstruct(self, gen: ValueBuilder) -> None:
        gen.call_const(types.MethodType, self.function, self.owner)


@tracker_for(types.MethodType)
def wrap_method(ctx: Context, value: types.MethodType, source: Source) -> VariableTracker:
    ctx.guards.require(source, GuardKind.TYPE_IS, types.MethodType)
    function = wrap_value(ctx, value.__func__, AttrSource(source, "__func__"))
    owner = wrap_value(ctx, value.__self__, AttrSource(source, "__self__"))
    if isinstance(owner, TorchModeVariable) and value.__name__ in ("__enter__", "__exit__"):
        return BoundRuleVariable(owner, value.__name__, source=source)
    return BoundMethodVariable(function, owner, source=source)


@dataclass(frozen=True, slots=True, eq=False)
class PartialVariable(Variable):
    """``functools.partial``."""

    function: VariableTracker
    args: tuple[VariableTracker, ...]
    keywords: VariableTracker  # its own dict, which programs may change

    def python_type(self) -> type:
        return functools.partial

    def named(self, ctx: Context) -> dict[str, VariableTracker]:
        """The current keyword arguments."""
        return {
            key.as_constant(ctx): realize(ctx, value) for key, value in pairs_of(ctx, self.keywords)
        }

    def call(self, ctx: Context, args: Args, kwargs: Kwargs) -> VariableTracker:
        return self.function.call(
            ctx, [*(realize(ctx, arg) for arg in self.args), *args], {**self.named(ctx), **kwargs}
        )

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        if name == "func":
            return self.function
        if name == "args":
            return new_tuple(self.args)
        if name == "__self__":
            return self.function.get_attr(ctx, name)
        if name == "keywords":
            return self.keywords
        return class_attribute(ctx, self, functools.partial, name)

    def set_attr(self, ctx: Context, name: str, value: VariableTracker) -> None:
        if name != "__self__":  # ``functools.partialmethod`` sets it to the function's
            Variable.set_attr(self, ctx, name, value)

    def reconstruct(self, gen: ValueBuilder) -> None:
        gen.call(ConstantVariable(_with_keywords), [self.keywords, self.function, *self.args])


def _with_keywords(keywords: dict[str, Any], function: Any, *args: Any) -> functools.partial[Any]:
    """A partial that shares this dict of keywords."""
    made: Any = functools.partial(function, *args)
    made.__setstate__((function, args, keywords, None))
    return made


@tracker_for(functools.partial)
def wrap_partial(ctx: Context, value: functools.partial[Any], source: Source) -> VariableTracker:
    if type(value) is not functools.partial:
        return wrap_object(ctx, value, source)
    ctx.guards.require(source, GuardKind.TYPE_IS, functools.partial)
    function = wrap_value(ctx, value.func, AttrSource(source, "func"))
    args = wrap_value(ctx, value.args, AttrSource(source, "args")).unpack(ctx)
    keywords = wrap_value(ctx, value.keywords, AttrSource(source, "keywords"))
    return ctx.effects.remember(
        value, PartialVariable(function, tuple(args), keywords, source=source)
    )
