"""The lock file (option ``lock``): the choices of each captured graph, recorded and replayed.

A table is found by its graph, target and settings. Processes that record at the same time merge
what they have; of two that recorded the same program, the first counts.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import loopir
import primops.text
import torch
from loopir import exclusive, optional_files
from symshapes.choices import Choices

from .config import Config
from .errors import LockWarning, UsageError
from .lock_text import format_lock, read_lock

Graphs = dict[str, dict[str, Any]]
_OTHERS = frozenset({
    "cache_dir", "compile_seconds", "cuda_graph_copies", "cuda_graphs", "dump", "fallback",
    "lock", "tune", "tuning_lock", "verify",
})  # fmt: skip
"""Options that decide nothing in a compiled graph, or only how choices are made."""
_SHOWN = 3
_guard = threading.RLock()
_read: dict[Path, tuple[object, Graphs]] = {}
_used: set[tuple[Path, str]] = set()
"""The graphs of this process that a file has."""
_warned: set[tuple[Path, str]] = set()


@dataclass(slots=True)
class LockedGraph:
    """The choices of one captured graph.

    Attributes:
        path: the lock file.
        key: of the graph's table.
        about: the table's fields.
        known: by program, the rules that the file had.
        made: by program, the choices of this process.
    """

    path: Path
    key: str
    about: Mapping[str, str]
    known: dict[str, Any] = field(default_factory=dict)
    made: dict[str, Choices] = field(default_factory=dict)

    def refresh(self) -> None:
        """Reads what the file has by now."""
        self.known = read(self.path).get(self.key, {}).get("programs", {})

    def program(self, kind: str, text: str) -> Choices:
        """Where to record the choices about a program (or joint graph) of this text."""
        name = f"{kind} {_digest(text)}"
        known = self.made[name].made if name in self.made else self.known.get(name)
        self.made[name] = Choices(known)
        return self.made[name]

    def keyed(self, store: loopir.ArtifactStore, key: str) -> str:
        """A cache key that also describes the known choices about all programs."""
        return store.key("torchstrata.lock", key, choices=describe(self.known))

    def save(self) -> None:
        """Adds what was chosen to the file, and warns of what is stale."""
        self._warn()
        with _guard, optional_files(f"the lock file {self.path.name} (the option 'lock')"):
            with exclusive(self.path.with_name(f".{self.path.name}.lock")):
                graphs = dict(read(self.path))
                own = graphs.get(self.key, {"programs": {}})
                programs = self._merged(own["programs"])
                if programs != own["programs"] or self.key not in graphs:
                    graphs[self.key] = {**self.about, "programs": programs}
                    _write(self.path, format_lock(graphs))
            self.known = programs
            _used.add((self.path, self.key))

    def _merged(self, there: Mapping[str, Any]) -> dict[str, Any]:
        """The programs in the file, with those of this process that nobody else has recorded."""
        programs = {name: rules for name, rules in there.items() if name not in self._gone()}
        for name, choices in self.made.items():
            if there.get(name) == self.known.get(name) and (choices.made or name in there):
                programs[name] = choices.made
        return programs

    def _gone(self) -> set[str]:
        """Known programs in whose place there is another of the same kind."""
        new = {name.partition(" ")[0] for name in self.made if name not in self.known}
        return {
            name for name in self.known if name not in self.made and name.partition(" ")[0] in new
        }

    def _warn(self) -> None:
        stale = [f"{name} is gone" for name in self._gone()]
        for choices in self.made.values():
            stale += choices.stale
            stale += [f"{each} is not in it" for each in choices.new]
            choices.stale, choices.new = [], []
        if stale:
            more = f", and {len(stale) - _SHOWN} more" if len(stale) > _SHOWN else ""
            self._say(f"choices are stale: {'; '.join(stale[:_SHOWN])}{more}. They are")

    def _say(self, what: str) -> None:
        about = f"{self.about['function']} ({self.about['target']})"
        warnings.warn(
            f"{self.path.name}, {about}: {what} made anew and recorded", LockWarning, stacklevel=2
        )

    def warn_of_others(self) -> None:
        """Warns if the file only has choices about the graph, or the function, under other
        conditions.
        """
        others = {key: graph for key, graph in read(self.path).items() if key != self.key}
        told = (self.path, self.about["function"])
        if self.known or told in _warned:
            return
        same = [graph for graph in others.values() if graph["graph"] == self.about["graph"]]
        if same:
            names = [n for n in ("target", "settings") if same[0][n] != self.about[n]]
            other = " and ".join(f"{name} {same[0][name]!r}" for name in names)
            ours = " and ".join(repr(self.about[name]) for name in names)
            _warned.add(told)
            self._say(f"the recorded choices are for {other}, not {ours}; all are")
            return
        named = [key for key, g in others.items() if g["function"] == self.about["function"]]
        if named and not any((self.path, key) in _used for key in named):
            _warned.add(told)
            self._say("the recorded choices are stale, of another graph of this function; all are")


def locked_graph(
    config: Config, graph: torch.fx.GraphModule, codegens: Mapping[str, Any], extensions: str
) -> LockedGraph | None:
    """The choices of a captured graph in the file of the option ``lock``; None without it. Raises
    UsageError for a damaged file.
    """
    if config.lock is None:
        return None
    path = path_of(config.lock)
    text = f"{torch.is_grad_enabled()} {describe_graph(graph)}"
    about = {
        "function": _function(graph),
        "graph": _digest(text),
        "target": _target(loopir.devices_of(graph), codegens),
        "settings": _settings(config, extensions),
    }
    key = _digest(json.dumps([about[name] for name in ("graph", "target", "settings")]))
    locked = LockedGraph(path, key, about)
    locked.refresh()
    if locked.known:
        _used.add((path, key))
    locked.warn_of_others()
    return locked


def path_of(name: str) -> Path:
    """The path of the file that the option ``lock`` names."""
    return Path(name).expanduser().absolute()


def read(path: Path) -> Graphs:
    """The choices in a file; none if there is no file. Raises UsageError for a damaged one."""
    with _guard:
        try:
            stat = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError as error:
            raise UsageError(f"the lock file {path} can't be read: {error}") from None
        state = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        if path not in _read or _read[path][0] != state:
            _read[path] = state, read_lock(path.read_text(encoding="utf-8"), path.name)
        return _read[path][1]


def _write(path: Path, text: str) -> None:
    """Puts a whole file in the place of the old one: readers hold no lock."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def describe(rules: Any) -> str:
    """A text that is the same for equal choices."""
    return json.dumps(rules, sort_keys=True)


