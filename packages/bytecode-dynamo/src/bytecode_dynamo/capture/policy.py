"""How a region captures, and what a capture gave."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from torch.fx import GraphModule
from torch.nn import Module

from bytecode_dynamo.errors import BreakRecord
from bytecode_dynamo.guards.records import GuardRecord, ShapeGuards
from bytecode_dynamo.state.dynamic_shapes import Seen

Backend = Callable[[GraphModule, list[Any]], Callable[..., Any]]


@dataclass(slots=True)
class Captured:
    """What one capture gave, for reports."""

    code: CodeType
    graph: GraphModule | None
    stop: BreakRecord | None
    guards: tuple[GuardRecord, ...]
    shapes: ShapeGuards
    seconds: float
    changes: tuple[str, ...] = ()
    """Python state that the frame changes after the graph."""
    recompiled: str | None = None
    """Why earlier graphs of the same code did not fit, in a line; None for the first capture."""
    failure: str | None = None
    """What the compiled graph raised where eager mode does not; the captured graph has run in its
    place since.
    """


@dataclass(slots=True)
class Policy:
    """How one region captures: its backend and options, and what it has learnt about code
    objects.
    """

    backend: Backend
    backend_name: str
    fullgraph: bool = False
    dynamic: bool | None = None
    on_error: str | None = None
    on_capture: Callable[[Captured], None] | None = None
    symbolic_floats: bool = True
    """Whether the backend takes graphs with float inputs; else a graph is captured per value."""
    host_effects: bool = True
    """Whether it runs calls that depend on their place, such as those of random generators; else
    they break the graph.
    """
    roots: set[int] = field(default_factory=set)
    modules: list[weakref.ref[Module]] = field(default_factory=list)
    """The modules that were compiled: which code their calls lead to is found out when they are
    called.
    """
    seen: dict[CodeType, Seen] = field(default_factory=dict)
    captured: dict[CodeType, list[tuple[tuple[GuardRecord, ...], ShapeGuards]]] = field(
        default_factory=dict
    )
    exact: set[CodeType] = field(default_factory=set)
    """Code whose graphs assume nothing of the data: what a graph has done when it finds out can't
    be undone.
    """
    careful: set[CodeType] = field(default_factory=set)
    """Code whose graphs do nothing that can't be undone: where their operators raise, the program
    has effects or handlers.
    """
    limited: set[CodeType] = field(default_factory=set)
