"""Clean-up of functional graphs: no-ops, small constants, common subexpressions, dead code,
separate outputs.

Each pass edits a graph in place and keeps its meaning: values, sizes, strides, and which outputs
share memory.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Hashable, Iterable
from typing import Any

import torch
from symshapes import expr_of, inner_tensors, is_nested_int, is_symbolic, is_wrapper, mode_of
from symshapes.decisions import may

from aotgrad.tracing.functional import layout_numbers
from aotgrad.tracing.view_chains import is_view_op, view_root, view_source

from .constants import ConstantFolder, is_collective, is_random

aten = torch.ops.aten

_NEVER_NOOP = frozenset(
    [aten._conj.default, aten._neg_view.default, aten.view.dtype, aten.conj.default]
)
_COPIES = frozenset([aten.clone.default, aten._to_copy.default, aten._unsafe_view.default])
_READS_OFFSET = frozenset(
    [aten.as_strided.default, aten.as_strided_copy.default, aten.as_strided_scatter.default]
)
_NEUTRAL: dict[Any, int] = {
    getattr(op, overload): number
    for op, number in ((aten.mul, 1), (aten.div, 1), (aten.sub, 0))
    for overload in ("Tensor", "Scalar")
} | {aten.pow.Tensor_Scalar: 1}
_PURE = ("aten", "prims", "aotgrad")


def layout_key(value: torch.Tensor) -> tuple[Hashable, ...]:
    """Everything about a fake but its data: equal keys mean interchangeable memory layouts."""
    sizes = [s if type(s) is int else expr_of(s) for s in layout_numbers(value)]
    return (value.dtype, value.device, value.is_conj(), value.is_neg(), *sizes)


def is_laid_out_alike(a: torch.fx.Node, b: torch.fx.Node) -> bool:
    """Whether two tensors differ in nothing but data and storage offset."""
    return layout_key(a.meta["val"])[:-1] == layout_key(b.meta["val"])[:-1]


def simplify(gm: torch.fx.GraphModule) -> None:
    """One sweep: a node becomes the operand that it equals, a constant, or an earlier node that
    computes the same.

    Operands come first, so that a second sweep finds nothing. Random ops, and ops that aten does
    not own (their effects are unknown), are never merged. Nor are two values merged if backward
    would then read memory that callers may write to and that eager's backward does not read.
    """
    seen: dict[Hashable, torch.fx.Node] = {}
    constants = ConstantFolder(gm)
    exposed = _exposed(gm.graph)
    output, returned = gm.graph.output_node(), dict[torch.fx.Node, torch.fx.Node]()
    for node in list(gm.graph.nodes):
        if node.op != "call_function":
            continue
        other = _equal_operand(node) or constants.fold(node) or node
        other = _earlier(other, seen) or other if other.op == "call_function" else other
        if (
            other is not node
            and not _reads_exposed(node, other, exposed)
            and not _reads_exposed(other, node, exposed)
            and may("pattern", "simplify", node)
        ):
            node.replace_all_uses_with(other, delete_user_cb=lambda user: user is not output)
            if output in node.users:
                returned[node] = other
            else:
                gm.graph.erase_node(node)
    # all at once, since a change of one result costs as much as there are results
    output.args = torch.fx.map_arg(output.args, lambda node: returned.get(node, node))
    for node in returned:
        gm.graph.erase_node(node)


def _exposed(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """Memory that callers can write to between forward and backward: inputs, constants, and
    outputs.
    """
    held = {node for node in graph.nodes if node.op in ("placeholder", "get_attr")}
    return held | {view_root(output, unsafe=True) for output in graph.output_node().all_input_nodes}


def _reads_exposed(
    private: torch.fx.Node, shared: torch.fx.Node, exposed: set[torch.fx.Node]
) -> bool:
    """Whether backward reads ``private``, and ``shared`` is other memory, which callers hold."""
    root = view_root(shared, unsafe=True)
    if root not in exposed or root is view_root(private, unsafe=True):
        return False
    return not private.meta.get("is_backward") and _is_read_by_backward(private)


def _is_read_by_backward(node: torch.fx.Node) -> bool:
    """Whether backward uses a value of forward, or a view of it."""
    return any(
        user.meta.get("is_backward")
        or (view_source(user, unsafe=True) is not None and _is_read_by_backward(user))
        for user in node.users
    )


def _equal_operand(node: torch.fx.Node) -> torch.fx.Node | None:
    """An operand, or what it is a view of, with the same elements in the same layout."""
    if not isinstance(node.meta["val"], torch.Tensor) or not node.args:
        return None
    if any(is_wrapper(n.meta["val"]) for n in (node, *node.all_input_nodes)):
        return None  # its class says what an operator does
    if is_view_op(node.target) and node.target not in _NEVER_NOOP:
        return _equal_base(node)
    if node.target is aten.copy.default:
        source = node.args[1]
    elif node.target in _COPIES or _is_neutral(node):
        source = node.args[0]
    else:
        return None
    if not isinstance(source, torch.fx.Node) or _is_read_by_offset(node):
        return None
    if not isinstance(source.meta["val"], torch.Tensor):
        return None
    return source if is_laid_out_alike(node, source) else None


def _equal_base(node: torch.fx.Node) -> torch.fx.Node | None:
    """The first of the values that ``node`` is a view of, view by view, that looks like
    ``node``.
    """
    key, found = layout_key(node.meta["val"]), None
    source = view_source(node)
    if node.target in _READS_OFFSET and _offset_given(node) and view_root(node).op == "placeholder":
        return None  # where the memory of an input begins is the caller's affair
    while source is not None and isinstance(source.meta["val"], torch.Tensor):
        if not is_wrapper(source.meta["val"]) and layout_key(source.meta["val"]) == key:
            found = source
        if source.target in _NEVER_NOOP:
            break
        source = view_source(source)
    return found


def _offset_given(node: torch.fx.Node) -> bool:
    return len(node.args) > 3 or node.kwargs.get("storage_offset") is not None


def _is_read_by_offset(node: torch.fx.Node) -> bool:
    """Whether a reader of ``node``, or of a view of it, counts elements from where its memory
    begins.
    """
    return any(
        user.target in _READS_OFFSET or (view_source(user) is not None and _is_read_by_offset(user))
        for user in node.users
    )


def _is_neutral(node: torch.fx.Node) -> bool:
    """Whether an operation with a number changes no bit: ``x * 1``, ``x / 1``, ``x - 0``,
    ``x ** 1``.
    """
    neutral = _NEUTRAL.get(node.target)
    if neutral is None or len(node.args) != 2 or node.kwargs:
        return False
    number = node.args[1]
    return isinstance(number, (int, float)) and number == neutral and math.copysign(1, number) == 1


def _earlier(node: torch.fx.Node, seen: dict[Hashable, torch.fx.Node]) -> torch.fx.Node | None:
    """An earlier node with the same target and arguments, and the same symbols for data-dependent
    sizes.

    Backward computes again what forward computes from an input: the caller may have written to it
    through ``.data`` since.
    """
    if is_random(node) or (
        isinstance(node.target, torch._ops.OpOverload) and node.target.namespace not in _PURE
    ):
        return None
    is_late = bool(node.meta.get("is_backward")) and reads_inputs(node)
    try:
        found = seen.setdefault(_key((node.target, node.args, node.kwargs, is_late)), node)
    except TypeError:  # an unhashable constant
        return None
    return found if found is node or size_symbols(found) == size_symbols(node) else None


def reads_inputs(node: torch.fx.Node) -> bool:
    """Whether a value is computed from the elements of an input that is no parameter, or of what is
    written to one. Views are not.
    """
    if view_source(node, unsafe=True) is not None:
        return False
    roots = (
        view_root(a, unsafe=True)
        for a in node.all_input_nodes
        if isinstance(a.meta["val"], torch.Tensor)
    )
    return any(
        (root.op == "placeholder" or "stored_in" in root.meta) and not root.meta.get("static")
        for root in roots
    )


def _key(value: Any) -> Hashable:
    if isinstance(value, torch.fx.Node):
        return value
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, *[_key(v) for v in value])
    if isinstance(value, dict):
        return tuple([(k, _key(v)) for k, v in sorted(value.items())])
    if isinstance(value, slice):
        return (slice, _key(value.start), _key(value.stop), _key(value.step))
    if isinstance(value, float):
        return (float, value.hex())  # 0.0 and -0.0 differ, as do 1 and 1.0
    return (type(value), value)


def remove_dead(graph: torch.fx.Graph, *, keep_random: bool = False) -> None:
    """Removes nodes that no output needs; placeholders, collectives and what has effects stay, and
    so do random ops when asked.
    """
    for node in reversed(list(graph.nodes)):
        if (
            node.users
            or node.op in ("placeholder", "output")
            or (keep_random and is_random(node))
            or is_collective(node)
            or node.meta.get("has_effect")
        ):
            continue
        if node.target is aten.sym_size.int and len(node.all_input_nodes[0].users) > 1:
            continue  # binds a size that other values may have
        graph.erase_node(node)


def separate_outputs(graph: torch.fx.Graph, indices: Iterable[int]) -> None:
    """Clones output values so that the listed ones share no memory with each other, with an input
    or a constant.
    """
    output = graph.output_node()
    values = list(output.args[0])  # type: ignore[arg-type]
    taken: set[torch.fx.Node] = set()
    with graph.inserting_before(output):
        for i in indices:
            value = values[i]
            if not isinstance(value, torch.fx.Node) or not isinstance(
                value.meta["val"], torch.Tensor
            ):
                continue
            root = view_root(value, unsafe=True)
            if root not in taken and root.op not in ("placeholder", "get_attr"):
                taken.add(root)
                continue
            values[i] = copy = _separate(graph, value, root)
            taken.add(view_root(copy, unsafe=True))
    output.args = (tuple(values),)


def _separate(graph: torch.fx.Graph, value: torch.fx.Node, root: torch.fx.Node) -> torch.fx.Node:
    """A value in memory of its own; a clone of a view has other strides when the view shows a part,
    or repeats.
    """
    copy = _clone(graph, value)
    if _strides(copy) == _strides(value):
        return copy
    graph.erase_node(copy)
    copies = {root: _clone(graph, root)}

    def copied(node: torch.fx.Node) -> torch.fx.Node:
        if node not in copies and (view_source(node, unsafe=True) is not None):
            copies[node] = graph.node_copy(node, copied)
        return copies.get(node, node)

    return copied(value)


def _clone(graph: torch.fx.Graph, value: torch.fx.Node) -> torch.fx.Node:
    copy = graph.call_function(aten.clone.default, (value,))
    copy.meta.update({name: fact for name, fact in value.meta.items() if name != "literal"})
    with mode_of(value.meta["val"]):
        copy.meta["val"] = aten.clone.default(value.meta["val"])
    return copy


def _strides(node: torch.fx.Node) -> list[Any]:
    return [s if type(s) is int else expr_of(s) for s in node.meta["val"].stride()]


def _calls_of(graph: torch.fx.Graph, target: Any) -> Any:
    return graph.find_nodes(op="call_function", target=target)


def drop_unread_operands(graph: torch.fx.Graph) -> None:
    """Batch norm in training mode only updates the running statistics, and its backward never reads
    them: they need not be kept for it, nor given where it is computed again.
    """
    for node in _calls_of(graph, aten.native_batch_norm_backward.default):
        if node.args[7] is True and may("pattern", "drop_unread_operands", node):
            node.args = (*node.args[:3], None, None, *node.args[5:])
    for node in _calls_of(graph, aten._native_batch_norm_legit_functional.default):
        items = (user for user in node.users if user.target is operator.getitem)
        updated = [item for item in items if item.args[1] in (3, 4)]
        is_unread = node.args[5] is True and not any(item.users for item in updated)
        if is_unread and may("pattern", "drop_unread_operands", node):
            for item in updated:
                graph.erase_node(item)
            node.target = aten._native_batch_norm_legit.no_stats
            node.args = (*node.args[:3], *node.args[5:])
            node.meta["val"] = node.meta["val"][:3]


def mask_extremum_gradients(graph: torch.fx.Graph) -> None:
    """The gradient of ``max()``, ``min()`` and ``median()`` is 0 at elements that are no extremum.
    On the CPU that holds even where the share of the gradient is not finite.

    What is traced is autograd's formula for CUDA, a product with the mask (FunctionsManual.cpp,
    evenly_distribute_backward).
    """
    for node in _calls_of(graph, aten.mul.Tensor):
        mask, share = node.args
        is_masked = _is_call(mask, aten.logical_or.default) and _is_call(share, aten.div.Tensor)
        if is_masked and node.meta["val"].device.type == "cpu":
            here, nan = mask.args
            count = share.args[1]
            found = _is_call(here, aten.eq.Tensor) and _is_call(nan, aten.logical_and.default)
            found = found and _is_call(count, aten.sum.default) and count.args[0] is mask
            if found and may("pattern", "mask_extremum_gradients", node):
                node.target, node.args = aten.where.ScalarOther, (mask, share, 0)


def forward_unbound_stacks(graph: torch.fx.Graph) -> None:
    """Takes tensors from where they were before they were stacked. Optimizers stack the numbers of
    all parameters, and unbind the stack at once.
    """
    exposed = _exposed(graph)
    for items in _calls_of(graph, aten.unbind.int):
        stack, dims = items.args[0], items.args[0].meta["val"].dim()
        if not _is_call(stack, aten.stack.default) or _dim(stack) % dims != _dim(items) % dims:
            continue
        if stack in exposed or is_wrapper(stack.meta["val"]):
            continue
        for item in list(items.users):
            source = stack.args[0][item.args[1]]
            is_equal = is_laid_out_alike(source, item)
            if (
                is_equal
                and not _reads_exposed(item, source, exposed)
                and may("pattern", "forward_unbound_stacks", item)
            ):
                item.replace_all_uses_with(source)


def _dim(node: torch.fx.Node) -> int:
    return node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)  # type: ignore[return-value]


def _is_call(value: Any, target: Any) -> bool:
    return isinstance(value, torch.fx.Node) and value.target is target


def clean(gm: torch.fx.GraphModule, *, keep_random: bool = False) -> None:
    """What every joint graph goes through."""
    drop_unread_operands(gm.graph)
    mask_extremum_gradients(gm.graph)
    forward_unbound_stacks(gm.graph)
    simplify(gm)
    remove_dead(gm.graph, keep_random=keep_random)


def size_symbols(node: torch.fx.Node) -> set[Any]:
    """The size symbols in a node's value."""
    found: set[Any] = set()
    stack = [node.meta.get("val")]
    while stack:
        value = stack.pop()
        if isinstance(value, torch.Tensor):
            stack.extend(s for s in layout_numbers(value) if type(s) is not int)
            stack.extend(inner_tensors(value) if is_wrapper(value) else ())
        elif isinstance(value, (list, tuple)):
            stack.extend(value)
        elif is_symbolic(value) and not is_nested_int(value):
            found |= expr_of(value).free_symbols
    return found
