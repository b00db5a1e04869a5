"""A module whose calls are captured and that is otherwise the original: attributes, class, special
methods, equality.
"""

from __future__ import annotations

import copy
import functools
import inspect
import types
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch

from bytecode_dynamo.guards.records import GuardKind
from bytecode_dynamo.guards.source import Source
from bytecode_dynamo.hook.frame_hook import Activated
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.effects import Identity
from bytecode_dynamo.state.protocol import get_attribute
from bytecode_dynamo.state.tracker import VariableTracker
from bytecode_dynamo.variables.attribute import is_data_descriptor
from bytecode_dynamo.variables.base import Args, Kwargs
from bytecode_dynamo.variables.userobject import UserObjectVariable
from bytecode_dynamo.variables.wrap import tracker_for

from .function_table import evaluates_code

# by torch's own compiler, which looks into Python functions only
_is_traced = torch.compiler.is_dynamo_compiling


class CompiledModule:
    """Calls of it are calls of ``_orig_mod`` with a region active: hooks, ``self`` and dictionaries
    see the original, and what runs is what the original's class and instance have then. Its
    ``__dict__`` is the original's. Its class, made for it alone, has the special methods of the
    original's class; ``__class__`` is the original's. Copies and pickles are compiled modules, too.
    """

    __slots__ = (
        "__dict__", "__weakref__",
        "_bytecode_dynamo_call", "_bytecode_dynamo_forward", "_bytecode_dynamo_optimizer",
        "_orig_mod",
    )  # fmt: skip

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return (self._orig_mod if _is_traced() else self._bytecode_dynamo_call)(*args, **kwargs)

    @property
    def forward(self) -> Any:
        """The original's ``forward`` of now, captured."""
        plain = self._orig_mod.forward
        if _is_traced():
            return plain
        known = self._bytecode_dynamo_forward
        if known is None or known[0] != plain:
            known = plain, self._bytecode_dynamo_optimizer(plain)
            object.__setattr__(self, "_bytecode_dynamo_forward", known)
        return known[1]

    @property
    def __wrapped__(self) -> torch.nn.Module:
        return self._orig_mod

    @property
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride]
        return type(self._orig_mod)

    def __getattr__(self, name: str) -> Any:
        if name in ("precompile", "report") and not hasattr(self._orig_mod, name):
            optimizer = self._bytecode_dynamo_optimizer
            if name == "report":
                return optimizer.report
            return functools.partial(optimizer.precompile, self._orig_mod)
        found = getattr(self._orig_mod, name)
        if (
            type(found) is not types.MethodType
            or found.__self__ is not self._orig_mod
            or name in self._orig_mod.__dict__
        ):
            return found
        if (found.__func__.__module__ or "").partition(".")[0] == "torch":
            return types.MethodType(_of_original(found.__func__), self)
        return types.MethodType(found.__func__, self)  # calls of ``self`` in it are captured

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._orig_mod, name, value)
        if name in ("__class__", "__dict__"):
            _adopt(self)

    def __delattr__(self, name: str) -> None:
        delattr(self._orig_mod, name)

    def __dir__(self) -> list[str]:
        return dir(self._orig_mod)

    def __eq__(self, other: object) -> bool:
        return self._orig_mod == (other._orig_mod if isinstance(other, CompiledModule) else other)

    def __hash__(self) -> int:
        return hash(self._orig_mod)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._bytecode_dynamo_optimizer, (self._orig_mod,)

    def __copy__(self) -> Any:
        return _like(self, copy.copy(self._orig_mod))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return _like(self, copy.deepcopy(self._orig_mod, memo))


def _like(compiled: CompiledModule, copied: Any) -> Any:
    """The copy of a compiled module's original, compiled again; classes may copy themselves."""
    if copied is compiled._orig_mod:
        return compiled
    if not isinstance(copied, torch.nn.Module):
        return copied
    return compiled._bytecode_dynamo_optimizer.anew()(copied)


class _ClassOfCompiled(type):
    """The class of one compiled module. For methods that say ``type(self)``, it stands for the
    original's class.
    """

    @property
    def __wrapped__(cls) -> type:
        return cls.__dict__["_bytecode_dynamo_class"]

    @property
    def __signature__(cls) -> inspect.Signature:
        return inspect.signature(cls.__wrapped__)

    @property
    def forward(cls) -> Any:
        return cls.__wrapped__.forward

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls.__wrapped__, name)

    def __setattr__(cls, name: str, value: Any) -> None:
        setattr(cls.__wrapped__, name, value)

    def __delattr__(cls, name: str) -> None:
        delattr(cls.__wrapped__, name)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls.__wrapped__(*args, **kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.__wrapped__)


