"""One planted bug: the search, and whether what it says is right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from torchstrata.bisect.python_source import count_steps

from .planted import Planted, script

PLANTING = Path(__file__).parent / "planting"
ROOT = Path(__file__).resolve().parents[2]
SMALL = 10
"""Nodes of a small repro, at most."""
SECONDS = 900


@dataclass(frozen=True)
class Outcome:
    """What a search found of a planted bug."""

    bug: Planted
    text: str
    replayed: str
    nodes: int
    seconds: float

    def _field(self, name: str) -> str:
        rows = [line for line in self.text.splitlines() if line.startswith(f"{name}: ")]
        return rows[0].partition(": ")[2] if rows else ""

    @property
    def is_layer_right(self) -> bool:
        return self._field("layer").partition(" (stage")[0] in self.bug.layers

    @property
    def is_decision_right(self) -> bool:
        said = f"{self._field('decision')} {self._field('nodes')}"
        return self.is_layer_right and any(text in said for text in self.bug.expected)

    @property
    def replays(self) -> bool:
        return self.replayed.startswith("differs")

    @property
    def is_small(self) -> bool:
        return self.replays and 0 < self.nodes <= SMALL

    def __str__(self) -> str:
        marks = "".join(
            letter if holds else "-"
            for letter, holds in zip(
                "LDRS",
                (self.is_layer_right, self.is_decision_right, self.replays, self.is_small),
            )
        )
        found = f"{self._field('layer')} | {self._field('decision')} | {self._field('nodes')}"
        if not self._field("layer"):
            found = self.text[-300:]
        return f"{marks} {self.seconds:4.0f} s {self.bug.layers[0]}: {self.bug.name}: {found} | {self.nodes} nodes"


def environment(bug: Planted) -> dict[str, str]:
    """The variables of a process with the bug."""
    planted = {"module": bug.module, "before": bug.before, "after": bug.after}
    paths = [str(PLANTING), os.environ.get("PYTHONPATH", ""), str(ROOT)]
    given = {key: value for key, value in os.environ.items() if not key.startswith("STRATA_")}
    return given | {"PLANTED_BUG": json.dumps(planted), "PYTHONPATH": os.pathsep.join(paths)}


def try_bug(bug: Planted, root: Path) -> Outcome:
    """Plants a bug, searches, and replays what was found."""
    directory = root / bug.name.replace(" ", "_")
    directory.mkdir(parents=True, exist_ok=True)
    program = directory / "program.py"
    program.write_text(script(bug))
    started = time.monotonic()
    text = _run(bug, "bisect", "-o", str(directory), "--", "python", str(program))
    seconds = time.monotonic() - started
    repro = directory / "repro.strata"
    replayed = _run(bug, "replay", str(repro)) if repro.exists() else "no repro"
    return Outcome(bug, text, replayed, count_nodes(repro), seconds)


def _run(bug: Planted, *arguments: str) -> str:
    command = [sys.executable, "-m", "torchstrata", *arguments]
    done = subprocess.run(
        command, env=environment(bug), capture_output=True, text=True, timeout=SECONDS
    )
    return done.stdout or done.stderr


def count_nodes(repro: Path) -> int:
    """What a repro computes: calls of a graph, instructions and calls of a program, statements of a
    function.
    """
    if not repro.exists():
        return 0
    text = repro.read_text().partition("\n# inputs")[0]
    if '"source": "python"' in text:
        return count_steps(text)
    lines = [line.strip() for line in text.splitlines()]
    return sum(
        " = " in line or line.startswith(("store(", "launch("))
        for line in lines
        if not line.startswith(("#", "def ", "for ", "@", "'", '"'))
        and "allocate()" not in line
        and "= Size(" not in line
    )
