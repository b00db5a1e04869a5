"""What is recorded of one captured graph: texts, times, cache lookups and programs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import bytecode_dynamo
import loopir
import torch
from loopir import ProgramSummary, summarize

from .session import Session, harmless
from .titles import title_of

if TYPE_CHECKING:
    from .profile import Profile

_FILE = re.compile(r'File "(.*?)", line')


class GraphTrace:
    """Writes the events of one graph."""

    def __init__(self, session: Session, profile: Profile | None) -> None:
        self.session = session
        self.profile = profile
        self.number = session.number("graph")
        self.frame = session.frame
        self.same_as: int | None = None

    @property
    def repeats(self) -> bool:
        """Whether an equal graph was compiled in this session: the cache has its programs."""
        return self.same_as is not None

    @contextmanager
    def compiling(self, graph: torch.fx.GraphModule) -> Iterator[None]:
        """The compilation of the graph."""
        with harmless("a captured graph"):
            self.write("10-captured.py", bytecode_dynamo.format_captured(graph, strict=False))
            traces = {node.meta.get("stack_trace") or "" for node in graph.graph.nodes}
            for file in sorted({name for trace in traces for name in _FILE.findall(trace)}):
                self.session.keep_source(file)
        start, error = self.session.now(), None
        try:
            yield
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
            raise
        finally:
            self.session.emit(
                "graph",
                id=self.number,
                frame=self.frame,
                at=start,
                seconds=self.session.now() - start,
                nodes=sum(node.op.startswith("call") for node in graph.graph.nodes),
                error=error,
            )

    def write(self, name: str, text: str) -> None:
        """Keeps the text of a stage."""
        self.session.write(f"graph-{self.number:03d}/{name}", text)

    @contextmanager
    def stage(
        self, direction: str, stage: loopir.PipelineStage, store: loopir.ArtifactStore
    ) -> Iterator[None]:
        """Measures a stage, and the built kernels that it found in the store or had to add."""
        start, hits, misses = self.session.now(), store.hits, store.misses
        try:
            yield
        finally:
            self.session.emit(
                "stage",
                graph=self.number,
                direction=direction,
                stage=stage.name,
                layer=stage.layer,
                at=start,
                seconds=self.session.now() - start,
                hits=store.hits - hits,
                misses=store.misses - misses,
            )

    def note_lookup(
        self, what: str, direction: str, store: loopir.ArtifactStore, key: str | None, hit: bool
    ) -> None:
        """Keeps what the cache answered. A trace runs all stages after a hit, too, unless the
        session has seen them.
        """
        reason = "is in the cache"
        if what == "graph" and key is not None:
            first = self.session.compiled.setdefault(key, self.number)
            self.same_as = first if hit and first != self.number else None
        if key is None:
            reason = "can't be cached: it has no description that holds in another process"
        elif not hit and what == "program":
            reason = "is not in the cache"
        elif not hit:
            with harmless("why the cache had nothing"):
                _, *changes = loopir.explain_miss(store, key, f".{what}").splitlines()
                reason = "differs from the nearest: " + "; ".join(changes)
                if not changes:
                    reason = "is the first captured graph in this cache"
        facts = {"what": what, "hit": hit, "reason": reason, "same_as": self.same_as}
        self.session.emit("lookup", graph=self.number, direction=direction, **facts)

    def note_stage(self, direction: str, stage: loopir.PipelineStage, form: Any) -> None:
        """Keeps the text of a result, and of a program what its steps do."""
        if stage.name.startswith(("25-", "40-", "50-")):
            return
        with harmless(f"the stage {stage.name}"):
            self.write(f"{direction}-{stage.name}", stage.show(form))
            if isinstance(form, loopir.HostProgram):
                self._note_program(direction, form)

    def _note_program(self, direction: str, host: loopir.HostProgram) -> None:
        program = host.program
        summary = summarize(program)
        facts = {
            "kernels": [*map(_describe_kernel, program.kernels, host.sources)],
            "calls": [*map(_shallow, summary.calls)],
            "buffers": [*map(_shallow, summary.buffers.values())],
            "decisions": [*map(_describe_decision, program.decisions)],
        }
        self.session.emit("program", graph=self.number, direction=direction, **facts)

    def profiled(self, direction: str, host: loopir.HostProgram) -> loopir.HostProgram:
        """The program with a clock around each call, if the session profiles."""
        if self.profile is None:
            return host
        summary: ProgramSummary = summarize(host.program)
        return self.profile.measured(self.number, direction, host, summary)


def _shallow(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _describe_kernel(kernel: Any, source: loopir.KernelSource) -> dict[str, Any]:
    return {
        "name": kernel.name,
        "title": title_of(name for name, _ in kernel.origins),
        "device": kernel.device,
        "origins": kernel.origins,
        "loops": loopir.format_any(_without_origins(kernel)),
        "source": source.text,
    }


def _describe_decision(decision: loopir.Decision) -> dict[str, Any]:
    names = {
        side: [*dict.fromkeys(name for origins in nodes for name, _ in origins)]
        for side, nodes in (
            ("first_nodes", decision.first_origins),
            ("second_nodes", decision.second_origins),
        )
    }
    return {
        "first": decision.first,
        "second": decision.second,
        "accepted": decision.accepted,
        "reason": decision.reason,
        "saved": decision.saved,
        **names,
    }


def _without_origins(kernel: Any) -> Any:
    return replace(kernel, origins=())
