"""Launches of the program's Triton kernels, recorded as operators with their grid as sizes."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.function_table import evaluates_call
from bytecode_dynamo.guards.source import AttrSource, ConstSource
from bytecode_dynamo.polyfills.kernel_operators import Launch, layers
from bytecode_dynamo.reconstruction.value_builder import ValueBuilder
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.protocol import (
    call_polyfill,
    call_torch,
    constant_of,
    new_dict,
    new_list,
    new_value,
    wrap_value,
)
from bytecode_dynamo.state.tracker import VariableTracker
from bytecode_dynamo.variables.base import Args, BoundRuleVariable, Kwargs, Variable
from bytecode_dynamo.variables.callable import KnownObjectVariable
from bytecode_dynamo.variables.constant import ConstantVariable, SymbolicVariable
from bytecode_dynamo.variables.tensor import TensorVariable
from bytecode_dynamo.variables.wrap import by_identity, tracker_for

_TYPES = {int: "SymInt", bool: "bool", float: "float"}


@dataclass(frozen=True, slots=True, eq=False)
class KernelVariable(KnownObjectVariable):
    """A Triton kernel: a ``@triton.jit`` function, perhaps inside of an autotuner or heuristics."""

    def get_item(self, ctx: Context, key: VariableTracker) -> VariableTracker:
        return GridVariable(self, key)

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        if name == "run":
            return BoundRuleVariable(self, name)
        if self.source is None or not hasattr(self.value, name):
            return KnownObjectVariable.get_attr(self, ctx, name)
        return wrap_value(ctx, getattr(self.value, name), AttrSource(self.source, name))

    def call_method(self, ctx: Context, name: str, args: Args, kwargs: Kwargs) -> VariableTracker:
        if name != "run" or "grid" not in kwargs:
            return Variable.call_method(self, ctx, name, args, kwargs)
        named = dict(kwargs)
        if named.pop("warmup", ConstantVariable(False)).truth(ctx):
            raise GraphBreak("BD007", f"a warm-up of {self.describe()}")
        return _launch(ctx, self.value, named.pop("grid"), args, named)


tracker_for("triton.runtime.jit.KernelInterface")(by_identity(KernelVariable))
tracker_for("triton.language.core.dtype", "triton.language.core.constexpr")(
    by_identity(KnownObjectVariable)
)
evaluates_call(torch.library.wrap_triton)(lambda ctx, kernel: kernel)


@dataclass(frozen=True, slots=True, eq=False)
class HostFunctionVariable(KnownObjectVariable):
    """A function of Triton that kernels and programs call alike, such as ``triton.cdiv``."""

    def call(self, ctx: Context, args: Args, kwargs: Kwargs) -> VariableTracker:
        return call_polyfill(ctx, self.value.fn, args, kwargs)


tracker_for("triton.runtime.jit.ConstexprFunction")(by_identity(HostFunctionVariable))


@dataclass(frozen=True, slots=True, eq=False)
class GridVariable(Variable):
    """``kernel[grid]``."""

    kernel: KernelVariable
    grid: VariableTracker

    def call(self, ctx: Context, args: Args, kwargs: Kwargs) -> VariableTracker:
        return _launch(ctx, self.kernel.value, self.grid, args, kwargs)

    def reconstruct(self, gen: ValueBuilder) -> None:
        gen.call_const(operator.getitem, self.kernel, self.grid)


def _launch(
    ctx: Context, kernel: Any, grid: VariableTracker, args: Args, kwargs: Kwargs
) -> VariableTracker:
    *outer, base = layers(kernel)
    parameters = inspect.signature(base.fn).parameters
    if len(args) > len(parameters):
        raise GraphBreak(
            "BD007",
            f"a launch of {base.fn.__qualname__} with {len(args)} arguments",
            "launch it with the parameters of its signature",
        )
    positional = tuple(parameters)[: len(args)]
    given = {**dict(zip(positional, args)), **kwargs}
    types, constants = {}, {}
    for name, value in given.items():
        kind = (
            _type_of(ctx, value)
            if name in parameters and not _is_constexpr(parameters[name])
            else None
        )
        if kind is None:
            constants[name] = constant_of(
                ctx, value, f"argument {name!r} of a launch of {base.fn.__qualname__}"
            )
        else:
            types[name] = kind
    tuners = [layer for layer in outer if hasattr(layer, "configs")]
    configs = [config.all_kwargs() for config in tuners[0].configs] if tuners else [{}]
    extents = [
        extent
        for config in configs
        for extent in _extents(ctx, outer, parameters, grid, given, config)
    ]
    launch = Launch(kernel, types, constants, positional, tuple(configs)).operator()
    values = [given[name] for name in types]
    return call_torch(ctx, launch, [*values, new_list(ctx, extents)])


def _type_of(ctx: Context, value: VariableTracker) -> str | None:
    """The schema type of an argument; None for one that must be constant."""
    if isinstance(value, TensorVariable):
        return "Tensor"
    if isinstance(value, (ConstantVariable, SymbolicVariable)):
        return _TYPES.get(value.python_type())
    return None


def _is_constexpr(parameter: inspect.Parameter) -> bool:
    return "constexpr" in str(parameter.annotation)


def _extents(
    ctx: Context,
    outer: list[Any],
    parameters: Mapping[str, inspect.Parameter],
    grid: VariableTracker,
    given: Mapping[str, VariableTracker],
    config: Mapping[str, Any],
) -> list[VariableTracker]:
    """The three extents of the grid if the autotuner chooses the configuration."""
    if grid.python_type() not in (tuple, list, int, torch.Size):
        defaults = {p.name: p.default for p in parameters.values() if p.default is not p.empty}
        meta = {
            name: new_value(ctx, value)
            for name, value in {**defaults, **config}.items()
            if name in parameters
        } | dict(given)
        pairs = {name: value for name, value in meta.items() if name in parameters}
        for layer in outer:
            for name, heuristic in _heuristics(ctx, layer):
                pairs[name] = heuristic.call(ctx, [_dict(ctx, pairs)], {})
        grid = grid.call(ctx, [_dict(ctx, pairs)], {})
    extents = [grid] if grid.python_type() is int else grid.unpack(ctx)
    return [*extents, *[ConstantVariable(1)] * (3 - len(extents))]


def _heuristics(ctx: Context, layer: Any) -> list[tuple[str, VariableTracker]]:
    values = getattr(layer, "values", None)
    if isinstance(values, dict):
        return [(name, wrap_value(ctx, rule, ConstSource(rule))) for name, rule in values.items()]
    return []


def _dict(ctx: Context, values: Mapping[str, VariableTracker]) -> VariableTracker:
    return new_dict(ctx, [(ConstantVariable(name), value) for name, value in values.items()])
