"""Process-wide settings that hold while any thread needs them, across forks."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
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
