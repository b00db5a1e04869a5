"""Recorded torch calls: evaluation on fake values, nodes, and trackers of their results."""

from __future__ import annotations

import builtins
import operator
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch
from symshapes import DataDependentError, FakeTensor, GuardOnDataDependent, is_fake, is_wrapper
from torch.utils import _pytree as pytree

from bytecode_dynamo.errors import ASSUMED, GraphBreak
from bytecode_dynamo.graph.builder import NestedGraph
from bytecode_dynamo.graph.opaque import OpaqueCall
from bytecode_dynamo.polyfills import control_flow
from bytecode_dynamo.state import protocol
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.protocol import (
    NO_KEYWORDS,
    call_polyfill,
    dispatch_override,
    new_dict,
    new_list,
    new_value,
)
from bytecode_dynamo.state.requirements import example_of, remember_tensor
from bytecode_dynamo.state.tracker import Args, Kwargs, VariableTracker
from bytecode_dynamo.variables.sequence import TupleVariable
from bytecode_dynamo.variables.tensor import TensorVariable

AS_NUMBER = (
    "pass the number as a Python int or float, or set bytecode_dynamo.config.capture_scalar_outputs"
)


def _operands(
    ctx: Context, target: Any, args: Args, kwargs: Kwargs
) -> tuple[list[Any], dict[str, Any]] | None:
    """The arguments to evaluate a call with; None for a Python function that takes what no graph
    node can have, such as another function: its own calls are recorded.
    """
    try:
        fakes = [arg.as_fake(ctx) for arg in args]
        named = {name: value.as_fake(ctx) for name, value in kwargs.items()}
    except GraphBreak as error:
        if error.id == "BD002" and isinstance(target, types.FunctionType):
            return None
        raise
    named.pop("generator", None)  # sizes do not depend on it
    return fakes, named


@protocol.call_torch.implement
def _call_torch(
    ctx: Context, target: Any, args: Args, kwargs: Kwargs = NO_KEYWORDS
) -> VariableTracker:
    """Evaluate a torch call on fake values; record it if it returns tensors or has an effect, or
    the calls of a Python function whose arguments no node can have.
    """
    op = "call_method" if isinstance(target, str) else "call_function"
    handled = dispatch_override(ctx, op, target, args, kwargs)
    if handled is not None:
        return handled
    operands = _operands(ctx, target, args, kwargs)
    if operands is None:
        return call_polyfill(ctx, target, args, kwargs)
    return _record(ctx, target, args, kwargs, *operands)


def _record(
    ctx: Context,
    target: Any,
    args: Args,
    kwargs: Kwargs,
    fakes: list[Any],
    named: dict[str, Any],
) -> VariableTracker:
    """The result of a call on fake values."""
    with_unbacked, assumptions = len(ctx.env.unbacked), len(ctx.env.deferred_asserts)
    _note_relayout(ctx, target, args, fakes, named)
    changes_history = bool(args) and _changes_history_of_view(ctx, target, args[0], fakes)
    views = [
        (t, t.shape)
        for t in pytree.tree_leaves(named.get("out"))
        if isinstance(t, torch.Tensor) and t._is_view()
    ]
    try:
        result = evaluate(ctx, target, fakes, named)
        if target in _INDEXED and len(ctx.env.unbacked) > with_unbacked and _has_number(fakes[1]):
            # torch 2.15 reads the number for the view's offset
            del ctx.env.deferred_asserts[assumptions:]
            reason = f"{name_of(target)} with a number in a tensor"
            raise GraphBreak("BD001", reason, AS_NUMBER)
    except GraphBreak as error:
        if (
            error.id == "BD001"
            and target in _INDEXED
            and ctx.graph.in_batch
            and _has_numbers_only(fakes[1])
        ):
            return call_polyfill(ctx, _INDEXED[target], args)
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
    is_index = target in (*_INDEXED, "select")
    if not is_index:
        _refuse_assumptions(ctx, target, fakes, assumptions)
    require(ctx, assumptions, "IndexError" if is_index else "RuntimeError", ASSUMED)
    proxies = tuple(arg.as_proxy(ctx) for arg in args)
    named_proxies = {name: value.as_proxy(ctx) for name, value in kwargs.items()}
    node = ctx.graph.add_call(target, proxies, named_proxies, result)
    if len(ctx.env.unbacked) != with_unbacked:
        bind_unbacked(ctx, node, result)
    return wrap_result(ctx, node, result)


