"""Saved values that only backward sees, and those of them that it may overwrite."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from symshapes import is_wrapper

from .cost import size_in_bytes
from .donation import IS_AVAILABLE

_SMALLEST = 1 << 16  # bytes; below, counting references costs more than the memory is worth


def private_saved(
    saved: Iterable[torch.fx.Node], exposed: set[torch.fx.Node]
) -> frozenset[torch.fx.Node]:
    """The saved nodes that only backward will see."""
    own = (s for s in saved if s.op != "placeholder" and s not in exposed)
    return frozenset(
        s for s in own if s.meta["val"].layout is torch.strided and not is_wrapper(s.meta["val"])
    )


def donatable(own: Iterable[torch.fx.Node]) -> frozenset[torch.fx.Node]:
    """The values that are large enough for donation to pay."""
    return frozenset(s for s in own if IS_AVAILABLE and size_in_bytes(s.meta["val"]) >= _SMALLEST)
