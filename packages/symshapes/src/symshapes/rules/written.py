"""Stamps that detect writes to a fake's data, also through other version counters."""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from typing import Any

import torch

from .format import is_fake


def stamp(x: Any) -> tuple[Hashable, ...]:
    """Changes with every write, also through ``.data``, which has its own version counter."""
    version = None if x.is_inference() else x._version
    if x.layout is not torch.strided:
        return (version,)
    storage = x.untyped_storage()
    x.fake_mode.stamped[storage._cdata] = storage
    return version, storage._cdata, x.fake_mode.writes.get(storage._cdata, 0)


def refuses_writes(x: torch.Tensor) -> bool:
    """Whether eager refuses in-place ops on a tensor made in inference mode, now outside of it."""
    if not x.is_inference() or torch.is_inference_mode_enabled():
        return False
    try:
        return x._version < 0
    except RuntimeError:
        return True


def count_writes(writes: dict[int, int], func: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    """Counts the op in ``writes`` for each storage that it writes to.

    Bumps the versions of foreach ops' lists, as their eager kernels do: autograd's do not.
    """
    for index, name, is_list in _written(func):
        value: Any = args[index] if index < len(args) else kwargs.get(name)
        for x in (value or ()) if is_list else (value,):
            if not is_fake(x) or x.layout is not torch.strided:
                continue
            memory = x.untyped_storage()._cdata
            writes[memory] = writes.get(memory, 0) + 1
            if is_list and func.__name__.startswith("_foreach_"):
                if refuses_writes(x):
                    raise RuntimeError("Inplace update to inference tensor outside InferenceMode")
                if not x.is_inference():
                    torch.autograd.graph.increment_version(x)


@lru_cache(maxsize=10_000)
def _written(func: Any) -> tuple[tuple[int, str, bool], ...]:
    schema = getattr(func, "_schema", None)
    if schema is None or not schema.is_mutable:
        return ()
    arguments = enumerate(schema.arguments)
    return tuple((index, a.name, "List" in str(a.type)) for index, a in arguments if a.is_write)
