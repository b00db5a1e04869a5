"""Helpers that read and write functional graphs: what a node is, what uses it, and new nodes with
their metadata.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from primops import TensorMeta, prims
from symshapes.decisions import may
from torch import fx
from torch._ops import OpOverload

FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
VIEWS = frozenset({"view", "_unsafe_view", "reshape"})


def name_of(node: object) -> str:
    """The ATen name of a call without overload (``view``); empty for everything else."""
    if not isinstance(node, fx.Node) or node.op != "call_function":
        return ""
    return _aten_name(node.target)


@cache
def _aten_name(target: object) -> str:
    if not isinstance(target, OpOverload):
        return ""
    space, _, name = target.name().partition("::")
    return name.partition(".")[0] if space == "aten" else ""


def meta_of(node: object) -> TensorMeta | None:
    """Shape, strides, dtype and device of a node's tensor; None for everything else."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return TensorMeta.from_tensor(value) if isinstance(value, torch.Tensor | TensorMeta) else None


def tensor_of(node: object) -> TensorMeta:
    """``meta_of`` for a node whose value is known to be a tensor."""
    meta = meta_of(node)
    assert meta is not None, f"{node} is no tensor"
    return meta


def dense(
    shape: Sequence[Any],
    like: TensorMeta,
    dtype: torch.dtype | None = None,
    memory_format: torch.memory_format = torch.contiguous_format,
) -> TensorMeta:
    """Metadata of a tensor of this shape with dense strides, with the device (and, by default, the
    dtype) of another tensor.
    """
    strides = strides_for(shape, memory_format)
    return TensorMeta(tuple(shape), strides, dtype or like.dtype, like.device)


def transposed(meta: TensorMeta) -> TensorMeta:
    """Metadata of the tensor with its last two dims swapped."""
    shape, strides = ((*x[:-2], x[-1], x[-2]) for x in (meta.shape, meta.strides))
    return TensorMeta(shape, strides, meta.dtype, meta.device)


def apply_to_calls(
    gm: fx.GraphModule, rules: Mapping[str, Callable[[fx.Node], object]], device: str = ""
) -> int:
    """Applies to each call the rule for its name, in graph order; returns how many rules succeeded.

    ``device``: skips calls whose first argument is on another type of device.
    """
    found = [(node, rules[name_of(node)]) for node in gm.graph.nodes if name_of(node) in rules]
    return sum(
        bool(rule(node))
        for node, rule in found
        if (not device or tensor_of(node.args[0]).device.type == device)
        and may("pattern", getattr(rule, "__name__", "rule"), node)
    )


def only_user(node: fx.Node) -> fx.Node | None:
    """The only user of ``node``, if it reads it once and isn't the output; else None."""
    users = list(node.users)
    if (
        len(users) != 1
        or users[0].op == "output"
        or list(users[0].all_input_nodes).count(node) != 1
    ):
        return None
    return users[0]


def arguments_of(node: fx.Node) -> list[Any]:
    """All arguments in schema order, including defaults."""
    schema = node.target._schema.arguments  # type: ignore[union-attr]
    return [
        node.args[i]
        if i < len(node.args)
        else node.kwargs.get(argument.name, argument.default_value)
        for i, argument in enumerate(schema)
    ]


def same_shape(a: Sequence[object], b: Sequence[object]) -> bool:
    """Whether two shapes have the same numbers or the same expressions."""
    return len(a) == len(b) and all(_same_size(x, y) for x, y in zip(a, b, strict=True))


def _same_size(a: Any, b: Any) -> bool:
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    if isinstance(a, torch.SymInt) and isinstance(b, torch.SymInt):
        return a.node.expr == b.node.expr
    return False


def strides_for(shape: Sequence[Any], memory_format: torch.memory_format) -> tuple[Any, ...]:
    """Dense strides of a shape in a memory format."""
    order = list(range(len(shape)))
    if memory_format in FORMATS.values():
        order = [0, *order[2:], 1]
    strides: list[Any] = [1] * len(shape)
    step: Any = 1
    for dim in reversed(order):
        strides[dim] = step
        step = step * shape[dim]
    return tuple(strides)


