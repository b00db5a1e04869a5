"""Unique markers, and texts that are their own ``repr``."""

from __future__ import annotations


class Marker:
    """A unique value that is false."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def __bool__(self) -> bool:
        return False


class Verbatim(str):
    """A text that is its own ``repr``."""

    __slots__ = ()
    __repr__ = str.__str__
