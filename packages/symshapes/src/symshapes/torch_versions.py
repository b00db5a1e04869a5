"""What differs between the versions of torch, found by asking the one that is installed."""

from __future__ import annotations

from collections.abc import Callable

import torch


def _error_of(call: Callable[[], object]) -> type[Exception]:
    try:
        call()
    except Exception as error:
        return type(error)
    return RuntimeError


BOOLS_SUBTRACTED = _error_of(lambda: torch.zeros(1, dtype=torch.bool, device="cpu") - True)
"""How a difference of bools is refused: NotImplementedError from torch 2.15 on."""
