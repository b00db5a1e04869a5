"""Dumps of stages (STRATA_DUMP) as text."""

from __future__ import annotations

from pathlib import Path

from torchstrata.errors import UsageError

_PREVIEW_LINES = 12


def dump_text(directory: Path) -> str:
    """The stages of a dump, each with its size and first lines. Raises UsageError if there is
    none.
    """
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    if not files:
        raise UsageError(
            f"{directory}: neither a trace nor a dump is here; run a program with "
            f"STRATA_TRACE={directory} or STRATA_DUMP={directory} first"
        )
    sections = []
    for path in files:
        lines = path.read_text().splitlines()
        preview = "\n".join(f"    {line}" for line in lines[:_PREVIEW_LINES])
        sections.append(f"{path.relative_to(directory)}  ({len(lines)} lines)\n{preview}")
    return "\n\n".join(sections)
