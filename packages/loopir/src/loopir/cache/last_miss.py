"""The last lookup of a store that found nothing, for an explanation in another process."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from .key_parts import difference
from .store import ArtifactStore

NAME = ".last-miss"
_known: dict[tuple[Path, str], tuple[str, ...]] = {}
"""The parts of keys, which a trace compares at every miss."""


def note_miss(store: ArtifactStore, key: str, suffix: str) -> None:
    """Keeps the key of a lookup that found nothing, and its parts."""
    with suppress(OSError):
        (store.root / NAME).write_text(json.dumps([key, suffix, store.parts_of(key)]))


def explain_last_miss(store: ArtifactStore) -> str:
    """Which parts of the last miss differ from those of the nearest key in the store."""
    try:
        key, suffix, parts = json.loads((store.root / NAME).read_text())
    except (OSError, ValueError):
        return "no lookup of a captured graph has missed here"
    return explain_miss(store, key, suffix, parts)


def explain_miss(
    store: ArtifactStore, key: str, suffix: str, parts: Sequence[str] | None = None
) -> str:
    """Which parts of a key that was not found differ from those of the nearest in the store."""
    parts = parts or store.parts_of(key) or ()
    best: tuple[int, str] | None = None
    for other in store.keys(suffix):
        known = _parts(store, other)
        if known and other != key and len(known) == len(parts):
            same = sum(a == b for a, b in zip(known, parts, strict=True))
            best = max(best or (0, ""), (same, other))
    if best is None or not best[1]:
        return f"{key} missed: no other captured graph is kept"
    known = _parts(store, best[1])
    lines = [difference(a, b) for a, b in zip(known, parts, strict=True) if a != b]
    return "\n".join([f"{key} missed; nearest is {best[1]}:", *lines])


def _parts(store: ArtifactStore, key: str) -> tuple[str, ...]:
    """The parts of a key in the store: they never change, so that each is read once."""
    place = (store.root, key)
    found = _known.get(place) or store.parts_of(key) or ()
    if found:
        _known[place] = found
    return found
