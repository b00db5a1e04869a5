"""Process-wide settings that hold while any thread needs them, across forks."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class WhileAny:
    """A reentrant, thread-safe context: the first entry calls ``begin``, the last exit ``end``.

    ``end`` gets the result of ``begin``. A forked child has only the forking thread: if that thread
    is not inside, the setting is reset at once, and the lock is new.
    """

    def __init__(self, begin: Callable[[], Any], end: Callable[[Any], None]) -> None:
        self._begin = begin
        self._end = end
        self._before: list[Any] = []
        self._depths: dict[int, int] = {}
        self._lock = threading.Lock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork)

    @property
    def before(self) -> Any:
        """What ``begin`` returned, None while nobody is inside."""
        return self._before[0] if self._before else None

    def __enter__(self) -> None:
        me = threading.get_ident()
        with self._lock:
            if not self._before:
                self._before.append(self._begin())
            self._depths[me] = self._depths.get(me, 0) + 1

    def __exit__(self, *exc: object) -> None:
        me = threading.get_ident()
        with self._lock:
            self._depths[me] -= 1
            self._settle(me)

    def _settle(self, me: int) -> None:
        if not self._depths.get(me):
            self._depths.pop(me, None)
        if not self._depths and self._before:
            self._end(self._before.pop())

    def _after_fork(self) -> None:
        me = threading.get_ident()
        self._lock = threading.Lock()
        self._depths = {me: self._depths[me]} if me in self._depths else {}
        self._settle(me)


class OneThread:
    """A reentrant lock of the process that its owner can hand to other threads for a while.

    A forked child has only the forking thread: the lock is free there unless that thread has it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: int | None = None
        self._depth = 0
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork)

    @contextmanager
    def held(self, waiting: Callable[[], None] | None = None) -> Iterator[None]:
        """Holds the lock inside. ``waiting`` is called now and then before; it may raise."""
        me = threading.get_ident()
        if self._owner != me:
            while not self._lock.acquire(timeout=_PATIENCE if waiting else -1):
                assert waiting is not None
                waiting()
            self._owner = me
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth:
                self._owner = None
                self._lock.release()

    @contextmanager
    def released(self) -> Iterator[None]:
        """Gives the lock up inside, however often this thread has entered."""
        me = threading.get_ident()
        if self._owner != me:
            yield
            return
        depth, self._depth, self._owner = self._depth, 0, None
        self._lock.release()
        try:
            yield
        finally:
            self._lock.acquire()
            self._depth, self._owner = depth, me

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        if self._owner == threading.get_ident():
            self._lock.acquire()
        else:
            self._owner, self._depth = None, 0


_PATIENCE = 0.05
