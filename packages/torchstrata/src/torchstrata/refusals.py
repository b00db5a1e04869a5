"""Why frames are not in the cache."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress

import loopir

SUFFIX = ".frame"


def refusals(store: loopir.ArtifactStore) -> Iterator[str]:
    """A line for each function that can't be kept."""
    for artifact in store.artifacts():
        if artifact.suffix != SUFFIX or not artifact.is_complete:
            continue
        with suppress(OSError, ValueError, KeyError):
            stored = json.loads(artifact.path.read_text())
            if "refused" in stored:
                yield f"{stored['where']} is captured in every process: {stored['refused']}"
