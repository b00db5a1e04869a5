"""The groups that read or write one buffer, in program order."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator


class Users:
    """Names of groups, each once, ordered by place in the program. A change costs no scan of the
    others, since a buffer may have thousands of users.
    """

    __slots__ = ("_order", "_places")

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        self._order: list[tuple[int, str]] = []

    def __iter__(self) -> Iterator[str]:
        return (name for _, name in self._order)

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def add(self, name: str, place: int) -> None:
        """Adds a group, unless it is known."""
        if name not in self._places:
            self._places[name] = place
            insort(self._order, (place, name))

    def discard(self, name: str) -> None:
        """Removes a group, if it is known."""
        place = self._places.pop(name, None)
        if place is not None:
            del self._order[bisect_left(self._order, (place, name))]

    def others(self, *names: str) -> int:
        """How many there are beside ``names``, which are distinct."""
        return len(self._order) - sum(name in self._places for name in names)

    def near(self, name: str, place: int, count: int) -> list[str]:
        """Of the others than ``name`` the ``count`` closest to ``place``, in program order."""
        stop = bisect_left(self._order, (place, ""))
        start, kept, length = stop, 0, len(self._order)
        while kept < count and (start > 0 or stop < length):
            takes_earlier = stop == length or (
                start > 0 and place - self._order[start - 1][0] <= self._order[stop][0] - place
            )
            found = start - 1 if takes_earlier else stop
            start, stop = (found, stop) if takes_earlier else (start, found + 1)
            kept += self._order[found][1] != name
        return [other for _, other in self._order[start:stop] if other != name]


NOBODY = Users()
"""The users of a buffer that nothing reads or writes; never changed."""
