"""Copies scalars that the CPU computes and another device reads, such as the steps of optimizers,
in one transfer.

Each copy to a device costs as much as a kernel launch there, whatever its size.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from primops import TensorMeta
from torch import fx
from torch._ops import OpOverload

from .match import add_call, constant_of, meta_of, tensor_of

aten = torch.ops.aten
ALIGNED = 16


def move_scalars(gm: fx.GraphModule) -> None:
    """Moves CPU scalars (tensors without dimensions) into one tensor per dtype on the device that
    needs them: those that pointwise operators of the device read or that are copied to it. The
    nodes that compute them move to the front. Known numbers are written out on the device instead.
    """
    if all(device is None or device.type == "cpu" for device in map(_device_of, gm.graph.nodes)):
        return
    _write_out_numbers(gm)
    uses = _uses(gm.graph)
    wanted = {scalar for _, scalar, _ in uses}
    first = _in_front(gm.graph, wanted) if len(wanted) > 1 else None
    if first is None:
        return
    groups: defaultdict[tuple[torch.device, torch.dtype], list[fx.Node]] = defaultdict(list)
    for scalar, device in dict.fromkeys((scalar, device) for _, scalar, device in uses):
        groups[device, scalar.meta["val"].dtype].append(scalar)
    moved: dict[tuple[fx.Node, torch.device], fx.Node] = {}
    for (device, _), scalars in groups.items():
        moved |= {
            (scalar, device): there
            for scalar, there in zip(scalars, _moved(scalars, device, first))
        }
    for user, scalar, device in uses:
        user.replace_input_with(scalar, moved[scalar, device])


def _write_out_numbers(gm: fx.GraphModule) -> None:
    """Has operators of another device read a number that is known, as ``full`` there, and not a CPU
    scalar with that number.
    """
    for node in list(gm.graph.nodes):
        number = _number_of(gm, node)
        if number is None:
            continue
        dtype, there = tensor_of(node).dtype, dict[torch.device, fx.Node]()
        for user in list(node.users):
            device = _device_of(user)
            if device is None or device.type == "cpu" or not _is_pointwise(user.target):
                continue
            if device not in there:
                given = {"dtype": dtype, "device": device}
                meta = TensorMeta((), (), dtype, device)
                there[device] = add_call(node.next, aten.full.default, ([], number), meta, given)
            user.replace_input_with(node, there[device])


def _number_of(gm: fx.GraphModule, node: fx.Node) -> bool | int | float | None:
    """The number in a scalar on the CPU that is a constant or made from a number."""
    if not _is_scalar(node) or tensor_of(node).device.type != "cpu":
        return None
    constant = constant_of(gm, node)
    if constant is not None and not constant.is_complex() and constant.layout is torch.strided:
        return constant.item()
    if node.target in (aten.full.default, aten.scalar_tensor.default):
        number = node.args[-1]
        return number if isinstance(number, (bool, int, float)) else None
    return None


def _uses(graph: fx.Graph) -> list[tuple[fx.Node, fx.Node, torch.device]]:
    """Triples of an operator on another device, a CPU scalar that it reads and that is computed on
    the CPU alone, and the operator's device.
    """
    here: set[fx.Node] = set()
    found = []
    for node in graph.nodes:
        device = _device_of(node)
        if (
            device is not None
            and device.type == "cpu"
            and here.issuperset(node.all_input_nodes)
            and _is_pure(node)
        ):
            here.add(node)
        elif device is not None and device.type != "cpu" and _is_pointwise(node.target):
            found += [
                (node, x, device) for x in node.all_input_nodes if x in here and _is_scalar(x)
            ]
    return found


def _in_front(graph: fx.Graph, wanted: set[fx.Node]) -> fx.Node | None:
    """Moves the nodes from which the scalars are computed to the front; returns the node after
    them.
    """
    needed: set[fx.Node] = set()
    pending = list(wanted)
    while pending:
        node = pending.pop()
        if node not in needed:
            needed.add(node)
            pending += node.all_input_nodes
    first = next(
        (n for n in graph.nodes if n.op not in ("placeholder", "get_attr") and n not in needed),
        None,
    )
    if first is not None:
        for node in [n for n in graph.nodes if n in needed and n.op != "placeholder"]:
            first.prepend(node)
    return first


def _moved(scalars: Sequence[fx.Node], device: torch.device, before: fx.Node) -> list[fx.Node]:
    """The scalars as elements of one tensor on the device, 16 bytes apart, so that each has the
    alignment that kernels may assume (``schedule.start``).
    """
    count, dtype = len(scalars), scalars[0].meta["val"].dtype
    each = ALIGNED // dtype.itemsize

    def meta(shape: tuple[int, ...], stride: tuple[int, ...], device: torch.device) -> TensorMeta:
        return TensorMeta(shape, stride, dtype, device)

    cpu = torch.device("cpu")
    stack = add_call(before, aten.stack.default, (list(scalars),), meta((count,), (1,), cpu))
    column = add_call(before, aten.unsqueeze.default, (stack, 1), meta((count, 1), (1, 1), cpu))
    apart = add_call(
        before,
        aten.constant_pad_nd.default,
        (column, [0, each - 1]),
        meta((count, each), (each, 1), cpu),
    )
    copy = add_call(
        before,
        aten._to_copy.default,
        (apart,),
        meta((count, each), (each, 1), device),
        {"device": device},
    )
    firsts = add_call(before, aten.select.int, (copy, 1, 0), meta((count,), (each,), device))
    return [
        add_call(before, aten.select.int, (firsts, 0, i), meta((), (), device))
        for i in range(count)
    ]


def _device_of(node: fx.Node) -> torch.device | None:
    value = node.meta.get("val")
    if isinstance(value, (list, tuple)):
        value = value[0] if value else None
    return value.device if isinstance(value, torch.Tensor | TensorMeta) else None


def _is_scalar(node: fx.Node) -> bool:
    meta = meta_of(node)
    return meta is not None and not meta.shape


def _is_pure(node: fx.Node) -> bool:
    if node.op != "call_function":
        return node.op in ("placeholder", "get_attr")
    if not isinstance(node.target, OpOverload):
        return True  # operator.getitem
    return (
        not node.target._schema.is_mutable
        and torch.Tag.nondeterministic_seeded not in node.target.tags
    )


def _is_pointwise(target: object) -> bool:
    pointwise = isinstance(target, OpOverload) and (
        torch.Tag.pointwise in target.tags or "_foreach_" in target.name()
    )
    return pointwise or target is aten._to_copy.default
