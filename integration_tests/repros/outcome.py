"""What a call does: its result, or the type of what it raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def outcome(call: Callable[..., Any], *args: Any) -> Any:
    """The result of ``call(*args)``, or the class of its exception."""
    try:
        return call(*args)
    except Exception as error:
        return type(error)