def describe_graph(graph: torch.fx.GraphModule) -> str:
    """The text of a graph, without its place in the user's files."""
    lines = {line: n for n, line in enumerate(dict.fromkeys(map(_trace, graph.graph.nodes)))}
    try:
        return loopir.describe_graph(graph, lambda node: lines[_trace(node)])
    except loopir.Undescribed:
        return primops.text.format_graph(graph, strict=False)


def _trace(node: torch.fx.Node) -> str:
    return str(node.meta.get("stack_trace") or "")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _function(graph: torch.fx.GraphModule) -> str:
    """The user's function of a graph, such as ``step in train.py``."""
    for node in graph.graph.nodes:
        found = re.search(r'File "([^"]*)", line \d+, in (.*)', _trace(node))
        if found:
            return f"{found[2].strip()} in {os.path.basename(found[1])}"
    return "graph"


def _target(devices: Any, codegens: Mapping[str, Any]) -> str:
    names = {"cpu": lambda: f"cpu {torch.backends.cpu.get_cpu_capability()}"}
    names["cuda"] = lambda: f"cuda {torch.cuda.get_device_name()}"
    found = [names[device]() if device in names else device for device in sorted({*devices, "cpu"})]
    own = [f"{d} by {type(codegens[d]).__module__}" for d in sorted(devices) if d in codegens]
    foreign = [text for text in own if " by inductor_" not in text]
    return ", ".join([*found, *foreign])


def _settings(config: Config, extensions: str) -> str:
    plain = Config()
    names = [n for n in Config.__dataclass_fields__ if n not in _OTHERS]
    found = [f"{n}={v}" for n in names if (v := getattr(config, n)) != getattr(plain, n)]
    state = (torch.are_deterministic_algorithms_enabled(), torch.get_default_dtype())
    found += ["deterministic"] * state[0] + [str(state[1])] * (state[1] is not torch.float32)
    found += [f"extensions {_digest(extensions)}"] * bool(extensions)
    return " ".join(found) or "default"
