"""The C library's heap keeps what a program frees at its top.

A compiled backward returns all gradients at once. Freed together they are more than glibc keeps
(twice the largest block), so that every step would give their pages back and fault them in again: a
fifth of a training step of ResNet-18. Eager mode frees each gradient before it makes the next one.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT = 512 << 20
LARGEST_BLOCK = 32 << 20  # glibc's own limit; setting one threshold ends its adaption of both


@cache
def keep_freed_memory() -> bool:
    """Lets the heap keep ``KEPT`` bytes; whether it does. Settings of the environment
    (``MALLOC_TRIM_THRESHOLD_``, ``GLIBC_TUNABLES``) take precedence, other C libraries are left
    alone.
    """
    if "MALLOC_TRIM_THRESHOLD_" in os.environ or "glibc.malloc" in os.environ.get(
        "GLIBC_TUNABLES", ""
    ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(
        mallopt(M_MMAP_THRESHOLD, LARGEST_BLOCK) and mallopt(M_TRIM_THRESHOLD, KEPT)
    )
