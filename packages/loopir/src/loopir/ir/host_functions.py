"""Functions of this package that programs call on the host, and the names of all that they may
call.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from loopir.errors import ExternError


def above_zero(number: int) -> int:
    """The number, or 0 if it is negative."""
    return max(number, 0)


def below_zero(number: int) -> int:
    """The amount by which the number is below 0, or 0."""
    return max(-number, 0)


def restride(tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    """A copy with the given strides; dims with stride 0 are expanded views of one element."""
    own = tensor[tuple(slice(0, 1) if step == 0 else slice(None) for step in stride)]
    result = torch.empty_strided(own.shape, tuple(stride), dtype=tensor.dtype, device=tensor.device)
    return result.copy_(own).expand(tuple(size))


def check_result(
    tensor: torch.Tensor, size: tuple[int, ...], dtype: torch.dtype, where: tuple[str, str]
) -> None:
    """Raises ExternError if the result of an operator doesn't have the size and dtype for which the
    graph was compiled.
    """
    if tensor.shape != size or tensor.dtype != dtype:
        name, line = where
        raise ExternError(
            f"{name} returned {tuple(tensor.shape)} {_name_of(tensor.dtype)}, but its fake "
            f"implementation says"
            f" {size} {_name_of(dtype)}; correct the function given to register_fake"
            + (f"\n  {line}" if line else "")
        )


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


ROOTS: Mapping[str, Any] = {
    "prims": "primops.prims",  # loaded when a text names a prim
    "operator": operator,
    "torch": torch,
    "builtins": SimpleNamespace(int=int, getattr=getattr),
    "host": SimpleNamespace(above_zero=above_zero, below_zero=below_zero, restride=restride),
}
"""The names that may begin the name of an extern call's function."""
