"""torch's operator database, by full names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from packages.primops.tests.opinfo import database, full_name

__all__ = ["full_name", "operators"]


def operators(names: Sequence[str] = ()) -> list[Any]:
    """Entries of the database in order, all or those of the given full names."""
    return [op for op in database() if not names or full_name(op) in names]
