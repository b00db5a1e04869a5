"""Random ops that draw from a saved seed, so that backward can draw the same numbers again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from symshapes import FakeTensor, mode_of

from aotgrad.tracing.functional import tensors_in

LIBRARY = torch.library.Library("aotgrad", "FRAGMENT")
_PREFIX = "aotgrad::seeded_"


def _random_seed(device: torch.device) -> torch.Tensor:
    return torch.randint(-(2**63), 2**63 - 1, (), dtype=torch.int64, device=device)


LIBRARY.define("random_seed(Device device) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
LIBRARY.impl("random_seed", _random_seed, "CompositeImplicitAutograd")


@cache
def seeded_overload(base: torch._ops.OpOverload) -> torch._ops.OpOverload:
    """``aotgrad::seeded_<name>(Tensor seed, ...)``: the random op ``base`` as a function of an
    int64 scalar.
    """
    name, _, signature = str(base._schema).removeprefix("aten::").partition("(")
    LIBRARY.define(f"seeded_{name}(Tensor seed, {signature}")

    def run(seed: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        with drawing_from(seed):
            return base(*args, **kwargs)

    LIBRARY.impl(f"seeded_{name}", run, "CompositeExplicitAutograd")
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aotgrad, f"seeded_{packet}"), overload or "default")


@contextmanager
def drawing_from(seed: torch.Tensor) -> Iterator[None]:
    """Within, the default generator of the seed's device starts from ``seed``; its state is
    restored afterwards.
    """
    if seed.is_meta:
        yield
        return
    generator = (
        torch.default_generator
        if seed.device.type == "cpu"
        else torch.cuda.default_generators[seed.device.index or 0]
    )
    state = generator.get_state()
    generator.manual_seed(int(seed.item()))
    try:
        yield
    finally:
        generator.set_state(state)


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
