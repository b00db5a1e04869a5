"""The search that this process belongs to, if any. A process without one loads nothing else of this
room.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from torchstrata import bisect

if TYPE_CHECKING:
    from .session import Session

VARIABLE = "STRATA_BISECT"
ACTIVE: list[Session] = []
_is_read = False


def current() -> Session | None:
    """The session of this process; the first call begins that of ``STRATA_BISECT``."""
    global _is_read
    if not _is_read:
        _is_read = True
        if given := os.environ.get(VARIABLE):
            facts = json.loads(given)
            session = bisect.Session(**facts | {"directory": Path(facts["directory"])})
            ACTIVE.append(session)
            session.begin()
    return ACTIVE[-1] if ACTIVE else None
