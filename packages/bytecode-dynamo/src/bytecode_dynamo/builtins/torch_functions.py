"""Torch functions: which are recorded, which are answered while capturing, and how results become
trackers.
"""

from __future__ import annotations

import builtins
import inspect
import operator
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from symshapes import DataDependentError, FakeTensor, GuardOnDataDependent, is_fake, is_wrapper
from torch.utils import _pytree as pytree

from bytecode_dynamo.errors import ASSUMED, GraphBreak
from bytecode_dynamo.function_table import evaluates_call
from bytecode_dynamo.graph.builder import NestedGraph
from bytecode_dynamo.graph.opaque import OpaqueCall, as_target
from bytecode_dynamo.polyfills import control_flow
from bytecode_dynamo.state import protocol
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.effects import Identity
from bytecode_dynamo.state.protocol import (
    call_known,
    call_polyfill,
    call_torch,
    constant_of,
    decide,
    dispatch_override,
    new_dict,
    new_list,
    new_value,
    raise_exception,
)
from bytecode_dynamo.state.requirements import example_of, remember_tensor
from bytecode_dynamo.state.tracker import VariableTracker
from bytecode_dynamo.variables.constant import ConstantVariable, SymbolicVariable
from bytecode_dynamo.variables.sequence import ListVariable, TupleVariable, new_tuple
from bytecode_dynamo.variables.tensor import TensorVariable

_C: Any = torch._C
_torch: Any = torch
NAMESPACES: tuple[Any, ...] = (
    torch, torch.nn.functional, torch.functional, torch.linalg, torch.fft, torch.special, _C._nn,
    _C._linalg,
    _C._fft, _C._special, _C._VariableFunctions, torch.nn.init, torch.sparse,
)  # fmt: skip

# In these namespaces, but not computations on tensors.
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

_graph_functions: dict[int, Any] = {}


def _collect() -> None:
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
                _graph_functions[id(value)] = value


_PYTHON_HOMES = frozenset(
    {"torch.nn.functional", "torch.functional", "torch._jit_internal", "torch.nn.init"}
)


def is_graph_function(function: Any) -> bool:
    """Whether calls of a function stand in graphs as they are."""
    if not _graph_functions:
        _collect()
    if id(function) in _graph_functions:
        return True
    return isinstance(
        function, (torch._ops.OpOverload, torch._ops.OpOverloadPacket, torch.jit.ScriptFunction)
    )


def allowed_rule(function: Any) -> Any:
    """The rule of a function whose calls are recorded without looking into it."""
    target = as_target(function)
    return lambda ctx, *args, **kwargs: call(ctx, "call_function", target, list(args), kwargs)


