"""Differences between torch versions, found by probing the installed one."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch

OLDEST, NEWEST = (2, 11), (2, 15)


class UntestedTorchWarning(UserWarning):
    """torch is newer than the tested versions."""


def check_version(version: str) -> None:
    """Raises ImportError for a torch that is too old; warns of an untested newer one."""
    found = tuple(int(part) for part in version.split(".")[:2])
    tested = f"torch {OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
    if found < OLDEST:
        command = f"python -m pip install 'torch>={OLDEST[0]}.{OLDEST[1]}'"
        raise ImportError(f"symshapes needs {tested}; this is {version}. Run: {command}")
    if found > NEWEST:
        warnings.warn(
            f"symshapes and what is built on it are tested with {tested}; this is {version}. What "
            f"it has changed may break graphs or make compilation fail.",
            UntestedTorchWarning,
            stacklevel=2,
        )


check_version(torch.__version__)


def _error_of(call: Callable[[], object]) -> type[Exception]:
    try:
        call()
    except Exception as error:
        return type(error)
    return RuntimeError


BOOL_SUBTRACTION_ERROR = _error_of(lambda: torch.zeros(1, dtype=torch.bool, device="cpu") - True)
"""Eager mode's error for subtracting bools: RuntimeError; NotImplementedError in torch 2.15."""
