# ruff: noqa: F401, F403
"""The prims, as callables: ``prims.add(a, b)``. See ``primops.opset`` for the list and
``primops.prim`` for the readings.
"""

from primops.prim import Prim, registered
from primops.prims.control import call, cond, scan, while_loop
from primops.prims.creation import full, iota
from primops.prims.extern import EXTERN_PRIMS
from primops.prims.indexing import gather, index, index_put, scatter, scatter_add, scatter_reduce
from primops.prims.movement import broadcast_in_dim, cat, flip, pad, permute, reshape, window
from primops.prims.movement import slice_ as slice
from primops.prims.random import random_seed, uniform, uniform16
from primops.prims.reduction import all_ as all
from primops.prims.reduction import amax, amin, argmax, argmin, cumprod, cumsum, prod
from primops.prims.reduction import any_ as any
from primops.prims.reduction import sum_ as sum

from .elementwise import *

for _name, _prim in registered().items():
    # special functions and extern prims have no variable of their own
    globals().setdefault(_name, _prim)

__all__ = sorted(registered())  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Prim:
    raise AttributeError(f"there is no prim {name}; see primops.OPSET")
