"""nn.Module objects and Python modules."""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from symshapes import LazyGraphModule
from torch.nn.modules import module as module_code
from torch.nn.modules.lazy import LazyModuleMixin
from torch.utils import _pytree as pytree

from bytecode_dynamo.errors import GraphBreak, Retry
from bytecode_dynamo.function_table import evaluates_call
from bytecode_dynamo.guards.records import GuardKind
from bytecode_dynamo.guards.source import AttrSource, ConstSource, Source
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.effects import DELETED, MISSING
from bytecode_dynamo.state.protocol import raise_no_attribute, wrap_value
from bytecode_dynamo.state.requirements import globals_identity
from bytecode_dynamo.state.tracker import VariableTracker

from .attribute import find_special, is_data_descriptor, load_instance_attribute
from .base import Args, Kwargs
from .callable import KnownObjectVariable
from .constant import ConstantVariable
from .mapping import DictVariable
from .tensor import TensorVariable
from .userobject import UserObjectVariable
from .wrap import by_type, tracker_for

REGISTRIES = ("_parameters", "_buffers", "_modules")
HOOKS = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")
GLOBAL_HOOKS = (
    "_global_backward_pre_hooks", "_global_backward_hooks", "_global_forward_hooks",
    "_global_forward_pre_hooks",
)  # fmt: skip
TORCHS = dict(torch.nn.Module.__dict__)
"""torch's own attributes of the class, which programs may replace."""
_MODULE_SOURCE = ConstSource(module_code)


@dataclass(frozen=True, slots=True, eq=False)
class NNModuleVariable(UserObjectVariable):
    """A torch.nn.Module: registered attributes, calls through hooks, registering assignments."""

    def call(self, ctx: Context, args: Args, kwargs: Kwargs) -> VariableTracker:
        """Call ``forward`` if there are no hooks; else evaluate torch's own ``__call__``."""
        cls = self.key.cls
        if find_special(ctx, cls, "__call__")[1] is not TORCHS["__call__"]:
            return UserObjectVariable.call(self, ctx, args, kwargs)
        compiled = self.get_attr(ctx, "_compiled_call_impl")
        if not isinstance(compiled, ConstantVariable):
            return compiled.call(ctx, args, kwargs)
        replaced = load_instance_attribute(ctx, self.key, "_call_impl")
        plain = replaced is None and find_special(ctx, cls, "_call_impl")[1] is TORCHS["_call_impl"]
        name = "forward" if plain and not self._has_hooks(ctx) else "_call_impl"
        return self.get_attr(ctx, name).call(ctx, args, kwargs)

    def _has_hooks(self, ctx: Context) -> bool:
        for name in GLOBAL_HOOKS:
            if wrap_value(ctx, getattr(module_code, name), AttrSource(_MODULE_SOURCE, name)).truth(
                ctx
            ):
                return True
        return any(self.get_attr(ctx, name).truth(ctx) for name in HOOKS)

    def missing_attribute(self, ctx: Context, name: str) -> VariableTracker | None:
        getter = find_special(ctx, self.key.cls, "__getattr__")[1]
        if getter is not TORCHS["__getattr__"]:
            return UserObjectVariable.missing_attribute(self, ctx, name)
        return self.registered(ctx, name)

    def registered(self, ctx: Context, name: str) -> VariableTracker | None:
        """A parameter, buffer or submodule by name."""
        for registry in REGISTRIES:
            held = load_instance_attribute(ctx, self.key, registry)
            if isinstance(held, DictVariable):
                found = held.get(ctx, ConstantVariable(name))
                if found is not None:
                    return found
        return None

    def set_attr(self, ctx: Context, name: str, value: VariableTracker) -> None:
        setter = find_special(ctx, self.key.cls, "__setattr__")[1]
        if setter is not TORCHS["__setattr__"]:
            UserObjectVariable.set_attr(self, ctx, name, value)
            return
        registries = [load_instance_attribute(ctx, self.key, registry) for registry in REGISTRIES]
        label = ConstantVariable(name)
        registered = any(
            isinstance(held, DictVariable) and held.contains(ctx, label) for held in registries
        )
        special = issubclass(
            value.python_type(), (torch.nn.Parameter, torch.nn.Buffer, torch.nn.Module)
        )
        if not registered and not special:
            self.store(ctx, name, value)
            return
        buffers = registries[1]
        if (
            isinstance(buffers, DictVariable)
            and buffers.contains(ctx, label)
            and isinstance(value, TensorVariable)
            and not special
        ):
            buffers.set_item(ctx, label, value)
            return
        UserObjectVariable.set_attr(self, ctx, name, value)


