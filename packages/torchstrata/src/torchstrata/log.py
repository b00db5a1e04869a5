"""``STRATA_LOG=info`` logs graph breaks and recompilations to stderr."""

from __future__ import annotations

import logging
import os

from .errors import UsageError

_LEVELS = ("debug", "info", "warning", "error")


def log_as_environment_says() -> None:
    """Prints what the packages log. Raises UsageError for an unknown level."""
    level = os.environ.get("STRATA_LOG", "").lower()
    if not level:
        return
    if level not in _LEVELS:
        raise UsageError(f"STRATA_LOG={level!r}: no such level; one of {', '.join(_LEVELS)}")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    logger = logging.getLogger("bytecode_dynamo")
    logger.addHandler(handler)
    logger.setLevel(level.upper())
