"""Functions that torch wraps for its own compiler, and parameter constructors."""

from __future__ import annotations

import contextlib
import types
from typing import Any

import torch
from symshapes import is_wrapper
from torch._compile import _disable_dynamo  # pyright: ignore[reportPrivateUsage]
from torch.distributions.utils import lazy_property
from torch.fx import traceback as fx_traceback

from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.function_table import constructs, evaluates_call, evaluates_code
from bytecode_dynamo.graph.opaque import OpaqueCall
from bytecode_dynamo.guards.source import ConstSource
from bytecode_dynamo.polyfills.control_flow import polyfill_of
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.protocol import (
    call_polyfill,
    call_torch,
    get_attribute,
    instantiate,
    wrap_value,
)
from bytecode_dynamo.state.requirements import remember_tensor
from bytecode_dynamo.state.tracker import VariableTracker
from bytecode_dynamo.torch_versions import ALL_TRUE_FUNCTIONS
from bytecode_dynamo.variables.base import Args, Kwargs
from bytecode_dynamo.variables.constant import ConstantVariable
from bytecode_dynamo.variables.tensor import TensorVariable

from . import branching, torch_functions


@evaluates_code(_disable_dynamo(lambda: None))
def wrapped(ctx: Context, function: Any, args: Args, kwargs: Kwargs) -> VariableTracker:
    return get_attribute(ctx, function, "__wrapped__").call(ctx, args, kwargs)


@evaluates_code(torch.jit.script_if_tracing(lambda: None))
def scripted_if_tracing(ctx: Context, function: Any, args: Args, kwargs: Kwargs) -> VariableTracker:
    return get_attribute(ctx, function, "__original_fn").call(ctx, args, kwargs)


@evaluates_code(*ALL_TRUE_FUNCTIONS)
def truth_of_all(ctx: Context, function: Any, args: Args, kwargs: Kwargs) -> VariableTracker:
    """The tensor itself instead of its ``bool``: callers only raise if it is false, which a graph
    can assert.
    """
    return call_torch(ctx, torch._is_all_true, [args[0]])


@evaluates_call(fx_traceback.annotate)
def annotated(ctx: Context, notes: VariableTracker) -> VariableTracker:
    """Annotations for torch's own tracer, which is not active."""
    return instantiate(ctx, contextlib.nullcontext, [], {})


_GRAPH_MODULE_CALL: Any = next(
    value
    for value in torch.fx.GraphModule.recompile.__code__.co_consts
    if getattr(value, "co_name", "") == "call_wrapped"
)


@evaluates_code(_GRAPH_MODULE_CALL)
def graph_module_call(ctx: Context, function: Any, args: Args, kwargs: Kwargs) -> VariableTracker:
    own = get_attribute(ctx, get_attribute(ctx, args[0], "_wrapped_call"), "cls_call").as_constant(
        ctx
    )
    call = torch.nn.Module.__call__ if own is None else own
    return wrap_value(ctx, call, ConstSource(call)).call(ctx, args, kwargs)


@evaluates_code(torch._ops.HigherOrderOperator.__call__)
def higher_order_operator(ctx: Context, function: Any, args: Args, kwargs: Kwargs) -> Any:
    name = get_attribute(ctx, args[0], "_name").as_constant(ctx)
    if name == "cond":
        return branching.cond(ctx, *args[1:], **kwargs)
    if name == "while_loop" and not kwargs and (len(args) < 5 or not args[4].unpack(ctx)):
        return branching.while_loop(ctx, *args[1:4])
    raise GraphBreak("BD018", f"torch.ops.higher_order.{name}")


_LAZY_PROPERTY: Any = lazy_property


def _load_property(prop: Any, instance: Any) -> Any:
    with torch.enable_grad():
        value = prop.wrapped(instance)
    setattr(instance, prop.wrapped.__name__, value)
    return value


@evaluates_code(_LAZY_PROPERTY.__get__)
def get_lazy_property(ctx: Context, function: Any, args: Args, kwargs: Kwargs) -> VariableTracker:
    if isinstance(args[1], ConstantVariable):
        found = torch_functions.real_value(ctx, args[0]).__get__(None)
        return wrap_value(ctx, found, ConstSource(found))
    return call_polyfill(ctx, _load_property, args[:2])


def original_of(function: types.FunctionType) -> types.FunctionType | None:
    """The function to evaluate in place of one that starts, or was wrapped by, another compiler."""
    if function.__qualname__.endswith("patched_init") and function.__code__.co_filename.endswith(
        "mutation_guard.py"
    ):
        held = [cell.cell_contents for cell in function.__closure__ or ()]
        return next((found for found in held if isinstance(found, types.FunctionType)), None)
    return _without_settings(function) or polyfill_of(function.__code__)


def _without_settings(function: types.FunctionType) -> types.FunctionType | None:
    """What a function of exported programs calls with other settings of torch's own compiler."""
    code = function.__code__
    if code.co_qualname != "wrap_dunder_call_ctx_manager.<locals>.inner":
        return None
    held = {
        name: cell.cell_contents
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True)
    }
    called = held.get("func")
    settings = type(held.get("self")).__name__ == "DynamoConfigPatchProxy"
    return called if settings and isinstance(called, types.FunctionType) else None


def _make_parameter(data: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    # for a tracer that does not see the constructor's effects
    if torch._is_functional_tensor(data):
        return data.detach().requires_grad_(requires_grad)
    return torch.nn.Parameter(data, requires_grad)


MAKE_PARAMETER = OpaqueCall(_make_parameter, "Parameter")


@constructs(torch.nn.Parameter)
def make_parameter(
    ctx: Context, data: VariableTracker | None = None, requires_grad: VariableTracker | None = None
) -> VariableTracker:
    if not isinstance(data, TensorVariable):
        raise GraphBreak(
            "BD019", "a torch.nn.Parameter without data", "pass the tensor to torch.nn.Parameter"
        )
    if is_wrapper(data.fake):
        raise GraphBreak("BD019", f"a torch.nn.Parameter of a {data.cls.__qualname__}")
    wanted = requires_grad is None or requires_grad.truth(ctx)
    with ctx.mode, torch.enable_grad():
        fake: Any = data.fake.detach().requires_grad_(wanted)
    node = ctx.graph.add_call(MAKE_PARAMETER, (data.node, wanted), {}, fake)
    made = TensorVariable(node, fake, torch.nn.Parameter)
    remember_tensor(ctx, made)
    return made