_LAZY: Any = LazyModuleMixin


@evaluates_call(_LAZY._infer_parameters)
def infer_parameters(
    ctx: Context, this: Any, module: Any, args: VariableTracker, kwargs: VariableTracker
) -> None:
    """Run the hook that initialises a lazy module's parameters, then evaluate the frame again."""
    if not isinstance(module, NNModuleVariable) or not module.key.exists:
        raise GraphBreak(
            "BD018",
            f"the first call of lazy {module.describe()}",
            "call the module once before it is compiled",
        )
    examples = pytree.tree_map(_example, (args.as_fake(ctx), kwargs.as_fake(ctx)))
    module.key.value._infer_parameters(module.key.value, *examples)
    raise Retry


def _example(value: Any) -> Any:
    """A tensor of the current sizes, without data."""
    if not isinstance(value, torch.Tensor):
        return value
    sizes = [size.node.hint if isinstance(size, torch.SymInt) else size for size in value.shape]
    return torch.empty(sizes, dtype=value.dtype, device="meta")


@tracker_for(torch.nn.Module)
def wrap_module(ctx: Context, value: torch.nn.Module, source: Source) -> VariableTracker:
    if isinstance(value, LazyGraphModule):
        value.ensure_code()  # evaluated like any module's
    return by_type(NNModuleVariable)(ctx, value, source)


@dataclass(frozen=True, slots=True, eq=False)
class PythonModuleVariable(KnownObjectVariable):
    """An imported module."""

    pinned: ClassVar[bool] = True
    value: types.ModuleType

    def describe(self) -> str:
        return f"module {self.value.__name__}"

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        written = ctx.effects.read((globals_identity(ctx, self.value.__dict__), name))
        if written is DELETED:
            return raise_no_attribute(ctx, f"module {self.value.__name__!r}", name)
        if written is not MISSING:
            return written
        source = AttrSource(ConstSource(self.value), name)
        if name in self.value.__dict__ and not self._asks_class(ctx, name):
            return wrap_value(ctx, self.value.__dict__[name], source)
        # A module's own __getattr__ (lazy submodules) runs as in eager mode.
        found = getattr(self.value, name, MISSING)
        if found is MISSING:
            for absent in (name, "__getattr__"):
                if absent not in self.value.__dict__:
                    ctx.guards.require(ConstSource(self.value), GuardKind.NO_ATTR, absent)
            return raise_no_attribute(ctx, f"module {self.value.__name__!r}", name)
        return wrap_value(ctx, found, source)

    def _asks_class(self, ctx: Context, name: str) -> bool:
        """Whether the module's class takes precedence over its registered attributes."""
        cls = type(self.value)
        if cls is types.ModuleType:
            return False
        chooses = isinstance(find_special(ctx, cls, "__getattribute__")[1], types.FunctionType)
        return is_data_descriptor(find_special(ctx, cls, name)[1]) or chooses

    def set_attr(self, ctx: Context, name: str, value: VariableTracker) -> None:
        ctx.effects.write((globals_identity(ctx, self.value.__dict__), name), value)


@tracker_for(types.ModuleType)
def wrap_python_module(ctx: Context, value: types.ModuleType, source: Source) -> VariableTracker:
    ctx.guards.require(source, GuardKind.IDENTITY, value)
    ctx.guards.require(source, GuardKind.TYPE_IS, type(value))
    return PythonModuleVariable(value, source=source)
