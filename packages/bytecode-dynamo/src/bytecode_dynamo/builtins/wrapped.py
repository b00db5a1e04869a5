"""Functions that torch wraps for its own compiler, and constructors of parameters."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch
from torch._compile import _disable_dynamo  # pyright: ignore[reportPrivateUsage]

from bytecode_dynamo.control_flow import polyfill_of
from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.opaque import OpaqueCall
from bytecode_dynamo.variables.base import Args, Kwargs, VariableTracker
from bytecode_dynamo.variables.tensor import TensorVariable

from .construct import constructs
from .registry import evaluates_code

if TYPE_CHECKING:
    from bytecode_dynamo.context import Context


@evaluates_code(_disable_dynamo(lambda: None))
def wrapped(ctx: Context, function: Any, args: Args, kwargs: Kwargs) -> VariableTracker:
    return ctx.get_attr(function, "__wrapped__").call(ctx, args, kwargs)


@evaluates_code(torch.jit.script_if_tracing(lambda: None))
def scripted_if_tracing(ctx: Context, function: Any, args: Args, kwargs: Kwargs) -> VariableTracker:
    return ctx.get_attr(function, "__original_fn").call(ctx, args, kwargs)


def original_of(function: types.FunctionType) -> types.FunctionType | None:
    """What to evaluate in place of a function that would start another compiler, or that one has wrapped."""
    if function.__qualname__.endswith("patched_init") and function.__code__.co_filename.endswith("mutation_guard.py"):
        held = [cell.cell_contents for cell in function.__closure__ or ()]
        return next((found for found in held if isinstance(found, types.FunctionType)), None)
    return polyfill_of(function.__code__)


def _make_parameter(data: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    return torch.nn.Parameter(data, requires_grad)


MAKE_PARAMETER = OpaqueCall(_make_parameter, "Parameter")


@constructs(torch.nn.Parameter)
def make_parameter(
    ctx: Context, data: VariableTracker | None = None, requires_grad: VariableTracker | None = None
) -> VariableTracker:
    if not isinstance(data, TensorVariable):
        raise GraphBreak("BD019", "a torch.nn.Parameter without data")
    wanted = requires_grad is None or requires_grad.truth(ctx)
    with ctx.mode, torch.enable_grad():
        fake: Any = data.fake.detach().requires_grad_(wanted)
    node = ctx.graph.add_call("call_function", MAKE_PARAMETER, (data.node, wanted), {}, fake)
    made = TensorVariable(node, fake, torch.nn.Parameter)
    ctx.remember_tensor(made)
    return made
