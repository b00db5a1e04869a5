"""Settings of torch, whose reads are guarded and whose writes are graph calls; queries of torch."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import _symbolic_trace

from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.function_table import evaluates_call, evaluates_each
from bytecode_dynamo.guards.records import Answer, GuardKind
from bytecode_dynamo.guards.source import ConstSource
from bytecode_dynamo.hook.compiling import recursion_limit
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.protocol import constants, new_value
from bytecode_dynamo.state.tracker import VariableTracker
from bytecode_dynamo.variables.callable import NamespaceVariable
from bytecode_dynamo.variables.constant import ConstantVariable
from bytecode_dynamo.variables.tensor import TensorVariable

_C: Any = torch._C


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: ``read()`` returns it, ``write(value)`` sets it. ``in_state``: the guard on
    torch's state covers it.
    """

    read: Callable[[], Any]
    write: Callable[..., None]
    in_state: bool = False

    def restore(self, value: Any) -> None:
        """Set a value that was read before."""
        if value is not None:
            self.write(*value) if isinstance(value, tuple) else self.write(value)


# Settings with a ``_get_`` and a ``_set_`` function in torch._C.
_PLAIN = """
    cudnn_enabled cudnn_benchmark cudnn_deterministic cudnn_allow_tf32 cudnn_depthwise_kernel
    mkldnn_enabled mkldnn_deterministic onednn_allow_tf32 nnpack_enabled cublas_allow_tf32
    cublas_allow_fp16_accumulation cublas_allow_fp16_reduced_precision_reduction
    cublas_allow_bf16_reduced_precision_reduction warnAlways float32_matmul_precision
    deterministic_fill_uninitialized_memory math_sdp_allow_fp16_bf16_reduction
    cpu_allow_fp16_reduced_precision_reduction
""".split()
_ATTENTION = ("flash", "mem_efficient", "math", "cudnn")


def _pairs() -> list[tuple[Any, Any, bool]]:
    named = [(f"_get_{name}", f"_set_{name}") for name in _PLAIN]
    named += [(f"_get_{name}_sdp_enabled", f"_set_sdp_use_{name}") for name in _ATTENTION]
    named += [
        ("_is_multithreading_enabled", "_set_multithreading_enabled"),
        ("_cuda_get_cudnn_benchmark_limit", "_cuda_set_cudnn_benchmark_limit"),
    ]
    found = [
        (getattr(_C, get), getattr(_C, put), False)
        for get, put in named
        if hasattr(_C, get) and hasattr(_C, put)
    ]
    return [
        *found,
        (torch.get_num_threads, torch.set_num_threads, False),
        (torch.get_default_dtype, _C._set_default_dtype, True),
    ]


def _deterministic() -> tuple[bool, bool]:
    return _C._get_deterministic_algorithms(), _C._get_deterministic_algorithms_warn_only()


def _set_deterministic(mode: bool, warn_only: bool = False) -> None:
    _C._set_deterministic_algorithms(mode, warn_only=warn_only)


def _reading(setting: Setting) -> Any:
    def rule(ctx: Context) -> VariableTracker:
        answer = setting.read()
        if not setting.in_state and not ctx.modes.is_set(setting):
            same = Answer("{}()", lambda read: read(), answer)
            ctx.guards.require(ConstSource(setting.read), GuardKind.CUSTOM, same)
        return new_value(ctx, answer)

    return rule


def _writing(setting: Setting, function: Any, where: Sequence[str] = ()) -> Any:
    def rule(ctx: Context, *args: VariableTracker, **kwargs: VariableTracker) -> None:
        if not ctx.host_effects:
            raise GraphBreak("BD018", f"call of torch._C.{function.__name__}")
        values, named = constants(ctx, args, kwargs)
        if setting.read() != (values[0] if len(values) == 1 else tuple(values)) or named:
            ctx.require_once(f"call of torch._C.{function.__name__}")
            ctx.graph.add_host_call(function, (*where, *values), named).meta["setting"] = setting
            ctx.modes.set_value(ctx, setting, (*values, *named.values()))

    return rule


for _get, _put, _in_state in _pairs():
    _setting = Setting(_get, _put, _in_state)
    evaluates_call(_get)(_reading(_setting))
    evaluates_call(_put)(_writing(_setting, _put))
for _query in (_C._get_deterministic_algorithms, _C._get_deterministic_algorithms_warn_only):
    evaluates_call(_query)(_reading(Setting(_query, lambda _: None, True)))
