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


BOOL_SUBTRACTION_ERROR = _error_of(lambda: torch.zeros(1, dtype=torch.bool, device="cpu") - True)
"""What eager mode raises for a difference of bools: RuntimeError, or NotImplementedError in torch 2.15."""
