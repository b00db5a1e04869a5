"""Frames kept in memory, and programs that are imported anew, as another process would."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import bytecode_dynamo
import torch
from bytecode_dynamo import counters

MODULE = "kept_program"


@dataclass
class Slot:
    """The place of one frame."""

    kept: dict[str, str]
    key: str
    text: str | None = None

    def get(self) -> Any:
        found = self.kept.get(self.key)
        return None if found is None else json.loads(found)

    def hold(self) -> bool:
        return False

    def close(self) -> None:
        pass

    def compile(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        self.text = bytecode_dynamo.format_captured(graph)
        return graph.forward

    def put(self, frame: Any) -> None:
        self.kept[self.key] = json.dumps({**frame, "text": self.text})

    def revive(self, frame: Any) -> Any:
        graph = bytecode_dynamo.parse_captured(frame["text"])
        return graph.forward, lambda: graph


@dataclass
class Backend:
    """Runs captured graphs as they are, and keeps frames."""

    kept: dict[str, str] = field(default_factory=dict)

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        return graph.forward

    def frames(self, names: Mapping[str, str]) -> Slot:
        return Slot(self.kept, json.dumps(names))

    @property
    def refusals(self) -> list[str]:
        """Why frames were not kept."""
        stored = map(json.loads, self.kept.values())
        return [one["refused"] for one in stored if "refused" in one]


def loaded(source: str) -> types.ModuleType:
    """A module of this source, in the place of an earlier one."""
    module = sys.modules[MODULE] = types.ModuleType(MODULE)
    code = compile(source, f"/anywhere/{MODULE}.py", "exec")
    exec(code, vars(module))
    return module


def run(backend: Backend, program: Any, *args: Any, **kwargs: Any) -> tuple[Any, int]:
    """The result of a first call, and how many frames of it were kept ones."""
    before = counters["kept_frames"]
    result = bytecode_dynamo.optimize(backend)(program)(*args, **kwargs)
    return result, counters["kept_frames"] - before
