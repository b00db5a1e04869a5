"""Source lines as text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import torch

from .errors import Place

TORCH_ROOT = str(Path(torch.__file__).parent) + "/"
OTHER_COMPILER = TORCH_ROOT + "_dynamo/"
"""The folder of torch's own frame capture, which may be used in the same process."""


@lru_cache(maxsize=20_000)
def _format(place: Place) -> str:
    return place.format()


def format_places(places: Sequence[Place]) -> str:
    """``File "...", line N, in name`` and the source line of each place; torch's own files only
    where nothing else is left.
    """
    shown = [place for place in places if not place.filename.startswith(TORCH_ROOT)] or list(
        places[-1:]
    )
    return "\n".join(_format(place) for place in shown)
