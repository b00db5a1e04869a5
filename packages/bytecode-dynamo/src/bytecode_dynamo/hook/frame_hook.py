"""The frame hook: intercepts Python function calls of a thread and runs replacement code in their
place.

A ``Region`` is one compilation policy: a callback and a cache. While a region is active in a
thread, each call of a Python function there (generators, class bodies and modules excepted) is
looked up in the region's cache. The first entry whose guard holds runs in place of the function's
code, in the same frame. When none does, ``region.callback(frame_view)`` is asked:

- an ``Entry(guard, code, returns_continuation=False)``: stored in front of the others, unless it is
  stored, and run at once;
- ``SKIP``: run the original, now and on every later call of this code in this region;
- ``STEP_ASIDE``: the same, and what it calls runs without a region;
- ``RUN_ONCE``: run the original this time;
- ``LOOK_AGAIN``: another thread has changed the entries: look them up again;
- an exception: the call raises it.

``guard`` is a ``GuardProgram`` (``guards.compile_guards``), None (always), or a callable
``(function, *arguments) -> bool`` whose arguments are in the order of ``co_varnames``. The
replacement needs the signature, flags and free variables of the original
(``bytecode.replacement``). With ``returns_continuation`` its result may be a
``Continuation(function, *arguments)``: the hook then calls that function, after the first frame is
gone, and does so again while continuations come back. Their functions are looked up like any other;
their arguments belong to them alone.

While guards and callbacks run, the thread has no active region. Regions are per thread; caches are
shared by the threads. The hook is only installed while some thread has a region. A code object that
dies takes its entries along, a region that dies all of its entries.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

try:
    from bytecode_dynamo._hook import (
        LOOK_AGAIN,
        NULL,
        RUN_ONCE,
        SKIP,
        STEP_ASIDE,
        Activated,
        Continuation,
        Entry,
        FrameView,
        Region,
        forget_threads,
        get_region,
        set_force_eager,
        set_region,
        skip_code,
        status,
    )
except ImportError as error:
    raise ImportError(
        f"bytecode_dynamo: the C extension _hook is not built for this Python ({error}). Install "
        f"the package with pip; in a "
        f"source checkout, run `python {Path(__file__).parents[1] / 'build.py'}` with this "
        f"interpreter."
    ) from error

__all__ = [
    "LOOK_AGAIN", "NULL", "RUN_ONCE", "SKIP", "STEP_ASIDE", "Activated", "Continuation", "Entry",
    "FrameView", "Region", "activate",
    "get_region", "never_intercept", "set_force_eager", "set_region", "status",
]  # fmt: skip


class activate:
    """``with activate(region):`` makes a region (None: no region) the active one of this thread
    inside the block.
    """

    __slots__ = ("before", "region")

    def __init__(self, region: Region | None) -> None:
        self.region = region
        self.before: Region | None = None

    def __enter__(self) -> None:
        self.before = set_region(self.region)

    def __exit__(self, *exception: object) -> None:
        set_region(self.before)


skip_code(activate.__exit__.__code__)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=forget_threads)


def never_intercept(target: CodeType | Callable[..., Any]) -> None:
    """Never intercept a code object, or the code of a function, in any region."""
    skip_code(target if isinstance(target, CodeType) else target.__code__)
