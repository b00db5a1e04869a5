"""Which thread captures which code. Others that miss the same code wait: the entry may suit them.

A thread that waits holds nothing that captures need. It waits no longer, and captures on its own,
where the capturing thread waits for it in turn: for another capture, or for something that can't be
seen from here (a backend that joins a thread, a lock of the program), so that it does not move.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType

from symshapes import allowed

from bytecode_dynamo.hook.frame_hook import Region

STALLED_AFTER = 60.0
"""Seconds after which a capturing thread that has not moved is no longer waited for."""
LOOKED_AT_EVERY = 1.0

Key = tuple[int, int]


class Turns:
    """The captures that run, by region and code, and the threads that wait for them."""

    def __init__(self) -> None:
        self._begin()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        me = threading.get_ident()
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)
        owners = getattr(self, "_owners", {})
        self._owners: dict[Key, int] = {k: owner for k, owner in owners.items() if owner == me}
        self._waiting: dict[int, Key] = {}

    @contextmanager
    def take(self, region: Region, code: CodeType, may_wait: bool = True) -> Iterator[bool]:
        """Whether this thread may capture the code inside; always without ``may_wait``."""
        key, me = (id(region), id(code)), threading.get_ident()
        with self._lock:
            owner = self._owners.get(key)
            begins = may_wait and owner is None
            if begins:
                self._owners[key] = me
        try:
            yield begins or owner == me or not may_wait
        finally:
            if begins:
                with self._lock:
                    self._owners.pop(key, None)
                    self._ended.notify_all()

    def wait(self, region: Region, code: CodeType) -> bool:
        """Wait until the capture of a code ends; False if that would last for ever."""
        key, me = (id(region), id(code)), threading.get_ident()
        place, since = None, 0.0
        with allowed(), self._lock:
            self._waiting[me] = key
            try:
                while (owner := self._owners.get(key, me)) != me:
                    now = time.monotonic()
                    if place != (place := _place(owner)):
                        since = now
                    if self._waits_for(owner, me) or now - since > STALLED_AFTER:
                        return False
                    self._ended.wait(LOOKED_AT_EVERY)
                return True
            finally:
                del self._waiting[me]

    def _waits_for(self, thread: int, other: int) -> bool:
        """Whether a thread waits for a capture of another one, directly or not."""
        seen: set[int] = set()
        while thread != other and thread in self._waiting and thread not in seen:
            seen.add(thread)
            thread = self._owners.get(self._waiting[thread], thread)
        return thread == other


def _place(thread: int) -> tuple[int, int] | None:
    """Where a thread is in its program."""
    frame = sys._current_frames().get(thread)
    return None if frame is None else (id(frame), frame.f_lasti)


turns = Turns()
