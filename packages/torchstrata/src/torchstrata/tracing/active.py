"""The recording that is active, if any. A process without a trace loads nothing else of this
room.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchstrata import tracing

if TYPE_CHECKING:
    from .frames import FrameRecorder
    from .graphs import GraphTrace
    from .profile import Profile
    from .session import Session


@dataclass(frozen=True, slots=True)
class Recording:
    """An active session, with what observes captures and times kernels for it."""

    session: Session
    frames: FrameRecorder
    profile: Profile | None

    def graph(self) -> GraphTrace:
        """What records the next graph."""
        return tracing.GraphTrace(self.session, self.profile)


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
