"""What a misspelt name was meant to be, for error messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """``"did you mean 'x'? "`` for the known name closest to ``name``, or "" when none is close."""
    spelled = {known_name.lower(): known_name for known_name in known}
    close = difflib.get_close_matches(str(name).lower(), spelled, 1)
    return f"did you mean {spelled[close[0]]!r}? " if close else ""
