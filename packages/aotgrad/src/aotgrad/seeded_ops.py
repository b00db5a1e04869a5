"""Operators of the namespace ``aotgrad``: random numbers as functions of a seed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

LIBRARY = torch.library.Library("aotgrad", "FRAGMENT")


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


def _seeded_mask(seed: torch.Tensor, size: list[int], keep: float, place: int) -> torch.Tensor:
    with drawing_from(seed + place):
        return torch.rand(size, device=seed.device) < keep


LIBRARY.define("seeded_mask(Tensor seed, SymInt[] size, float keep, int place) -> Tensor")
LIBRARY.impl("seeded_mask", _seeded_mask, "CompositeExplicitAutograd")
