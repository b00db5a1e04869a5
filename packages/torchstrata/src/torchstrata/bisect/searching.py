"""The search: runs of a program, until a layer, a decision and a small program are found."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import bytecode_dynamo

from torchstrata.counters import counters

from .active import ACTIVE, VARIABLE
from .capture_repro import shrink_capture
from .locate import Finding
from .session import FOUND, REPRO, Found, Session, differing_results

SECONDS = 600.0
"""For one run of the program."""
Say = Callable[[str], None]


class NothingFound(Exception):
    """The program is as wrong without compilation, or as right with it."""


@dataclass
class Search(ABC):
    """Searches in runs of a program.

    Attributes:
        directory: where findings and repros go.
        say: hears what is done.
    """

    directory: Path
    say: Say = lambda text: None

    @abstractmethod
    def run_program(self, session: Mapping[str, Any]) -> int:
        """Runs the program in a session of these facts. Returns 0 if it is right, FOUND once a
        finding is written, a signal's number, negative, if one ended it, and else something else.
        """

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

    def _run(self, mode: str, limit: int | None = None, call: int | None = None) -> int:
        for name in (f"{mode}.jsonl", "capture.json", "finding.json", "progress"):
            (self.directory / name).unlink(missing_ok=True)
        return self.run_program(
            {"mode": mode, "directory": str(self.directory), "limit": limit, "call": call}
        )

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
        return self._with_repro(finding)

    def _with_repro(self, finding: Finding) -> Finding:
        """The finding with a repro of the first call that differs, if the function is one that text
        can hold.
        """
        path = self.directory / REPRO
        path.unlink(missing_ok=True)
        number = re.match(r"call (\d+):", finding.difference)
        self._run("capture", None, int(number[1]) if number else 0)
        if not path.exists():
            return finding
        facts = {"layer": "capture", "decision": finding.decision, "nodes": list(finding.nodes)}
        said = shrink_capture(path, facts)
        return replace(finding, difference=said, repro=path) if said else finding

    def _capture_facts(self) -> Any:
        path = self.directory / "capture.json"
        return json.loads(path.read_text()) if path.exists() else None


@dataclass
class CommandSearch(Search):
    """The runs are processes of ``command``, each of at most ``seconds``."""

    command: Sequence[str] = ()
    seconds: float = SECONDS

    def run_program(self, session: Mapping[str, Any]) -> int:
        """Runs the command; one that takes too long is wrong."""
        env = {**os.environ, VARIABLE: json.dumps(session), "PYTHONHASHSEED": "0"}
        try:
            return subprocess.run(
                self.command, env=env, timeout=self.seconds, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            return 1


@dataclass
class CheckSearch(Search):
    """The runs are calls of ``check`` in this process; it is wrong if it raises or returns False.
    ``reset`` forgets what is compiled.
    """

    check: Callable[[], object] = bool
    reset: Callable[[], None] = bool  # type: ignore[assignment]

    def run_program(self, session: Mapping[str, Any]) -> int:
        """Calls the check."""
        self.reset()
        own = Session(**{**session, "directory": self.directory}, in_child=False)
        ACTIVE.append(own)
        own.begin()
        try:
            return int(self.check() is False)
        except Found:
            return FOUND
        except Exception:
            return 1
        finally:
            ACTIVE.remove(own)
            own.end()
            own.finish()
            self.reset()


def search_command(command: Sequence[str], directory: Path, say: Say) -> Finding:
    """Searches in runs of a command; ``python`` is this one. Raises NothingFound."""
    first, *rest = command
    program = sys.executable if first in ("python", "python3") else first
    return CommandSearch(directory, say, [program, *rest]).run()


def bisect(check: Callable[[], object], output: str | Path = "bisect") -> Finding:
    """Finds what makes ``check`` fail: the layer, the pass or decision, the nodes, and a small
    program that shows it, a file in the directory ``output``.

    ``check`` calls compiled functions; it fails if it raises or returns False. It is called several
    times, and has to do the same each time. Everything that this process has compiled is forgotten.

    Raises NothingFound if the check fails without compilation, too, or does not fail with it.
    """
    search = CheckSearch(Path(output), check=check, reset=forget)
    return search.run()


def forget() -> None:
    """Forgets every compiled entry and counter."""
    bytecode_dynamo.reset()
    counters.clear()
