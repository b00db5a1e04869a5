"""Repros of captures: the text of a Python function with its arguments."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .locate import Finding
    from .repro import Repro


def write_capture_repro(finding: Finding, path: Path) -> Finding:
    return finding


def replay_capture(repro: Repro) -> str:
    return ""