def _note_relayout(
    ctx: Context, target: Any, args: Args, fakes: list[Any], named: dict[str, Any]
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
    """Whether a call writes to an existing view and a gradient is required: its history can't be
    undone.
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


def _require(holds: bool, error: str, message: str) -> None:
    """Raise a built-in error unless a data-dependent condition holds."""
    if isinstance(holds, torch.SymBool):  # a compiler traces the call
        return torch.ops.aten._assert_scalar(holds, message)
    if not holds:
        raise getattr(builtins, error)(message)


REQUIRE = OpaqueCall(_require, "require")


def _refuse_assumptions(ctx: Context, target: Any, fakes: list[Any], since: int) -> None:
    """Break the graph before a call that is captured for some data-dependent sizes only: eager mode
    may take others, such as a size of 1, which it broadcasts.
    """
    assumed = [guard.expr for guard in ctx.env.deferred_asserts[since:]]
    if (
        assumed
        and not ctx.config.capture_scalar_outputs
        and not _fail_elsewhere(target, fakes, assumed)
    ):
        del ctx.env.deferred_asserts[since:]
        raise GraphBreak(
            "BD001",
            f"{name_of(target)} works for some sizes only: {assumed[0]}",
            "call it outside the compiled region, or with sizes that do not depend on data",
        )


def _fail_elsewhere(target: Any, fakes: list[Any], assumed: Sequence[Any]) -> bool:
    """Whether eager mode raises an error for all other sizes: those of another number of
    elements than a new shape has.
    """
    x = fakes[0] if fakes else None
    return (
        name_of(target) in _SHAPING
        and isinstance(x, torch.Tensor)
        and x.dim() == 1
        and all(isinstance(expr, sympy.Eq) for expr in assumed)
    )


_SHAPING = frozenset({"reshape", "view", "unflatten"})


def require(ctx: Context, since: int, error: str, message: str) -> None:
    """Let the graph check the assumptions about data-dependent numbers since ``since`` before
    anything relies on them.
    """
    for guard in ctx.env.deferred_asserts[since:]:
        if not all(map(ctx.graph.knows, guard.expr.free_symbols)):
            raise GraphBreak(
                "BD001",
                f"an operator reads numbers from a tensor ({guard.expr})",
                AS_NUMBER,
            )
        condition = ctx.graph.condition(guard.expr, ctx.env)
        ctx.graph.add_call(REQUIRE, (condition, error, message))


def _indexed_by_host(ctx: Context, target: Any, args: Args, fakes: list[Any]) -> VariableTracker:
    """Index with a number in a tensor: the host reads the number; sizes do not depend on it."""
    fakes[1] = pytree.tree_map_only(
        FakeTensor, lambda index: index if index.dim() or index.dtype in _MASKS else 0, fakes[1]
    )
    val = evaluate(ctx, target, fakes)
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


_INDEXED = {
    operator.getitem: control_flow.item_of_each,
    operator.setitem: control_flow.set_item_of_each,
}
"""By function of an indexed call, the same with numbers of a batch for positions."""


_AUGMENTED = frozenset(
    getattr(operator, f"i{name}")
    for name in ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor"]
)


_RELAYOUTS = frozenset(
    """
    t_ transpose_ swapaxes_ swapdims_ unsqueeze_ squeeze_ as_strided_ resize_ resize_as_
    """.split()
)


def call_nodes(ctx: Context, target: Any, args: Args, nodes: Sequence[Any]) -> VariableTracker:
    """Record a call whose last arguments are nodes."""
    fakes = [
        *(arg.as_fake(ctx) for arg in args),
        *(node if isinstance(node, int) else node.meta["val"] for node in nodes),
    ]
    with_unbacked = len(ctx.env.unbacked)
    result = evaluate(ctx, target, fakes)
    node = ctx.graph.add_call(target, (*(arg.as_proxy(ctx) for arg in args), *nodes), {}, result)
    if len(ctx.env.unbacked) != with_unbacked:
        bind_unbacked(ctx, node, result)
    return wrap_result(ctx, node, result)


def evaluate(
    ctx: Context, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any] = NO_KEYWORDS
) -> Any:
    """The fake result of a torch call; a failure breaks the graph: eager mode raises the error."""
    ctx.graph.note_operands((args, kwargs))
    try:
        with ctx.mode:
            if isinstance(target, str):
                return getattr(args[0], target)(*args[1:], **kwargs)
            return target(*args, **kwargs)
    except (DataDependentError, GuardOnDataDependent) as error:
        id_ = "BD004" if target in ("item", "tolist", int, float) else "BD001"
        raise GraphBreak(
            id_,
            f"{name_of(target)} needs the values of a tensor: {error}",
            AS_NUMBER,
        ) from error
    except GraphBreak:
        raise
    except Exception as error:
        raise GraphBreak(
            "BD011",
            f"{name_of(target)}: {type(error).__name__}: {error}",
            "if eager mode raises too, the call itself is wrong; an operator of "
            "your own needs torch.library.register_fake",
        ) from error


def name_of(target: Any) -> str:
    """A short name of a call target."""
    return target if isinstance(target, str) else getattr(target, "__name__", str(target))


def _is_query(ctx: Context, result: Any) -> bool:
    """Whether a result is known now and needs no node."""
    if result is None:
        return False
    return not any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(result))


def bind_unbacked(ctx: Context, node: Any, result: Any) -> None:
    """Make the node that computes an unbacked number stand for it."""
    for leaf, path in _leaves(result, ()):
        if _is_unbacked(ctx, leaf) or (
            isinstance(leaf, torch.SymBool) and leaf.node.expr.free_symbols
        ):
            ctx.graph.bind_unbacked(leaf.node.expr, _select(ctx, node, path))
        elif isinstance(leaf, torch.Tensor):
            sizes: Any = leaf.shape
            for dim, size in enumerate(sizes):
                if _is_unbacked(ctx, size) and not ctx.graph.knows(size.node.expr):
                    made = ctx.graph.add_call("size", (_select(ctx, node, path), dim), {}, size)
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
    made = ctx.graph.add_call(operator.getitem, (node, index), {}, node.meta["val"][index])
    ctx.graph.calls -= 1
    return made


def wrap_result(ctx: Context, node: Any, result: Any) -> VariableTracker:
    """The tracker of a recorded call's result."""
    if is_fake(result):
        known = ctx.tensors.get(id(result))
        if known is not None:
            return known  # an in-place call returns its operand
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
        raise GraphBreak(
            "BD011",
            f"{node.target} gave a real tensor while capturing",
            "pass the tensor that it makes as an argument",
        )
    return new_value(ctx, result)


def _wrap_item(ctx: Context, node: Any, key: Any, item: Any) -> VariableTracker:
    if _has_tensor(item):
        return wrap_result(ctx, _item(ctx, node, key), item)
    return new_value(ctx, item)


def _has_tensor(value: Any) -> bool:
    return any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(value))
