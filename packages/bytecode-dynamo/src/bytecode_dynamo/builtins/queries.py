"""Queries of torch about its state and arguments, answered while capturing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bytecode_dynamo.function_table import evaluates_call
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.protocol import new_value
from bytecode_dynamo.state.tracker import VariableTracker
from bytecode_dynamo.variables.constant import ConstantVariable
from bytecode_dynamo.variables.tensor import TensorVariable

_C: Any = torch._C

# The answer never changes, or the guard on torch's state covers it.
_QUERIES: tuple[Callable[..., Any], ...] = (
    torch.is_tensor, torch.is_floating_point, torch.is_complex, torch.is_grad_enabled,
    torch.is_inference_mode_enabled,
    torch.is_autocast_enabled, torch.is_autocast_cpu_enabled, torch.get_autocast_dtype,
    torch.get_autocast_gpu_dtype, torch.is_autocast_cache_enabled,
    torch.are_deterministic_algorithms_enabled,
    torch.promote_types, torch.result_type, torch.can_cast, torch.cuda.is_available,
    torch.cuda.device_count,
    torch.backends.mps.is_available, torch.backends.cudnn.is_available,
    torch.backends.mkldnn.is_available,
)  # fmt: skip

# Constant while a frame is captured.
ANSWERS: dict[Callable[..., Any], Any] = {
    torch.compiler.is_compiling: True,
    torch.compiler.is_dynamo_compiling: True,
    torch.compiler.is_exporting: False,
    torch.compiler.cudagraph_mark_step_begin: None,
    torch.onnx.is_in_onnx_export: False,
    torch.jit.is_scripting: False,
    torch.jit.is_tracing: False,
    torch._C._get_tracing_state: None,
    torch._C._is_tracing: False,
    torch.overrides.has_torch_function: False,
    torch.overrides.has_torch_function_unary: False,
    torch.overrides.has_torch_function_variadic: False,
    torch._C._log_api_usage_once: None,
    _C._functorch.peek_interpreter_stack: None,
    torch.distributed.is_available: torch.distributed.is_available(),
    _C._get_privateuse1_backend_name: _C._get_privateuse1_backend_name(),
}


def _query(function: Callable[..., Any]) -> Any:
    def rule(ctx: Context, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
        if args and function in (torch.is_tensor,):
            return ConstantVariable(isinstance(args[0], TensorVariable))
        values = [arg.as_fake(ctx) for arg in args]
        named = {name: value.as_fake(ctx) for name, value in kwargs.items()}
        with ctx.mode:
            answer = function(*values, **named)
        if "autocast" in function.__name__:
            ctx.modes.require_autocast_defaults(ctx)
        return new_value(ctx, answer)

    return rule


def _answer(answer: Any) -> Any:
    return lambda ctx, *args, **kwargs: ConstantVariable(answer)


for _function in _QUERIES:
    evaluates_call(_function)(_query(_function))
for _function, _value in ANSWERS.items():
    evaluates_call(_function)(_answer(_value))
