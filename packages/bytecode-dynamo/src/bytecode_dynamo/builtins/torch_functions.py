"""Torch functions: which are recorded as nodes, and which are answered while capturing."""

from __future__ import annotations

import functools
import inspect
import types
from typing import Any

import torch
from symshapes import unlocked

from bytecode_dynamo.builtins.graph_calls import require
from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.function_table import evaluates_call, evaluates_each
from bytecode_dynamo.graph.opaque import as_target
from bytecode_dynamo.polyfills import control_flow
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.effects import Identity
from bytecode_dynamo.state.protocol import (
    call_known,
    call_polyfill,
    call_torch,
    constant_of,
    decide,
    new_list,
    new_value,
    raise_exception,
)
from bytecode_dynamo.state.requirements import example_of
from bytecode_dynamo.state.tracker import VariableTracker
from bytecode_dynamo.variables.constant import ConstantVariable, SymbolicVariable
from bytecode_dynamo.variables.sequence import ListVariable, TupleVariable, new_tuple
from bytecode_dynamo.variables.tensor import TensorVariable

_C: Any = torch._C
_torch: Any = torch
NAMESPACES: tuple[Any, ...] = (
    torch, torch.nn.functional, torch.functional, torch.linalg, torch.fft, torch.special, _C._nn,
    _C._linalg,
    _C._fft, _C._nested, _C._special, _C._VariableFunctions, torch.nn.init, torch.sparse,
)  # fmt: skip

# Functions of these namespaces that do not compute on tensors.
EXCLUDED = frozenset(
    """
    manual_seed seed set_rng_state get_rng_state initial_seed save load compile set_default_dtype
    set_default_device set_default_tensor_type use_deterministic_algorithms
    set_deterministic_debug_mode set_num_threads set_num_interop_threads set_printoptions
    set_warn_always set_float32_matmul_precision set_flush_denormal from_numpy frombuffer from_file
    vmap typename is_storage get_default_device get_num_threads get_num_interop_threads
    get_file_path prepare_multiprocessing_environment set_anomaly_enabled set_grad_enabled
    is_warn_always_enabled cond while_loop fork wait unify_type_list parse_ir parse_schema
    parse_type_comment import_ir_module import_ir_module_from_buffer merge_type_from_type_comment
    read_vitals set_vital vitals_enabled classproperty from_dlpack to_dlpack init_num_threads
    set_autocast_enabled set_autocast_cache_enabled set_autocast_dtype set_autocast_cpu_dtype
    set_autocast_cpu_enabled set_autocast_gpu_dtype set_autocast_ipu_enabled
    set_autocast_xla_enabled clear_autocast_cache autocast_increment_nesting
    autocast_decrement_nesting resize_as_ resize_as_sparse_ set_ get_device_module
    handle_torch_function has_torch_function has_torch_function_unary has_torch_function_variadic
    has_torch_function_single boolean_dispatch assert_int_or_pair is_anomaly_enabled
    """.split()
)


@functools.cache
def _graph_functions() -> dict[int, Any]:
    found: dict[int, Any] = {}
    for namespace in NAMESPACES:
        for name in dir(namespace):
            if name in EXCLUDED or (name.startswith("__")):
                continue
            value = getattr(namespace, name, None)
            home = getattr(value, "__module__", None) or ""
            is_builtin = isinstance(value, (types.BuiltinFunctionType, types.BuiltinMethodType))
            is_python = (
                isinstance(value, types.FunctionType)
                and home in _PYTHON_HOMES
                and not name.startswith("_")
            )
            if is_builtin or is_python:
                found[id(value)] = value
    return found


_PYTHON_HOMES = frozenset(
    {"torch.nn.functional", "torch.functional", "torch._jit_internal", "torch.nn.init"}
)


def is_graph_function(function: Any) -> bool:
    """Whether calls of a function are recorded as they are."""
    if id(function) in _graph_functions():
        return True
    return isinstance(
        function, (torch._ops.OpOverload, torch._ops.OpOverloadPacket, torch.jit.ScriptFunction)
    )


def allowed_rule(function: Any) -> Any:
    """The rule of a function whose calls are recorded without evaluating its code."""
    target = as_target(function)
    return lambda ctx, *args, **kwargs: call_torch(ctx, target, args, kwargs)


