"""Clean-up of functional graphs: no-op removal, common subexpressions, dead code, separate outputs.

Each pass edits a graph in place and keeps its meaning: values, sizes, strides, and which outputs share memory.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any

import torch
from symshapes import expr_of, is_symbolic

from .views import is_view_op, view_root

aten = torch.ops.aten
Pass = Callable[[torch.fx.Graph], None]

_RANDOM_TAG = torch.Tag.nondeterministic_seeded
_NEVER_NOOP = frozenset([aten._conj.default, aten._neg_view.default, aten.view.dtype, aten.conj.default])
_COPIES = frozenset([aten.clone.default, aten._to_copy.default, aten._unsafe_view.default])


def is_random(node: torch.fx.Node) -> bool:
    """Whether a node draws random numbers."""
    return isinstance(node.target, torch._ops.OpOverload) and _RANDOM_TAG in node.target.tags


def layout_key(value: torch.Tensor) -> tuple[Hashable, ...]:
    """Everything about a fake but its data: equal keys mean interchangeable memory layouts."""
    sizes = [s if type(s) is int else expr_of(s) for s in (*value.shape, *value.stride(), value.storage_offset())]
    return (value.dtype, value.device, *sizes)


def remove_noops(graph: torch.fx.Graph) -> None:
    """Drops views that change nothing, copies that keep the layout, and ``copy(dst, src)`` of equal layouts."""
    for node in list(graph.nodes):
        source = _noop_source(node)
        if source is not None:
            node.replace_all_uses_with(source)
            graph.erase_node(node)


def _noop_source(node: torch.fx.Node) -> torch.fx.Node | None:
    if node.op != "call_function" or not isinstance(node.meta["val"], torch.Tensor):
        return None
    if node.target is aten.copy.default:
        source = node.args[1]
    elif node.target in _COPIES or (is_view_op(node.target) and node.target not in _NEVER_NOOP):
        source = node.args[0]
    else:
        return None
    if not isinstance(source, torch.fx.Node):
        return None
    value, before = node.meta["val"], source.meta["val"]
    if is_view_op(node.target) and value.dtype.is_complex != before.dtype.is_complex:
        return None
    offset_free = node.target in _COPIES or node.target is aten.copy.default
    return source if _same_layout(value, before, offset_free) else None


def _same_layout(a: torch.Tensor, b: torch.Tensor, offset_free: bool) -> bool:
    if a.dim() != b.dim():
        return False
    ka, kb = layout_key(a), layout_key(b)
    return ka[:-1] == kb[:-1] if offset_free else ka == kb


def merge_common(graph: torch.fx.Graph) -> None:
    """Merges nodes that compute the same; never random ones."""
    seen: dict[Hashable, torch.fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function" or is_random(node):
            continue
        key = _key((node.target, node.args, node.kwargs))
        try:
            first = seen.setdefault(key, node)
        except TypeError:  # an unhashable constant
            continue
        if first is not node:
            node.replace_all_uses_with(first)
            graph.erase_node(node)


def _key(value: Any) -> Hashable:
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, *(_key(v) for v in value))
    if isinstance(value, dict):
        return tuple((k, _key(v)) for k, v in sorted(value.items()))
    if isinstance(value, slice):
        return (slice, _key(value.start), _key(value.stop), _key(value.step))
    if isinstance(value, float):
        return (float, value.hex())  # 0.0 and -0.0 differ, as do 1 and 1.0
    return (type(value), value)


def remove_dead(graph: torch.fx.Graph, *, keep_random: bool = False) -> None:
    """Removes nodes that no output needs; placeholders stay, and so do random ops when asked."""
    for node in reversed(list(graph.nodes)):
        if node.users or node.op in ("placeholder", "output") or (keep_random and is_random(node)):
            continue
        if node.target is aten.sym_size.int and len(node.all_input_nodes[0].users) > 1:
            continue  # binds a size that other values may have
        graph.erase_node(node)


def separate_outputs(graph: torch.fx.Graph, indices: Iterable[int]) -> None:
    """Clones output values so that the listed ones share no memory with each other, with an input or a constant."""
    output = graph.output_node()
    values = list(output.args[0])  # type: ignore[arg-type]
    taken: set[torch.fx.Node] = set()
    with graph.inserting_before(output):
        for i in indices:
            value = values[i]
            if not isinstance(value, torch.fx.Node) or not isinstance(value.meta["val"], torch.Tensor):
                continue
            root = view_root(value, unsafe=True)
            if root not in taken and root.op not in ("placeholder", "get_attr"):
                taken.add(root)
                continue
            values[i] = copy = graph.call_function(aten.clone.default, (value,))
            copy.meta.update(value.meta)
            copy.meta["val"] = _fresh_like(value.meta["val"])
            taken.add(copy)
    output.args = (tuple(values),)


def _fresh_like(value: Any) -> torch.Tensor:
    with value.fake_mode:
        return aten.clone.default(value)


def drop_unread_operands(graph: torch.fx.Graph) -> None:
    """Batch norm's backward in training mode never reads the running statistics: they need not be kept for it."""
    for node in graph.find_nodes(op="call_function", target=aten.native_batch_norm_backward.default):
        if node.args[7] is True:
            node.args = (*node.args[:3], None, None, *node.args[5:])


def clean(graph: torch.fx.Graph, *, keep_random: bool = False) -> None:
    """The passes that every joint graph goes through."""
    remove_noops(graph)
    merge_common(graph)
    remove_noops(graph)
    drop_unread_operands(graph)
    remove_dead(graph, keep_random=keep_random)


def size_symbols(node: torch.fx.Node) -> set[Any]:
    """The size symbols in a node's value."""
    found: set[Any] = set()
    stack = [node.meta.get("val")]
    while stack:
        value = stack.pop()
        if isinstance(value, torch.Tensor):
            stack.extend(s for s in (*value.shape, *value.stride(), value.storage_offset()) if type(s) is not int)
        elif isinstance(value, (list, tuple)):
            stack.extend(value)
        elif is_symbolic(value):
            found |= expr_of(value).free_symbols
    return found


__all__ = [
    "Pass",
    "clean",
    "drop_unread_operands",
    "is_random",
    "layout_key",
    "merge_common",
    "remove_dead",
    "remove_noops",
    "separate_outputs",
    "size_symbols",
]