def compiled_module(module: torch.nn.Module, optimizer: Any) -> Any:
    """A module that runs ``module`` with capture."""
    compiled = object.__new__(CompiledModule)
    slots = {"call": Activated(module, optimizer.region), "forward": None, "optimizer": optimizer}
    for name, value in slots.items():
        object.__setattr__(compiled, f"_bytecode_dynamo_{name}", value)
    object.__setattr__(compiled, "_orig_mod", module)
    _adopt(compiled)
    return compiled


def _class_like(cls: type) -> type[CompiledModule]:
    found = {
        name: value
        for base in reversed(cls.__mro__[:-1])
        for name, value in vars(base).items()
        if name not in _OWN
    }
    names = [name for name in found if name.startswith("__") and name.endswith("__")]
    special = {name: getattr(cls, name) for name in names}
    forwarded = {
        name: value and _special(name)
        for name, value in special.items()
        if value is None or callable(value)
    }
    # What wins over the instance's dictionary in the original's class has to do so here.
    fields = {
        name: _field(name)
        for name, value in found.items()
        if name not in names and is_data_descriptor(value)
    }
    if cls.__getattribute__ is not object.__getattribute__:
        forwarded["__getattribute__"] = _attribute
    about = {name: getattr(cls, name) for name in _ABOUT if hasattr(cls, name)}
    own = {"__slots__": (), "_bytecode_dynamo_class": cls}
    return _ClassOfCompiled(
        cls.__name__, (CompiledModule,), {**forwarded, **fields, **about, **own}
    )


_OWN = vars(CompiledModule).keys() | {
    "__annotate__", "__class_getitem__", "__del__", "__getattribute__", "__init_subclass__",
    "__new__", "__reduce__",
    "__set_name__", "__subclasshook__",
}  # fmt: skip
"""Names of compiled modules, of the original alone, or that Python asks of a class:
``_ClassOfCompiled`` answers.
"""


_ABOUT = ("__module__", "__qualname__", "__doc__", "__firstlineno__")


def _attribute(self: CompiledModule, name: str) -> Any:
    if name in _OWN:
        return object.__getattribute__(self, name)
    return CompiledModule.__getattr__(self, name)


@functools.cache
def _field(name: str) -> property:
    return property(lambda self: getattr(self._orig_mod, name))


@functools.cache
def _special(name: str) -> Callable[..., Any]:
    def method(self: CompiledModule, /, *args: Any, **kwargs: Any) -> Any:
        result = getattr(self._orig_mod, name)(*args, **kwargs)
        return self if result is self._orig_mod else result

    method.__name__ = method.__qualname__ = name
    return method


def _of_original(function: Any) -> Any:
    """A method for compiled modules that the original runs; one that returns ``self`` returns the
    compiled module.
    """

    @functools.wraps(function)
    def method(self: CompiledModule, /, *args: Any, **kwargs: Any) -> Any:
        result = function(self._orig_mod, *args, **kwargs)
        return self if result is self._orig_mod else result

    return method


def _adopt(compiled: CompiledModule) -> None:
    """Take the attributes and special methods that the original has now."""
    object.__setattr__(compiled, "__dict__", compiled._orig_mod.__dict__)
    vars(object)["__class__"].__set__(compiled, _class_like(compiled.__class__))


# -- inside of other graphs ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class CompiledModuleVariable(UserObjectVariable):
    """A compiled module in a graph of something else, which holds what the original does."""

    def original(self, ctx: Context) -> VariableTracker:
        return UserObjectVariable.get_attr(self, ctx, "_orig_mod")

    def hash_key(self, ctx: Context) -> Hashable:
        return self.original(ctx).hash_key(ctx)

    def call(self, ctx: Context, args: Args, kwargs: Kwargs) -> VariableTracker:
        return self.original(ctx).call(ctx, args, kwargs)

    def class_of(self, ctx: Context) -> type:
        return self.original(ctx).class_of(ctx)

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        original = self.original(ctx)
        if name in ("_orig_mod", "__wrapped__"):
            return original
        return get_attribute(ctx, original, name)

    def set_attr(self, ctx: Context, name: str, value: VariableTracker) -> None:
        self.original(ctx).set_attr(ctx, name, value)

    def del_attr(self, ctx: Context, name: str) -> None:
        self.original(ctx).del_attr(ctx, name)


@tracker_for(CompiledModule)
def wrap_compiled_module(ctx: Context, value: CompiledModule, source: Source) -> VariableTracker:
    ctx.guards.require(source, GuardKind.TYPE_IS, type(value))
    return ctx.effects.remember(
        value, CompiledModuleVariable(Identity(type(value), value, source), source=source)
    )


@evaluates_code(_special("__len__"))
def special_method_of_compiled(
    ctx: Context, function: VariableTracker, args: Args, kwargs: Kwargs
) -> VariableTracker:
    name = get_attribute(ctx, function, "__name__").as_constant(ctx)
    return get_attribute(ctx, args[0], name).call(ctx, args[1:], kwargs)
