"""A readable text of every stage, on disk and in the log."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from pathlib import Path

from loopir import optional_files

from .logs import log_text, logs_stages

_serial = itertools.count()


WHAT = "the dump (STRATA_DUMP, or the option 'dump')"


@dataclass(frozen=True, slots=True)
class Dump:
    """Writes each stage's text into ``directory``, unless that is None, and to the log."""

    directory: Path | None

    @property
    def is_wanted(self) -> bool:
        """Whether anybody reads the texts: they take time to write, and the stages have to run."""
        return self.directory is not None or logs_stages()

    @classmethod
    def for_graph(cls, root: str | None) -> Dump:
        """The dump of one graph; none if the directory can't be used, which warns once."""
        if root is None:
            return cls(None)
        directory = Path(root) / f"{os.getpid()}-{next(_serial):03d}"
        with optional_files(WHAT):
            directory.mkdir(parents=True, exist_ok=True)
            return cls(directory)
        return cls(None)

    def write(self, name: str, text: str) -> None:
        """Writes the text of one stage."""
        log_text(name, text)
        if self.directory is not None:
            with optional_files(WHAT):
                (self.directory / name).write_text(text if text.endswith("\n") else text + "\n")
