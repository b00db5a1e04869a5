"""Moves values that need no input to the device that reads them, such as ``torch.tril_indices`` on
the CPU that only a CUDA kernel reads.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from primops import Prim, TensorMeta
from torch import fx

MOVABLE = {"creation", "elementwise", "movement", "scan", "reduction", "indexing"}


def follow_readers(gm: fx.GraphModule) -> int:
    """Moves CPU computations without inputs to the device where prims read them if there is just
    one, in place: a copy between devices would stall the host. Returns how many nodes moved.
    """
    free: set[fx.Node] = set()
    for node in gm.graph.nodes:
        if _is_movable(node) and free.issuperset(node.all_input_nodes):
            free.add(node)
    moved = 0
    for node in reversed(gm.graph.nodes):
        device = _only_reader(node) if node in free else None
        if device is not None:
            _move(node, device)
            moved += 1
    return moved


def _is_movable(node: fx.Node) -> bool:
    value = node.meta.get("val")
    if (
        node.op != "call_function"
        or not isinstance(value, TensorMeta)
        or value.device.type != "cpu"
    ):
        return False
    return (
        isinstance(node.target, Prim)
        and bool(MOVABLE & node.target.tags)
        and "extern" not in node.target.tags
    )


def _only_reader(node: fx.Node) -> torch.device | None:
    """The common device of all users if it is not the CPU. Users that are movable have already
    moved.
    """
    devices = set()
    for user in node.users:
        value = user.meta.get("val")
        if (
            not isinstance(user.target, Prim)
            or "extern" in user.target.tags
            or not isinstance(value, TensorMeta)
        ):
            return None
        devices.add(value.device)
    device = devices.pop() if len(devices) == 1 else None
    return device if device is not None and device.type != "cpu" else None


def _move(node: fx.Node, device: torch.device) -> None:
    if "device" in node.kwargs:
        node.kwargs = {**node.kwargs, "device": device}
    node.meta["val"] = replace(node.meta["val"], device=device)
