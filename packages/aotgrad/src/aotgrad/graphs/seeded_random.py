"""Random ops that draw from a saved seed, so that backward can draw the same numbers again."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from symshapes import FakeTensor, mode_of

from aotgrad.seeded_ops import seeded_overload
from aotgrad.tracing.functional import tensors_in

_PREFIX = "aotgrad::seeded_"


def is_seeded(node: torch.fx.Node) -> bool:
    """Whether a node draws random numbers from a seed that it is given."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target.name().startswith(_PREFIX)


def seed_random(nodes: Iterable[torch.fx.Node]) -> list[torch.fx.Node]:
    """Gives each of these aten random nodes a seed node of its own; returns the changed nodes."""
    changed = []
    for node in nodes:
        device = device_of(node)
        if device is None or node.target.namespace != "aten":  # type: ignore[union-attr]
            continue
        seed = add_seed(node, device)
        node.target, node.args = seeded_overload(node.target), (seed, *node.args)  # type: ignore[arg-type]
        changed.append(node)
    return changed


def add_seed(node: torch.fx.Node, device: torch.device) -> torch.fx.Node:
    """A seed node before a random node."""
    with node.graph.inserting_before(node):
        seed = node.graph.call_function(torch.ops.aotgrad.random_seed.default, (device,))
    seed.meta |= {k: v for k, v in node.meta.items() if k in ("stack_trace", "forward_node")}
    fake_mode = mode_of(next(tensors_in(node.meta["val"])))
    seed.meta["val"] = fake_mode.empty((), (), dtype=torch.int64, device=device)
    return seed


def restore_random(nodes: Iterable[torch.fx.Node]) -> None:
    """Undoes ``seed_random``."""
    for node in nodes:
        seed, *args = node.args
        packet = getattr(
            torch.ops.aten,
            node.target.overloadpacket.__name__.removeprefix("seeded_"),  # type: ignore[union-attr]
        )
        node.target, node.args = getattr(packet, node.target._overloadname), tuple(args)  # type: ignore[union-attr]
        node.graph.erase_node(seed)  # type: ignore[arg-type]


def device_of(node: torch.fx.Node) -> torch.device | None:
    """Where a node's first tensor is."""
    fake = next(tensors_in(node.meta.get("val")), None)
    return fake.fake_device if isinstance(fake, FakeTensor) else None
