"""Freezing: turns parameters into constants of the graph."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx


def freeze(gm: fx.GraphModule, example_inputs: Sequence[object]) -> fx.GraphModule:
    """Replaces the uses of placeholders with ``meta["static"]`` whose example input is a real
    tensor by constants, in place.

    The placeholders stay, unused, so that callers pass the same arguments. The caller guarantees
    that these tensors keep their values and that no gradient is required.
    """
    for number, (node, example) in enumerate(
        zip(gm.graph.find_nodes(op="placeholder"), example_inputs, strict=True)
    ):
        if not node.meta.get("static") or not _is_real(example) or not node.users:
            continue
        name = f"_frozen{number}"
        gm.register_buffer(name, example.detach())  # type: ignore[union-attr]
        with gm.graph.inserting_after(node):
            constant = gm.graph.get_attr(name)
        constant.meta = {key: value for key, value in node.meta.items() if key != "static"}
        node.replace_all_uses_with(constant)
    _sort_constants(gm)
    return gm


def _is_real(value: object) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and type(value) in (torch.Tensor, torch.nn.Parameter)
        and value.device.type != "meta"
    )


def _sort_constants(gm: fx.GraphModule) -> None:
    """Moves the placeholders to the front, since constants were inserted between them."""
    placeholders = gm.graph.find_nodes(op="placeholder")
    for node in gm.graph.find_nodes(op="get_attr"):
        if placeholders and node < placeholders[-1]:
            placeholders[-1].append(node)