@evaluates_call(_torch._shape_as_tensor)
def shape_as_tensor(ctx: Context, x: VariableTracker) -> VariableTracker:
    sizes = new_list(ctx, x.get_attr(ctx, "shape").unpack(ctx))
    return call_torch(ctx, torch.tensor, [sizes], {"dtype": ConstantVariable(torch.int64)})


def constant_result_rule(function: Any) -> Any:
    """The rule of a function that is called while capturing, on real arguments."""

    def rule(ctx: Context, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
        given = [real_value(ctx, arg) for arg in args]
        named = {k: real_value(ctx, v) for k, v in kwargs.items()}
        with unlocked():  # it may wait for other threads
            result = function(*given, **named)
        return new_value(ctx, result)

    return rule


def real_value(ctx: Context, value: VariableTracker) -> Any:
    """The real object of a tracker, if it exists while capturing."""
    if isinstance(value, TensorVariable):
        found = example_of(ctx, value)
        if found is not None:
            return found
        raise GraphBreak("BD007", f"the value of {value.describe()} is not known while capturing")
    key = value.identity()
    if isinstance(key, Identity) and key.exists:
        return key.value
    return constant_of(ctx, value, "an argument whose value must be known")


@evaluates_call(torch.overrides.is_tensor_method_or_property)
def is_tensor_method(ctx: Context, function: VariableTracker) -> VariableTracker:
    return ConstantVariable(torch.overrides.is_tensor_method_or_property(function.as_constant(ctx)))


evaluates_call(torch.is_conj)(lambda ctx, input: input.call_method(ctx, "is_conj", [], {}))
evaluates_call(torch.is_neg)(lambda ctx, input: input.call_method(ctx, "is_neg", [], {}))
evaluates_call(torch.resolve_conj)(
    lambda ctx, input: input.call_method(ctx, "resolve_conj", [], {})
)
evaluates_call(torch.resolve_neg)(lambda ctx, input: input.call_method(ctx, "resolve_neg", [], {}))


@evaluates_call(torch._C._len_torch_dispatch_stack)
def dispatch_modes(ctx: Context) -> VariableTracker:
    # Read outside of capture's own mode; the guarded global state includes the number.
    return ConstantVariable(torch._C._len_torch_dispatch_stack())


@evaluates_call(torch._C._is_torch_function_mode_enabled)
def has_function_modes(ctx: Context) -> VariableTracker:
    return ConstantVariable(bool(ctx.modes.function_modes(ctx)))


@evaluates_call(torch._C._len_torch_function_stack)
def function_modes(ctx: Context) -> VariableTracker:
    return ConstantVariable(
        torch._C._len_torch_function_stack() + len(ctx.modes.function_modes(ctx))
    )


@evaluates_call(torch._C._get_function_stack_at)
def function_mode_at(ctx: Context, index: VariableTracker) -> VariableTracker:
    return ctx.modes.function_modes(ctx)[
        index.as_constant(ctx) - torch._C._len_torch_function_stack()
    ]


@evaluates_call(_torch._check_with)
def check_with(
    ctx: Context, error: VariableTracker, condition: VariableTracker, message: VariableTracker
) -> None:
    """``torch._check`` and its relatives: a guard for a condition on sizes, a graph call for one on
    unbacked numbers.
    """
    unknown = (
        isinstance(condition, SymbolicVariable)
        and condition.value.node.expr.free_symbols & ctx.env.unbacked
    )
    if not unknown and condition.truth(ctx):
        return
    text = UNCHECKED if message.is_none else call_known(ctx, str, [message.call(ctx, [], {})])
    kind = error.as_constant(ctx)
    if not unknown:
        raise_exception(ctx, kind, [text])
    since = len(ctx.env.deferred_asserts)
    ctx.env.expect_true(condition.value.node)  # pyright: ignore[reportAttributeAccessIssue]
    require(ctx, since, kind.__name__, constant_of(ctx, text, "the message of a check"))


@evaluates_call(
    *{
        id(one): one for one in (_torch._check_is_size, inspect.unwrap(_torch._check_is_size))
    }.values()
)
def check_is_size(
    ctx: Context, *args: VariableTracker, **kwargs: VariableTracker
) -> VariableTracker:
    return call_polyfill(ctx, control_flow.check_is_size, list(args), dict(kwargs))


UNCHECKED = ConstantVariable("Expected cond to be True, but got False")


evaluates_call(torch._C._set_grad_enabled)(
    lambda ctx, enabled: ctx.modes.set_grad(ctx, enabled.truth(ctx))
)


_FUSED = ("_fused_sgd_", "_fused_adagrad_")  # fakes do not know them


@evaluates_each(*(getattr(torch, name) for name in _FUSED if hasattr(torch, name)))
def write_in_place(
    ctx: Context, function: Any, *args: VariableTracker, **kwargs: VariableTracker
) -> None:
    """A function that writes to its first arguments and returns nothing."""
    named = {name: value.as_proxy(ctx) for name, value in kwargs.items()}
    ctx.graph.add_call(function, tuple(arg.as_proxy(ctx) for arg in args), named)


@evaluates_call(torch._has_compatible_shallow_copy_type)
def has_compatible_type(
    ctx: Context, tensor: VariableTracker, other: VariableTracker
) -> VariableTracker:
    return ConstantVariable(
        decide(
            ctx,
            lambda: torch._has_compatible_shallow_copy_type(
                tensor.as_fake(ctx), other.as_fake(ctx)
            ),
            "",
        )
    )


def make_tensor(
    ctx: Context, data: VariableTracker, *args: VariableTracker, **kwargs: VariableTracker
) -> VariableTracker:
    """``torch.tensor(data)``; numbers in tensors are stacked, where eager reads them one by one."""
    rows = data.unpack(ctx) if isinstance(data, (ListVariable, TupleVariable)) else []
    kinds = {
        (row.fake.dtype, row.fake.device, row.fake.dim())
        for row in rows
        if isinstance(row, TensorVariable)
    }
    if len(kinds) == 1 and all(
        isinstance(row, TensorVariable) and not row.fake.dim() for row in rows
    ):
        data = call_torch(ctx, torch.stack, [new_list(ctx, rows)]).call_method(
            ctx, "detach", [], {}
        )
        wanted = kwargs["dtype"].as_constant(ctx) if "dtype" in kwargs else None
        ((given, _, _),) = kinds
        if (
            wanted is not None
            and given.is_floating_point
            and not (wanted.is_floating_point or wanted.is_complex)
        ):
            # eager mode refuses this
            raise GraphBreak("BD018", f"torch.tensor of numbers in tensors, as {wanted}")
        if not args and set(kwargs) <= {"dtype", "device"}:
            return data.call_method(ctx, "to", [], kwargs) if kwargs else data
    if isinstance(data, SymbolicVariable) and isinstance(data.value, torch.SymBool):
        data = ConstantVariable(data.truth(ctx))
    leaves = _numbers_in(ctx, data)
    symbolic = any(isinstance(leaf, SymbolicVariable) for leaf in leaves)
    if (
        symbolic
        and {leaf.python_type() for leaf in leaves} <= {int, float}
        and not args
        and set(kwargs) <= {"dtype", "device"}
    ):
        floats = any(leaf.python_type() is float for leaf in leaves)
        inferred = ConstantVariable(torch.get_default_dtype() if floats else torch.int64)
        return _of_numbers(ctx, data, {"dtype": inferred, **kwargs})
    return call_torch(ctx, torch.tensor, [data, *args], kwargs)


def _numbers_in(ctx: Context, data: VariableTracker) -> list[VariableTracker]:
    """The numbers of nested lists."""
    if not isinstance(data, (ListVariable, TupleVariable)):
        return [data]
    return [leaf for row in data.unpack(ctx) for leaf in _numbers_in(ctx, row)]


def _of_numbers(
    ctx: Context, data: VariableTracker, options: dict[str, VariableTracker]
) -> VariableTracker:
    """A tensor of numbers, some symbolic; creating it does not specialise them."""
    if isinstance(data, (ListVariable, TupleVariable)):
        rows = new_list(ctx, [_of_numbers(ctx, row, options) for row in data.unpack(ctx)])
        return call_torch(ctx, torch.stack, [rows])
    return call_torch(ctx, torch.full, [new_tuple([]), data], options)


evaluates_call(torch.sym_float)(lambda ctx, number: call_known(ctx, float, [number]))
evaluates_call(torch.numel)(lambda ctx, input: input.call_method(ctx, "numel", [], {}))
