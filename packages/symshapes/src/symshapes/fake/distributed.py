"""DTensor, a wrapper subclass whose dispatch is written in C++.

Nothing here imports torch.distributed: a DTensor exists only where the program has done so.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch._guards import TracingContext, tracing
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes


def is_distributed(cls: Any) -> bool:
    """Whether a class is DTensor, or extends it."""
    module: Any = sys.modules.get("torch.distributed.tensor._api")
    return module is not None and issubclass(cls, module.DTensor)


def own_context(context: Any) -> Any:
    """A DTensor's context without what its sizes and its history say as well."""
    placements, meta, shard_order, _ = context
    return placements, meta._replace(shape=torch.Size(()), stride=()), shard_order, False


def group_names(value: Any) -> Any:
    """The process groups of a DTensor's mesh: operators in graphs name them, and meshes over other
    groups of the same ranks compare equal.
    """
    return tuple(getattr(value.device_mesh, "_dim_group_names", ()))


def shards(value: Any, dim: int) -> int:
    """The number of parts that a DTensor's mesh divides a dimension in."""
    mesh = value.device_mesh
    parts = (mesh.size(i) for i, p in enumerate(value.placements) if getattr(p, "dim", None) == dim)
    return math.prod(parts)


def call_distributed(cls: Any, func: Any, types: Sequence[Any], args: Any, kwargs: Any) -> Any:
    """``func`` by a class for which ``is_distributed`` holds, under a fake mode; active modes see
    what it does to local tensors.
    """
    mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
    context = TracingContext(_GlobalSizes(mode))  # pyright: ignore[reportArgumentType]
    with tracing(context), _Native():
        result = cls.__torch_dispatch__(func, types, args, kwargs)
    for part in result if isinstance(result, (list, tuple)) else (result,):
        if is_distributed(type(part)):
            _own_masks(part)
    return result


def holds_mask(value: Any) -> bool:
    """Whether a DTensor's placement holds a tensor: the rows that an embedding has elsewhere."""
    return is_distributed(type(value)) and any(map(_is_mask, value.placements))


def _is_mask(placement: Any) -> bool:
    return hasattr(placement, "mask_buffer")


def _own_masks(value: Any) -> None:
    """Moves new masks into placements of ``value``'s own: torch caches placements for calls with
    other tensors.
    """
    placements = []
    for placement in value.placements:
        buffer = getattr(placement, "mask_buffer", None)
        if buffer is not None and buffer.refcount and not hasattr(buffer, "is_own"):
            own = type(buffer)(buffer.data, 1)
            own.is_own = True
            placement = type(placement)(
                placement.reduce_op, own, placement.offset_shape, placement.offset_dim
            )
            buffer.release_mask()
        placements.append(placement)
    if any(new is not old for new, old in zip(placements, value.placements)):
        value._spec = replace(value._spec, placements=tuple(placements))


class _Native(TorchDispatchMode):
    """Leaves operators on DTensors to their dispatch in C++, in which modes are active."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch wraps the handler and imports its compiler

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return NotImplemented if any(map(is_distributed, types)) else func(*args, **kwargs or {})


class _GlobalSizes:
    """The fake mode for sharding propagation, which runs operators on tensors of the global sizes:
    tracers must not record them.
    """

    shape_env = None  # torch would clear its caches when the dispatch ends

    def __init__(self, mode: Any) -> None:
        self._mode = mode
        self._entered: list[ExitStack] = []

    def __enter__(self) -> None:
        stack = ExitStack()
        stack.enter_context(_disable_current_modes())
        stack.enter_context(self._mode)
        self._entered.append(stack)

    def __exit__(self, *error: Any) -> None:
        self._entered.pop().__exit__(*error)
