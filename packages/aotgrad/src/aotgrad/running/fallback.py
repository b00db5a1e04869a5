"""Calls that run eagerly although their program was compiled: counted, and announced once."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd import forward_ad

counters: Counter[str] = Counter()
"""How often compiled callables ran eagerly: in all (``"fallbacks"``), and for each reason."""

OFFSET_INPUT = (
    "AG022: as_strided at an offset in storage of an input that is written and begins inside its "
    "storage"
)
OUTER_HISTORY = "AG031: a gradient inside passes through what an input was computed from"
TRANSFORMED = "a torch.func transform or forward-mode AD is active"


def is_transformed() -> bool:
    """Whether tensors may be torch.func wrappers or dual numbers."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0  # type: ignore[attr-defined]


class FallbackWarning(UserWarning):
    """A compiled callable runs eagerly for some of its calls."""


@dataclass(slots=True, eq=False)
class Fallback:
    """An eager program that is called instead of a compiled one.

    Attributes:
        eager: the program.
        reason: why, in a few words; also its key in ``counters``.
        detail: further text for the warning.

    The first call warns. Each compiled callable has a ``Fallback`` of its own for each reason.
    """

    eager: Callable[..., Any]
    reason: str
    detail: str = ""
    _has_warned: bool = field(default=False, init=False)

    def __call__(self, *inputs: Any) -> Any:
        counters["fallbacks"] += 1
        counters[self.reason] += 1
        if not self._has_warned:
            self._has_warned = True
            detail = f" ({self.detail})" if self.detail else ""
            text = f"a compiled graph runs eagerly: {self.reason}{detail}; "
            text += "aotgrad.counters counts such calls"
            warnings.warn(text, FallbackWarning, stacklevel=3)
        return self.eager(*inputs)
