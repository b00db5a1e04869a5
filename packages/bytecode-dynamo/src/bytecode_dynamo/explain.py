"""What ``explain`` and ``report`` answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx import GraphModule

from bytecode_dynamo.capture.policy import Captured, Policy
from bytecode_dynamo.graph.text import format_captured
from bytecode_dynamo.guards.phrase import phrase
from bytecode_dynamo.guards.text import format_guard

from .errors import BreakRecord
from .explain_html import details, page, table


@dataclass(frozen=True, slots=True)
class Explanation:
    """Captures: graphs in order, why they ended, guards, seconds per capture, what compiled graphs
    raised, and what was compiled again, with the reason if it is known.
    """

    graphs: tuple[GraphModule, ...]
    break_reasons: tuple[BreakRecord, ...]
    guards: tuple[str, ...]
    compile_times: tuple[float, ...]
    result: Any = None
    failures: tuple[str, ...] = ()
    recompiles: tuple[tuple[str, str], ...] = ()

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
            tuple(
                (item.code.co_qualname, item.recompiled)
                for item in found
                if item.recompiled is not None
            ),
        )

    @classmethod
    def of_kept(cls, policy: Policy) -> Explanation:
        """From all captures of an optimizer, with the guards in words."""
        graphs = (item.graph() for item in policy.kept if item.graph is not None)
        records = (
            record for entries in policy.captured.values() for guards, _ in entries
            for record in guards
        )  # fmt: skip
        return cls(
            tuple(graph for graph in graphs if graph is not None),
            tuple(i.stop for i in policy.kept if i.stop is not None and i.stop.id != "BD008"),
            tuple(dict.fromkeys(f"{record.source.shown} {phrase(record)}" for record in records)),
            tuple(item.seconds for item in policy.kept),
            None,
            tuple(item.failure for item in policy.kept if item.failure is not None),
            tuple((i.where, i.recompiled) for i in policy.kept if i.recompiled is not None),
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

    @property
    def _counts(self) -> str:
        return (
            f"{self.graph_count} graphs, {self.graph_break_count} graph breaks, {self.op_count} "
            f"calls, {len(self.guards)} guards"
        )

    def __str__(self) -> str:
        lines = [self._counts]
        for number, reason in enumerate(self.break_reasons, 1):
            lines += [f"graph break {number}: {reason.format()}"]
        lines += [f"recompiled {where}: {reason}" for where, reason in self.recompiles]
        lines += [f"failed graph, now run operator by operator: {cause}" for cause in self.failures]
        for number, graph in enumerate(self.graphs, 1):
            lines += [f"graph {number}:", format_captured(graph, strict=False)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        breaks = [
            (stop.id, stop.reason, place.format().strip(), stop.hint)
            for stop in self.break_reasons
            for place in stop.stack[-1:]
        ]
        parts = [
            table("Graph breaks", ("id", "reason", "where", "what to try"), breaks),
            table("Recompiles", ("function", "what changed"), self.recompiles),
            table("Failed graphs", ("what they raise",), [(cause,) for cause in self.failures]),
        ]
        parts += [
            details(f"graph {number}: {len(graph.graph.nodes)} nodes", text)
            for number, graph in enumerate(self.graphs, 1)
            for text in [format_captured(graph, strict=False)]
        ]
        if self.guards:
            parts.append(details(f"{len(self.guards)} guards", "\n".join(self.guards)))
        return page(f"{self._counts}, {sum(self.compile_times):.2g} s", parts)
