"""A readable text of every stage on disk."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from pathlib import Path

_serial = itertools.count()


@dataclass(frozen=True, slots=True)
class Dump:
    """Writes each stage's text into ``directory``; does nothing if it is None."""

    directory: Path | None

    @classmethod
    def for_graph(cls, root: str | None) -> Dump:
        if root is None:
            return cls(None)
        directory = Path(root) / f"{os.getpid()}-{next(_serial):03d}"
        directory.mkdir(parents=True, exist_ok=True)
        return cls(directory)

    def write(self, name: str, text: str) -> None:
        if self.directory is not None:
            (self.directory / name).write_text(text if text.endswith("\n") else text + "\n")
