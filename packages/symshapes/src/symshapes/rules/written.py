"""When the data of a fake changed: by its version counter, its memory, and the writes to that
memory under other counters.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from typing import Any

import torch

from .format import is_fake


def stamp(x: Any) -> tuple[Hashable, ...]:
    """Equal for equal data of a fake: views through ``detach()`` and ``.data`` have version
    counters of their own.
    """
    version = None if x.is_inference() else x._version
    if x.layout is not torch.strided:
        return (version,)
    storage = x.untyped_storage()
    x.fake_mode.stamped[storage._cdata] = storage
    return version, storage._cdata, x.fake_mode.writes.get(storage._cdata, 0)


def count_writes(writes: dict[int, int], func: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    """Counts an op among the ``writes`` to each memory that it writes to.

    Versions of what is written in lists are raised here: the kernels of foreach ops do so, and
    those for autograd do not.
    """
    for place, name, is_list in _written(func):
        value: Any = args[place] if place < len(args) else kwargs.get(name)
        for x in (value or ()) if is_list else (value,):
            if not is_fake(x) or x.layout is not torch.strided:
                continue
            memory = x.untyped_storage()._cdata
            writes[memory] = writes.get(memory, 0) + 1
            if is_list and not x.is_inference() and func.__name__.startswith("_foreach_"):
                torch.autograd.graph.increment_version(x)


@lru_cache(maxsize=10_000)
def _written(func: Any) -> tuple[tuple[int, str, bool], ...]:
    schema = getattr(func, "_schema", None)
    if schema is None or not schema.is_mutable:
        return ()
    arguments = enumerate(schema.arguments)
    return tuple((place, a.name, "List" in str(a.type)) for place, a in arguments if a.is_write)
