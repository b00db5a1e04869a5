"""The search: runs of a program, until a layer, a decision and a small program are found."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .active import VARIABLE
from .capture_repro import write_capture_repro
from .locate import Finding
from .session import FOUND, differing_results

SECONDS = 600.0
"""For one run of the program."""
Say = Callable[[str], None]


class NothingFound(Exception):
    """The program is as wrong without compilation, or as right with it."""


@dataclass
class Search:
    """Searches in runs of a command, each in its own process.

    Attributes:
        command: the program and its arguments.
        directory: where findings and repros go.
        say: hears what is done.
        seconds: for one run.
    """

    command: Sequence[str]
    directory: Path
    say: Say = lambda text: None
    seconds: float = SECONDS

    def run(self) -> Finding:
        """What goes wrong. Raises NothingFound."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.say("running without compilation")
        status = self._run("eager")
        if status:
            raise NothingFound(f"the program ends with status {status} without compilation, too")
        self.say("comparing the stages of each graph")
        status = self._run("stages")
        if status == FOUND:
            return self._finding()
        if status < 0:
            return self._crash(status)
        different = differing_results(self.directory, "stages")
        if not status and not different:
            raise NothingFound("the program and its compiled calls do the same as in eager mode")
        said = different or f"the program ends with status {status}"
        self.say(f"no stage differs, but {said}; running the graphs as captured")
        if not self._is_wrong(None):
            return Finding("launch", "host", said)
        return self._search_capture()

    def _run(self, mode: str, limit: int | None = None) -> int:
        for name in (f"{mode}.jsonl", "capture.json", "finding.json", "progress"):
            (self.directory / name).unlink(missing_ok=True)
        session = {"mode": mode, "directory": str(self.directory), "limit": limit}
        env = {**os.environ, VARIABLE: json.dumps(session), "PYTHONHASHSEED": "0"}
        try:
            return subprocess.run(
                self.command, env=env, timeout=self.seconds, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            return 1

    def _finding(self) -> Finding:
        facts = json.loads((self.directory / "finding.json").read_text())
        repro = facts.pop("repro")
        nodes = tuple(facts.pop("nodes"))
        return Finding(**facts, nodes=nodes, repro=Path(repro) if repro else None)

    def _crash(self, status: int) -> Finding:
        stage = (self.directory / "progress").read_text()
        layer = {"kernels": "code generation", "host": "launch"}.get(stage, stage)
        return Finding(layer, stage, f"the process ends with {signal.Signals(-status).name}")

    # -- capture ---------------------------------------------------------------------------------

    def _is_wrong(self, limit: int | None) -> bool:
        status = self._run("capture", limit)
        return bool(status) or bool(differing_results(self.directory, "capture"))

    def _search_capture(self) -> Finding:
        """The first instruction whose capture makes the program wrong."""
        said = differing_results(self.directory, "capture") or "the program fails"
        facts = self._capture_facts()
        low, high = 0, facts["count"] if facts else 1 << 12
        while high - low > 1:
            middle = (low + high) // 2
            self.say(f"capturing {middle} of {high} instructions")
            low, high = (low, middle) if self._is_wrong(middle) else (middle, high)
        self._is_wrong(high)
        last = (self._capture_facts() or {}).get("last") or {}
        decision = f"{high}: {last.get('rule', '')} ({last.get('subject', '')})"
        finding = Finding("capture", "capture", said, decision, (last.get("rule", ""),))
        return write_capture_repro(finding, self.directory / "repro.strata")

    def _capture_facts(self) -> Any:
        path = self.directory / "capture.json"
        return json.loads(path.read_text()) if path.exists() else None


def search_command(command: Sequence[str], directory: Path, say: Say) -> Finding:
    """Searches in runs of a command; ``python`` is this one. Raises NothingFound."""
    first, *rest = command
    program = sys.executable if first in ("python", "python3") else first
    return Search([program, *rest], directory, say).run()
