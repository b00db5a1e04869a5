"""The parts of keys as people read them."""

from __future__ import annotations

import hashlib
import re

SHOWN = 120


def shown(part: str | bytes) -> str:
    """A part of a key on one line: the part itself if it is short, else its hash."""
    data = part.encode() if isinstance(part, str) else part
    if isinstance(part, str) and len(part) <= SHOWN:
        return repr(part)
    return f"sha256 {hashlib.sha256(data).hexdigest()} of {len(data)} bytes"


def difference(a: str, b: str) -> str:
    """What became of a part; of hashes, what they begin with: ``inputs 5aeb0b92 of 350 bytes became
    1c8ab421 of 348``.
    """
    old, new = (re.fullmatch(r"(.*)sha256 (.{8}).{56} of (\d+) bytes", part) for part in (a, b))
    if old is None or new is None or old[1] != new[1]:
        return f"{a} became {b}"
    return f"{old[1]}{old[2]} of {old[3]} bytes became {new[2]} of {new[3]}"
