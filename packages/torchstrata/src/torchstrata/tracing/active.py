"""The recording that is active, if any. A process without a trace loads nothing else of this
room.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from torchstrata import tracing

if TYPE_CHECKING:
    from .recording import Recording

ACTIVE: list[Recording] = []
"""Recordings, the innermost last."""
_is_read = False


def current() -> Recording | None:
    """The innermost recording; the first call begins that of ``STRATA_TRACE``."""
    global _is_read
    if not _is_read:
        _is_read = True
        if directory := os.environ.get("STRATA_TRACE"):
            profiles = os.environ.get("STRATA_TRACE_PROFILE") == "1"
            ACTIVE.insert(0, tracing.begin_for_process(directory, profiles))
    return ACTIVE[-1] if ACTIVE else None
