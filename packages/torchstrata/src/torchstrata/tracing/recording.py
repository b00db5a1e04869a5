"""The session of a process: by ``STRATA_TRACE=dir``, or ``with torchstrata.trace(dir)``."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import bytecode_dynamo

from .active import ACTIVE, Recording
from .frames import FrameRecorder
from .machine import limits
from .profile import Profile
from .session import Session, harmless


def begin_for_process(directory: str, profiles: bool) -> Recording:
    """A recording that ends with the process."""
    recording = _begin(Path(directory), profiles)
    atexit.register(_end, recording)
    return recording


@contextmanager
def trace(directory: str | os.PathLike[str], *, profile: bool = False) -> Iterator[Session]:
    """Records what is compiled within a ``with`` block below ``directory``, for
    ``python -m torchstrata report`` and ``explain``.

    ``profile`` measures each kernel whenever it runs within the block, and each guard.
    What was compiled before the block isn't compiled again (``torchstrata.reset()`` forgets it).
    """
    recording = _begin(Path(directory), profile)
    ACTIVE.append(recording)
    try:
        yield recording.session
    finally:
        ACTIVE.remove(recording)
        _end(recording)


def _begin(directory: Path, profiles: bool) -> Recording:
    session = Session(directory, profiles)
    recording = Recording(session, FrameRecorder(session), Profile() if profiles else None)
    bytecode_dynamo.observers.append(recording.frames)
    return recording


def _end(recording: Recording) -> None:
    bytecode_dynamo.observers.remove(recording.frames)
    session = recording.session
    with harmless("the profile"):
        if recording.profile is not None:
            for facts in recording.profile.results():
                session.emit("profile", **facts)
    facts: dict[str, float] = {}
    with harmless("the machine's limits"):
        facts = limits()
    session.close(**facts)
