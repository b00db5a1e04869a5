"""Names in generated call texts: those of graph nodes, and those reserved by the texts."""

from __future__ import annotations

import keyword
import re
from collections.abc import Container

PROCESS_OBJECTS = (
    "forward",
    "backward",
    "other_mode",
    "overlapping",
    "double_backward",
    "partial_backward",
)
"""Globals of a text that are created anew in each process."""
_RESERVED = re.compile(
    r"[bdovy]\d+|_|__.*|apply|arguments|box|call|ctx|given|hooked|private|results|shared|torch|"
    r"gradient_view_.*|function_\w+|" + "|".join(PROCESS_OBJECTS)
)
"""Names that texts use themselves. Nodes, which are locals of the texts, need other names."""


def unreserved_name(name: str, used: Container[str] = ()) -> str:
    """``name``, changed if it is reserved, a keyword, or in ``used``."""
    while _RESERVED.fullmatch(name) or keyword.iskeyword(name) or name in used:
        name = f"n{name}" if name.startswith("_") else f"{name}_"
    return name