def has_format(meta: TensorMeta, memory_format: torch.memory_format) -> bool:
    """Whether the strides are those of the format; strides of dims of size 1 don't matter."""
    wanted = strides_for(meta.shape, memory_format)
    return all(
        (isinstance(size, int) and size == 1) or _same_size(a, b)
        for size, a, b in zip(meta.shape, meta.strides, wanted, strict=True)
    )


def with_format(meta: TensorMeta, memory_format: torch.memory_format) -> TensorMeta:
    """Metadata of the tensor in a memory format."""
    return dense(meta.shape, meta, memory_format=memory_format)


def add_call(
    before: fx.Node, op: OpOverload, args: tuple, meta: object, kwargs: dict | None = None
) -> fx.Node:
    """Inserts a call before ``before`` and gives it the user line of ``before``."""
    with before.graph.inserting_before(before):
        node = before.graph.call_function(op, args, kwargs or {})
    node.meta = {"val": meta}
    if "stack_trace" in before.meta:
        node.meta["stack_trace"] = before.meta["stack_trace"]
    return node


def in_format(node: fx.Node, memory_format: torch.memory_format | None, before: fx.Node) -> fx.Node:
    """``node`` in a memory format: itself, or a copy inserted before ``before``."""
    meta = tensor_of(node)
    if memory_format is None or has_format(meta, memory_format):
        return node
    wanted = with_format(meta, memory_format)
    return add_call(
        before, torch.ops.aten.clone.default, (node,), wanted, {"memory_format": memory_format}
    )


def add_constant(gm: fx.GraphModule, tensor: torch.Tensor, before: fx.Node) -> fx.Node:
    """Adds a constant; returns its ``get_attr`` node."""
    number = len(gm._buffers)  # named_buffers() would hash every tensor for each constant
    while hasattr(gm, name := f"_folded{number}"):
        number += 1
    gm.register_buffer(name, tensor)
    with before.graph.inserting_before(before):
        node = before.graph.get_attr(name)
    node.meta = {
        "val": TensorMeta.from_tensor(tensor) if tensor.layout is torch.strided else tensor
    }
    return node


def is_pure(target: object) -> bool:
    """Whether a call may be removed or shared: it has no side effect, no random numbers, and no
    size known only at run time.
    """
    if not isinstance(target, OpOverload):
        return target is not prims.call
    if target.namespace == "_c10d_functional":
        return False
    tags = (torch.Tag.nondeterministic_seeded, torch.Tag.dynamic_output_shape)
    return (
        bool(target._schema.returns)
        and not target._schema.is_mutable
        and not any(tag in target.tags for tag in tags)
    )


def keep_outputs(gm: fx.GraphModule) -> None:
    """Records the metadata of the results that the caller must receive (C3.6), so that the metadata
    of nodes may change.
    """
    node = gm.graph.find_nodes(op="output")[-1]
    given = (*node.args[0],)  # type: ignore[misc]
    node.meta.setdefault(
        "val",
        tuple(meta_of(x) or x.meta.get("val") if isinstance(x, fx.Node) else x for x in given),
    )


def remove_dead(gm: fx.GraphModule) -> None:
    """Erases unused pure calls and constants."""
    for node in reversed(gm.graph.nodes):
        if not node.users and (
            node.op == "get_attr" or (node.op == "call_function" and is_pure(node.target))
        ):
            gm.graph.erase_node(node)


def constant_of(gm: fx.GraphModule, node: object) -> torch.Tensor | None:
    """The tensor of a ``get_attr`` node; None for other nodes."""
    if not isinstance(node, fx.Node) or node.op != "get_attr":
        return None
    value: Any = operator.attrgetter(str(node.target))(gm)
    return value if isinstance(value, torch.Tensor) else None
