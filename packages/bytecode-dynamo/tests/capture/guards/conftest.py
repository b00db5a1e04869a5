"""Every recompile of these tests has a reason that a user can read."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest

INTERNAL = re.compile(
    r"\b[LGBC]\['|\.s\d|<locals>|viewed\(|0x[0-9a-f]{4}|__mro__\[|object at|None$"
)
CHANGE = re.compile(r"^.+ (was|were|had) .+, now .+$")


class Reasons(logging.Handler):
    """Collects the reasons of recompiles that are logged."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.found: list[Any] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg.startswith("recompiled"):
            assert isinstance(record.args, tuple)
            self.found.append(record.args[1])


@pytest.fixture(autouse=True)
def readable_reasons() -> Iterator[None]:
    """Collects the reasons, and looks at them at the end."""
    log, reasons = logging.getLogger("bytecode_dynamo"), Reasons()
    log.addHandler(reasons)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(reasons)
        log.setLevel(logging.NOTSET)
    for reason in reasons.found:
        assert reason is not None and CHANGE.match(reason), reason
        assert not INTERNAL.search(reason.removesuffix("now None")), reason
