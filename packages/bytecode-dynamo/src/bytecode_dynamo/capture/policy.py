"""How a region captures, and the report of a capture."""

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
    """The report of one capture."""

    code: CodeType
    graph: GraphModule | None
    stop: BreakRecord | None
    guards: tuple[GuardRecord, ...]
    shapes: ShapeGuards
    seconds: float
    changes: tuple[str, ...] = ()
    """Python state that the frame changes after the graph; attributes that get what they have are
    left out.
    """
    recompiled: str | None = None
    """Why earlier graphs of the code did not fit, in one line; None for the first capture."""
    failure: str | None = None
    """The error of the compiled graph that eager mode does not raise; the captured graph has
    replaced it.
    """


@dataclass(slots=True)
class Kept:
    """What ``report()`` says of a capture later: the function and its place in words, and no
    object of the program. The graph lives as long as what is compiled of it.
    """

    where: str
    graph: Callable[[], GraphModule | None] | None
    stop: BreakRecord | None
    seconds: float
    recompiled: str | None = None
    failure: str | None = None


@dataclass(slots=True)
class Policy:
    """How one region captures: backend, options, and facts learned about code objects."""

    backend: Backend
    backend_name: str
    fullgraph: bool = False
    dynamic: bool | None = None
    on_error: str | None = None
    on_capture: Callable[[Captured], None] | None = None
    symbolic_floats: bool = True
    """Whether the backend accepts float inputs; else each value gets its own graph."""
    host_effects: bool = True
    """Whether it supports calls that depend on their order, such as those of random generators;
    else they break the graph.
    """
    roots: set[int] = field(default_factory=set)
    modules: list[weakref.ref[Module]] = field(default_factory=list)
    """The compiled modules; the code that their calls reach is found when they are called."""
    seen: dict[CodeType, Seen] = field(default_factory=dict)
    captured: dict[CodeType, list[tuple[tuple[GuardRecord, ...], ShapeGuards]]] = field(
        default_factory=dict
    )
    exact: set[CodeType] = field(default_factory=set)
    """Code whose graphs assert nothing about data: a failed assertion could not be undone."""
    careful: set[CodeType] = field(default_factory=set)
    """Code whose graphs do nothing that can't be undone: its operators may raise amid effects or
    handlers.
    """
    flat: set[CodeType] = field(default_factory=set)
    """Code that breaks before a call whose inner frames can't be built again."""
    limited: set[CodeType] = field(default_factory=set)
    kept: list[Kept] = field(default_factory=list)
    """Each capture, in order."""
