"""Makes the C library's heap keep memory that a program frees at its top.

A compiled backward returns all gradients at once. When they are freed together, they exceed what
glibc keeps (twice the largest block), so every step would return their pages to the kernel and
fault them in again: a fifth of a training step of ResNet-18. Eager mode frees each gradient before
it allocates the next one.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT = 512 << 20
LARGEST_BLOCK = 32 << 20  # glibc's own limit; setting one threshold stops it from adapting both


@cache
def keep_freed_memory() -> bool:
    """Lets the heap keep ``KEPT`` bytes; returns whether it does.

    Environment settings (``MALLOC_TRIM_THRESHOLD_``, ``GLIBC_TUNABLES``) take precedence; other C
    libraries are left alone.
    """
    if "MALLOC_TRIM_THRESHOLD_" in os.environ or "glibc.malloc" in os.environ.get(
        "GLIBC_TUNABLES", ""
    ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(
        mallopt(M_MMAP_THRESHOLD, LARGEST_BLOCK) and mallopt(M_TRIM_THRESHOLD, KEPT)
    )
