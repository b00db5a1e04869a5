"""What installed packages offer under an entry point group."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass

from .errors import ExtensionError


@dataclass(frozen=True, slots=True)
class Installed:
    """An entry point.

    Attributes:
        name: its name.
        origin: the distribution and the object that it names.
        value: that object; None if it can't be loaded.
        problem: why it can't be loaded; empty if it can.
    """

    name: str
    origin: str
    value: object
    problem: str = ""

    def __str__(self) -> str:
        return f"{self.name!r} ({self.origin})"


def installed(group: str) -> list[Installed]:
    """The entry points of a group, by name; loads all of them."""
    points = importlib.metadata.entry_points(group=group)
    return [_load(point) for point in sorted(points, key=lambda point: point.name)]


def find_installed(group: str, kind: str, name: str) -> object:
    """What the only entry point of a group with this name stands for; ``kind`` is the word for such
    a thing in messages. Raises ExtensionError where there is none, or several, or it can't be
    loaded.
    """
    offers = installed(group)
    fitting = [offer for offer in offers if offer.name == name]
    if len(fitting) != 1:
        known = ", ".join(map(str, offers)) or "none"
        count = len(fitting) or "no"
        raise ExtensionError(f"{count} installed {kind} is called {name!r}; there are: {known}")
    (offer,) = fitting
    if offer.problem:
        raise ExtensionError(f"{kind} {offer} can't be loaded: {offer.problem}")
    return offer.value


def _load(point: importlib.metadata.EntryPoint) -> Installed:
    distribution = "" if point.dist is None else f"{point.dist.name} {point.dist.version}, "
    origin = f"{distribution}{point.value}"
    try:
        return Installed(point.name, origin, point.load())
    except Exception as error:
        return Installed(point.name, origin, None, f"{type(error).__name__}: {error}")