evaluates_call(_C._set_deterministic_algorithms)(
    _writing(Setting(_deterministic, _set_deterministic, True), _C._set_deterministic_algorithms)
)
for _query in (
    torch.is_anomaly_enabled,
    torch.is_anomaly_check_nan_enabled,
    torch.cuda.is_initialized,
    torch.get_num_interop_threads,
):
    evaluates_call(_query)(_reading(Setting(_query, lambda _: None)))
evaluates_call(_symbolic_trace.is_fx_tracing)(
    _reading(Setting(lambda: _symbolic_trace._is_fx_tracing_flag, lambda _: None))
)
evaluates_call(sys.getrecursionlimit)(_reading(Setting(recursion_limit, lambda _: None)))


@functools.cache
def _precision(*where: str) -> Setting:
    """The setting of a backend operator's float32 precision."""
    put = functools.partial(_C._set_fp32_precision_setter, *where)
    return Setting(functools.partial(_C._get_fp32_precision_getter, *where), put)


def _read_precision(ctx: Context, *where: VariableTracker) -> VariableTracker:
    return _reading(_precision(*(part.as_constant(ctx) for part in where)))(ctx)


def _write_precision(ctx: Context, *args: VariableTracker) -> None:
    *where, value = (arg.as_constant(ctx) for arg in args)
    _writing(_precision(*where), _C._set_fp32_precision_setter, where)(ctx, new_value(ctx, value))


if hasattr(_C, "_get_fp32_precision_getter"):
    evaluates_call(_C._get_fp32_precision_getter)(_read_precision)
    evaluates_call(_C._set_fp32_precision_setter)(_write_precision)
if hasattr(_C, "_accelerator_getAccelerator"):
    evaluates_call(_C._accelerator_getAccelerator)(
        _reading(Setting(_C._accelerator_getAccelerator, lambda _: None, True))
    )


# The answer never changes, or the guard on torch's state covers it.
_QUERIES: tuple[Callable[..., Any], ...] = (
    torch.is_tensor, torch.is_floating_point, torch.is_complex, torch.is_grad_enabled,
    torch.is_inference_mode_enabled,
    torch.is_autocast_enabled, torch.is_autocast_cpu_enabled, torch.get_autocast_dtype,
    torch.get_autocast_gpu_dtype, torch.is_autocast_cache_enabled, _C._is_any_autocast_enabled,
    torch.are_deterministic_algorithms_enabled,
    torch.promote_types, torch.result_type, torch.can_cast, torch.cuda.is_available,
    torch.cuda.device_count,
    torch.backends.mps.is_available, torch.backends.cudnn.is_available,
    torch.backends.mkldnn.is_available,
)  # fmt: skip

# The answer depends on the device alone; without one, on the current device.
_OF_A_DEVICE: tuple[Callable[..., Any], ...] = (
    torch.cuda.current_device, torch.cuda.get_arch_list, torch.cuda.get_device_capability,
    torch.cuda.get_device_name, torch.cuda.get_device_properties, torch.cuda.is_bf16_supported,
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


@evaluates_each(*_QUERIES)
def query(
    ctx: Context, function: Any, *args: VariableTracker, **kwargs: VariableTracker
) -> VariableTracker:
    if args and function is torch.is_tensor:
        return ConstantVariable(isinstance(args[0], TensorVariable))
    values = [arg.as_fake(ctx) for arg in args]
    named = {name: value.as_fake(ctx) for name, value in kwargs.items()}
    with ctx.mode:
        answer = function(*values, **named)
    if "autocast" in function.__name__:
        ctx.modes.require_autocast_defaults(ctx)
    return new_value(ctx, answer)


@evaluates_each(*_OF_A_DEVICE)
def query_of_device(
    ctx: Context, function: Any, *args: VariableTracker, **kwargs: VariableTracker
) -> VariableTracker:
    values, named = constants(ctx, args, kwargs)
    try:
        current = torch.cuda.current_device()
        answer = function(*values, **named)
    except Exception as error:
        text = f"call of {function.__name__}: {type(error).__name__}: {error}"
        raise GraphBreak("BD018", text) from error
    same = Answer("{}()", lambda read: read(), current)
    ctx.guards.require(ConstSource(torch.cuda.current_device), GuardKind.CUSTOM, same)
    if function is torch.cuda.get_device_properties:
        return NamespaceVariable(answer)
    return new_value(ctx, answer)


if hasattr(getattr(_C, "_cpu", None), "_get_cpu_capability"):

    @evaluates_call(_C._cpu._get_cpu_capability)
    def capabilities(ctx: Context) -> VariableTracker:
        return new_value(ctx, _C._cpu._get_cpu_capability())


@evaluates_each(*ANSWERS)
def answered(
    ctx: Context, function: Any, *args: VariableTracker, **kwargs: VariableTracker
) -> VariableTracker:
    return ConstantVariable(ANSWERS[function])
