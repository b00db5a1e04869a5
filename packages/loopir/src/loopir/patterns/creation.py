"""Tensors that the CPU makes from numbers and another device gets a copy of, such as masks and
positions, are made there: a copy waits for the device, and its program can't be recorded.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from symshapes.decisions import may
from torch import fx

from .match import add_call, meta_of, name_of, tensor_of

aten = torch.ops.aten
CREATIONS = frozenset({"full", "zeros", "ones", "eye", "arange", "scalar_tensor"})
MOVES = frozenset({
    "view", "_unsafe_view", "reshape", "expand", "unsqueeze", "squeeze", "permute", "transpose",
    "t", "slice", "select", "repeat", "clone",
})  # fmt: skip
"""Operators that move the elements of their first argument, the only tensor."""
Made = dict[tuple[fx.Node, torch.device], fx.Node]


def create_where_read(gm: fx.GraphModule) -> None:
    """Replaces copies from the CPU to another device of what is made from numbers."""
    made: Made = {}
    for node in list(gm.graph.nodes):
        device = _copied_to(node)
        if device is None or not _is_made(node.args[0]):
            continue
        if may("pattern", "create_where_read", node.name):
            node.replace_input_with(node.args[0], _made_on(node.args[0], device, node, made))


def _copied_to(node: fx.Node) -> torch.device | None:
    """The device to which a node copies a tensor of the CPU."""
    if name_of(node) != "_to_copy" or tensor_of(node.args[0]).device.type != "cpu":
        return None
    device = tensor_of(node).device
    return None if device.type == "cpu" else device


def _is_made(node: object) -> bool:
    """Whether each device would make the same elements: devices round steps of floats in ways of
    their own.
    """
    name, meta = name_of(node), meta_of(node)
    if not isinstance(node, fx.Node) or meta is None or meta.device.type != "cpu":
        return False
    if name in MOVES:
        return _is_made(node.args[0])
    return name in CREATIONS and not (name == "arange" and meta.dtype.is_floating_point)


def _made_on(node: fx.Node, device: torch.device, before: fx.Node, made: Made) -> fx.Node:
    """The same tensor on a device, made before a node."""
    if (node, device) not in made:
        args, kwargs = node.args, dict(node.kwargs)
        if name_of(node) in MOVES:
            args = _made_on(args[0], device, before, made), *args[1:]  # type: ignore[arg-type]
        else:
            kwargs |= {"device": device, "dtype": tensor_of(node).dtype}
            kwargs.pop("pin_memory", None)
        meta = replace(tensor_of(node), device=device)
        made[node, device] = add_call(before, node.target, args, meta, kwargs)  # type: ignore[arg-type]
    return made[node, device]
