"""The search that this process belongs to, if any, and the comparison of calls in production. A
process without them loads nothing else of this room.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.fx import GraphModule

    from torchstrata.context import Context

    from .session import Session

Compiled = Callable[..., Sequence[object]]

VARIABLE = "STRATA_BISECT"
ACTIVE: list[Session] = []
_is_read = False
# the attribute of this name of ``torchstrata`` is the public function
_room: Any = sys.modules[__package__ or ""]


def current() -> Session | None:
    """The session of this process; the first call begins that of ``STRATA_BISECT``."""
    global _is_read
    if not _is_read:
        _is_read = True
        if given := os.environ.get(VARIABLE):
            facts = json.loads(given)
            session = _room.Session(**facts | {"directory": Path(facts["directory"])})
            ACTIVE.append(session)
            session.begin()
    return ACTIVE[-1] if ACTIVE else None


def compared(ctx: Context, graph: GraphModule, compile: Callable[[], Compiled]) -> Compiled:
    """What ``compile`` makes of a captured graph, with the checks that a search or the setting
    ``verify`` asks for.
    """
    session = current()
    if session is not None:
        return session.checked(ctx, graph, compile)
    if not ctx.config.compares:
        return compile()
    own = _room.copy_graph(graph)
    return _room.sampled(ctx, own, compile())
