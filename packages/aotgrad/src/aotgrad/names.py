"""Names in the texts of calls: those of a graph's nodes, and those that a text gives itself."""

from __future__ import annotations

import keyword
import re
from collections.abc import Container

MADE_ANEW = (
    "forward",
    "backward",
    "other_mode",
    "overlapping",
    "double_backward",
    "partial_backward",
)
"""Names of a text for objects that belong to one process."""
_OWN = re.compile(
    r"[bdovy]\d+|_|__.*|apply|arguments|box|call|ctx|given|hooked|kept|results|torch|function_\w+|"
    + "|".join(MADE_ANEW)
)
"""Names that texts give whatever the graph: its nodes, which texts call by their names, must have
others.
"""


def apart(name: str, taken: Container[str] = ()) -> str:
    """A name like ``name`` that texts may use for a node: none of their own, none of those
    taken.
    """
    while _OWN.fullmatch(name) or keyword.iskeyword(name) or name in taken:
        name = f"n{name}" if name.startswith("_") else f"{name}_"
    return name
