"""What ``explain`` answers."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx import GraphModule

from bytecode_dynamo.capture.policy import Captured
from bytecode_dynamo.graph.text import format_captured
from bytecode_dynamo.guards.text import format_guard

from .errors import BreakRecord


@dataclass(frozen=True, slots=True)
class Explanation:
    """The captures of one call: graphs in order, why they ended, guards, seconds per capture, what
    compiled graphs raised.
    """

    graphs: tuple[GraphModule, ...]
    break_reasons: tuple[BreakRecord, ...]
    guards: tuple[str, ...]
    compile_times: tuple[float, ...]
    result: Any = None
    failures: tuple[str, ...] = ()

    @classmethod
    def of(cls, found: Sequence[Captured], result: Any) -> Explanation:
        """From the captures of one call."""
        return cls(
            tuple(item.graph for item in found if item.graph is not None),
            tuple(item.stop for item in found if item.stop is not None and item.stop.id != "BD008"),
            tuple(dict.fromkeys(format_guard(guard) for item in found for guard in item.guards)),
            tuple(item.seconds for item in found),
            result,
            tuple(item.failure for item in found if item.failure is not None),
        )

    @property
    def graph_count(self) -> int:
        """How many graphs."""
        return len(self.graphs)

    @property
    def graph_break_count(self) -> int:
        """How often a graph ended before the end of a frame."""
        return len(self.break_reasons)

    @property
    def op_count(self) -> int:
        """How many calls the graphs have."""
        return sum(
            node.op in ("call_function", "call_method")
            for graph in self.graphs
            for node in graph.graph.nodes
        )

    def __str__(self) -> str:
        counts = (
            f"{self.graph_count} graphs, {self.graph_break_count} graph breaks, {self.op_count} "
            f"calls"
        )
        lines = [f"{counts}, {len(self.guards)} guards"]
        for number, reason in enumerate(self.break_reasons, 1):
            lines += [f"graph break {number}: {reason.format()}"]
        lines += [f"failed graph, now run operator by operator: {cause}" for cause in self.failures]
        for number, graph in enumerate(self.graphs, 1):
            lines += [f"graph {number}:", format_captured(graph, strict=False)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"