def constant_result_rule(function: Any) -> Any:
    """The rule of a function that is called while capturing, with the real values of its
    arguments.
    """

    def rule(ctx: Context, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
        result = function(
            *(real_value(ctx, arg) for arg in args),
            **{k: real_value(ctx, v) for k, v in kwargs.items()},
        )
        return new_value(ctx, result)

    return rule


def real_value(ctx: Context, value: VariableTracker) -> Any:
    """The object that a tracker stands for, when it exists while capturing."""
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
    # Asked outside capture's own mode, which is not the program's; the number is part of the
    # guarded global state.
    return ConstantVariable(torch._C._len_torch_dispatch_stack())


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


def _require(holds: bool, error: str, message: str) -> None:
    """Raise a built-in error where a number that only the running program knows is not as it should
    be.
    """
    if isinstance(holds, torch.SymBool):  # a compiler traces the call
        return torch.ops.aten._assert_scalar(holds, message)
    if not holds:
        raise getattr(builtins, error)(message)


REQUIRE = OpaqueCall(_require, "require")


@evaluates_call(_torch._check_with)
def check_with(
    ctx: Context, error: VariableTracker, condition: VariableTracker, message: VariableTracker
) -> None:
    """``torch._check`` and its relatives: a condition on sizes becomes a guard, one on unbacked
    numbers a call in the graph.
    """
    unknown = (
        isinstance(condition, SymbolicVariable)
        and condition.value.node.expr.free_symbols & ctx.env.unbacked
    )
    if not unknown and condition.truth(ctx):
        return
    text = UNCHECKED if message.is_none else call_known(ctx, str, [message.call(ctx, [], {})], {})
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


def _writes(function: Any) -> Any:
    """Writes to its first arguments; gives nothing."""

    def rule(ctx: Context, *args: VariableTracker, **kwargs: VariableTracker) -> None:
        named = {name: value.as_proxy(ctx) for name, value in kwargs.items()}
        ctx.graph.add_call(
            "call_function", function, tuple(arg.as_proxy(ctx) for arg in args), named, None
        )

    return rule


for _name in ("_fused_sgd_", "_fused_adagrad_"):  # fakes do not know them
    if hasattr(torch, _name):
        evaluates_call(getattr(torch, _name))(_writes(getattr(torch, _name)))


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
    """``torch.tensor(data)``; of numbers in tensors, which eager mode reads one by one, by stacking
    them.
    """
    rows = data.unpack(ctx) if isinstance(data, (ListVariable, TupleVariable)) else []
    kinds = {
        (row.fake.dtype, row.fake.device, row.fake.dim())
        for row in rows
        if isinstance(row, TensorVariable)
    }
    if len(kinds) == 1 and all(
        isinstance(row, TensorVariable) and not row.fake.dim() for row in rows
    ):
        data = call_torch(ctx, "call_function", torch.stack, [new_list(ctx, rows)], {}).call_method(
            ctx, "detach", [], {}
        )
        wanted = kwargs["dtype"].as_constant(ctx) if "dtype" in kwargs else None
        ((given, _, _),) = kinds
        if (
            wanted is not None
            and given.is_floating_point
            and not (wanted.is_floating_point or wanted.is_complex)
        ):
            # which eager mode refuses
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
    return call(ctx, "call_function", torch.tensor, [data, *args], kwargs)


def _numbers_in(ctx: Context, data: VariableTracker) -> list[VariableTracker]:
    """The numbers of nested lists."""
    if not isinstance(data, (ListVariable, TupleVariable)):
        return [data]
    return [leaf for row in data.unpack(ctx) for leaf in _numbers_in(ctx, row)]


def _of_numbers(
    ctx: Context, data: VariableTracker, options: dict[str, VariableTracker]
) -> VariableTracker:
    """A tensor of numbers of which some are symbolic: that they are read does not say what they
    are.
    """
    if isinstance(data, (ListVariable, TupleVariable)):
        rows = new_list(ctx, [_of_numbers(ctx, row, options) for row in data.unpack(ctx)])
        return call_torch(ctx, "call_function", torch.stack, [rows], {})
    return call_torch(ctx, "call_function", torch.full, [new_tuple([]), data], options)


evaluates_call(torch.sym_float)(lambda ctx, number: call_known(ctx, float, [number], {}))
evaluates_call(torch.numel)(lambda ctx, value: value.call_method(ctx, "numel", [], {}))


# -- recording -------------------------------------------------------------------------------------


def call(
    ctx: Context,
    op: str,
    target: Any,
    args: list[VariableTracker],
    kwargs: dict[str, VariableTracker],
) -> VariableTracker:
    """Evaluate a torch call on fake values, and record it if its result is a tensor or it has an
    effect.
    """
    handled = dispatch_override(ctx, op, target, args, kwargs)
    if handled is not None:
        return handled
    fakes = [arg.as_fake(ctx) for arg in args]
    named = {name: value.as_fake(ctx) for name, value in kwargs.items()}
    named.pop("generator", None)  # sizes do not depend on it
    with_unbacked, assumptions = len(ctx.env.unbacked), len(ctx.env.deferred_asserts)
    _note_relayout(ctx, target, args, fakes, named)
    changes_history = bool(args) and _changes_history_of_view(ctx, target, args[0], fakes)
    views = [
        (t, t.shape)
        for t in pytree.tree_leaves(named.get("out"))
        if isinstance(t, torch.Tensor) and t._is_view()
    ]
    try:
        result = evaluate(ctx, op, target, fakes, named)
        if target in _INDEXED and len(ctx.env.unbacked) > with_unbacked and _has_number(fakes[1]):
            # torch 2.15 reads the number into the view's offset
            del ctx.env.deferred_asserts[assumptions:]
            raise GraphBreak("BD001", f"{name_of(target)} with a number in a tensor")
    except GraphBreak as error:
        if (
            error.id == "BD001"
            and target is operator.getitem
            and ctx.graph.in_batch
            and _has_numbers_only(fakes[1])
        ):
            return call_polyfill(ctx, control_flow.item_of_each, args, {})
        if (
            error.id != "BD001"
            or target not in _INDEXED
            or not ctx.host_effects
            or isinstance(ctx.graph, NestedGraph)
        ):
            raise
        return _indexed_by_host(ctx, target, args, fakes)
    if changes_history:
        ctx.mode.note_history(fakes[0])
    if any(view.shape != shape for view, shape in views):
        raise GraphBreak("BD020", f"{name_of(target)}() gives a view that is its out= another size")
    if _is_query(ctx, result) and len(ctx.env.unbacked) == with_unbacked:
        return new_value(ctx, result)
    if isinstance(target, torch.jit.ScriptFunction):
        target = OpaqueCall(target, str(target.name))
    require(ctx, assumptions, "RuntimeError", ASSUMED)
    proxies = tuple(arg.as_proxy(ctx) for arg in args)
    named_proxies = {name: value.as_proxy(ctx) for name, value in kwargs.items()}
    node = ctx.graph.add_call(op, target, proxies, named_proxies, result)
    if len(ctx.env.unbacked) != with_unbacked:
        bind_unbacked(ctx, node, result)
    return wrap_result(ctx, node, result)


def _note_relayout(
    ctx: Context,
    target: Any,
    args: Sequence[VariableTracker],
    fakes: list[Any],
    named: dict[str, Any],
) -> None:
    if name_of(target) in _RELAYOUTS or "out" in named:
        if (
            args
            and isinstance(args[0], TensorVariable)
            and ctx.effects.read((args[0].key(ctx), "grad"), None) is not None
        ):
            raise GraphBreak(
                "BD020",
                f"{name_of(target)} of {args[0].describe()}, whose gradient was assigned for its "
                f"sizes",
            )
        for fake in (fakes[0] if fakes else None, *pytree.tree_leaves(named.get("out"))):
            ctx.graph.change_metadata(fake)


def _changes_history_of_view(
    ctx: Context, target: Any, written: VariableTracker, fakes: list[Any]
) -> bool:
    """Whether a call writes to a view that was there before, and it or what is written requires
    gradients: nothing undoes that.
    """
    name = name_of(target)
    is_write = name.endswith("_") or target in _AUGMENTED or target is operator.setitem
    if not is_write or not isinstance(written, TensorVariable):
        return False
    example = example_of(ctx, written)
    if example is None or not torch.is_grad_enabled():
        return False
    if not any(
        isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in pytree.tree_leaves(fakes)
    ):
        return False
    ctx.refuse_if_careful(
        f"{written.describe()} gets another history by {name}(), and so does a view of it"
    )
    return example._is_view()


def require(ctx: Context, since: int, error: str, message: str) -> None:
    """Let the graph check what was assumed, since then, of numbers that depend on data, before
    anything relies on it.
    """
    for guard in ctx.env.deferred_asserts[since:]:
        condition = ctx.graph.condition(guard.expr, ctx.env)
        ctx.graph.add_call("call_function", REQUIRE, (condition, error, message), {}, None)


def _indexed_by_host(
    ctx: Context, target: Any, args: list[VariableTracker], fakes: list[Any]
) -> VariableTracker:
    """A call with a number in a tensor as an index: the host reads it, and what is there has the
    same sizes everywhere.
    """
    fakes[1] = pytree.tree_map_only(
        FakeTensor, lambda index: index if index.dim() or index.dtype in _MASKS else 0, fakes[1]
    )
    val = evaluate(ctx, "call_function", target, fakes, {})
    ctx.mode.events.append("refuse")
    return wrap_result(
        ctx, ctx.graph.add_host_call(target, tuple(arg.as_proxy(ctx) for arg in args), val=val), val
    )


def _has_number(index: Any) -> bool:
    return any(
        isinstance(x, torch.Tensor) and not x.dim() and x.dtype not in _MASKS
        for x in pytree.tree_leaves(index)
    )


def _has_numbers_only(index: Any) -> bool:
    tensors = [leaf for leaf in pytree.tree_leaves(index) if isinstance(leaf, torch.Tensor)]
    return not any(tensor.dim() or tensor.dtype in _MASKS for tensor in tensors)


_MASKS = (torch.bool, torch.uint8)
_INDEXED = (operator.getitem, operator.setitem)
_AUGMENTED = frozenset(
    getattr(operator, f"i{name}")
    for name in ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor"]
)
# fmt: off
_RELAYOUTS = frozenset(["t_", "transpose_", "swapaxes_", "swapdims_", "unsqueeze_", "squeeze_",
    "as_strided_", "resize_",
                        "resize_as_"])
# fmt: on


def call_nodes(
    ctx: Context, target: Any, args: Sequence[VariableTracker], nodes: Sequence[Any]
) -> VariableTracker:
    """Record a call whose last arguments are nodes."""
    fakes = [
        *(arg.as_fake(ctx) for arg in args),
        *(node if isinstance(node, int) else node.meta["val"] for node in nodes),
    ]
    with_unbacked = len(ctx.env.unbacked)
    result = evaluate(ctx, "call_function", target, fakes, {})
    node = ctx.graph.add_call(
        "call_function", target, (*(arg.as_proxy(ctx) for arg in args), *nodes), {}, result
    )
    if len(ctx.env.unbacked) != with_unbacked:
        bind_unbacked(ctx, node, result)
    return wrap_result(ctx, node, result)


def evaluate(ctx: Context, op: str, target: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The fake result of a torch call; a failure breaks the graph, and eager mode then says what is
    wrong.
    """
    ctx.graph.note_operands((args, kwargs))
    try:
        with ctx.mode:
            if op == "call_method":
                return getattr(args[0], target)(*args[1:], **kwargs)
            return target(*args, **kwargs)
    except (DataDependentError, GuardOnDataDependent) as error:
        id_ = "BD004" if target in ("item", "tolist", int, float) else "BD001"
        raise GraphBreak(id_, f"{name_of(target)} needs the values of a tensor: {error}") from error
    except GraphBreak:
        raise
    except Exception as error:
        raise GraphBreak("BD011", f"{name_of(target)}: {type(error).__name__}: {error}") from error


def name_of(target: Any) -> str:
    """A short name of a call target."""
    return target if isinstance(target, str) else getattr(target, "__name__", str(target))


def _is_query(ctx: Context, result: Any) -> bool:
    """Whether a result is known now, so that nothing has to be computed."""
    if result is None:
        return False
    return not any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(result))


def bind_unbacked(ctx: Context, node: Any, result: Any) -> None:
    """Let the node that makes an unbacked number stand for it."""
    for leaf, path in _leaves(result, ()):
        if _is_unbacked(ctx, leaf) or (
            isinstance(leaf, torch.SymBool) and leaf.node.expr.free_symbols
        ):
            ctx.graph.bind_unbacked(leaf.node.expr, _select(ctx, node, path))
        elif isinstance(leaf, torch.Tensor):
            sizes: Any = leaf.shape
            for dim, size in enumerate(sizes):
                if _is_unbacked(ctx, size) and not ctx.graph.knows(size.node.expr):
                    made = ctx.graph.add_call(
                        "call_method", "size", (_select(ctx, node, path), dim), {}, size
                    )
                    ctx.graph.bind_unbacked(size.node.expr, made)


def _is_unbacked(ctx: Context, value: Any) -> bool:
    """Whether a value is a bare unbacked symbol."""
    return isinstance(value, (torch.SymInt, torch.SymFloat)) and value.node.expr in ctx.env.unbacked


def _select(ctx: Context, node: Any, path: tuple[Any, ...]) -> Any:
    for index in path:
        node = _item(ctx, node, index)
    return node


def _leaves(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    if isinstance(value, (tuple, list)):
        for index, item in enumerate(value):
            yield from _leaves(item, (*path, index))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, (*path, key))
    else:
        yield value, path


def _item(ctx: Context, node: Any, index: Any) -> Any:
    for user in node.users:
        if (
            user.op == "call_function"
            and user.target is operator.getitem
            and user.args == (node, index)
        ):
            return user
    made = ctx.graph.add_call(
        "call_function", operator.getitem, (node, index), {}, node.meta["val"][index]
    )
    ctx.graph.calls -= 1
    return made


def wrap_result(ctx: Context, node: Any, result: Any) -> VariableTracker:
    """The tracker of a recorded call's result."""
    if is_fake(result):
        known = ctx.tensors.get(id(result))
        if known is not None:
            return known  # an in-place call gives its operand
        tracker = TensorVariable(node, result, type(result) if is_wrapper(result) else torch.Tensor)
        remember_tensor(ctx, tracker)
        return tracker
    if isinstance(result, (tuple, list)):
        items = [_wrap_item(ctx, node, index, item) for index, item in enumerate(result)]
        if isinstance(result, list):
            return new_list(ctx, items)
        return TupleVariable(tuple(items), type(result))
    if isinstance(result, dict) and _has_tensor(result):
        return new_dict(
            ctx,
            [
                (new_value(ctx, key), _wrap_item(ctx, node, key, item))
                for key, item in result.items()
            ],
        )
    if isinstance(result, torch.Tensor):
        raise GraphBreak("BD011", f"{node.target} gave a real tensor while capturing")
    return new_value(ctx, result)


def _wrap_item(ctx: Context, node: Any, key: Any, item: Any) -> VariableTracker:
    return (
        wrap_result(ctx, _item(ctx, node, key), item) if _has_tensor(item) else new_value(ctx, item)
    )


def _has_tensor(value: Any) -> bool:
    return any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(value))


@protocol.call_torch.implement
def _call_torch(
    ctx: Context,
    op: str,
    target: Any,
    args: Sequence[VariableTracker],
    kwargs: Mapping[str, VariableTracker],
) -> VariableTracker:
    return call(ctx, op, target, list(args), dict(kwargs))
