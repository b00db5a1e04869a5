"""From a stage that goes wrong to the decision, the nodes and a small program that shows it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import loopir
import primops
import torch
from symshapes.decisions import Decision
from symshapes.text.names import ROOTS, format_target
from symshapes.text.values import Unwritable
from torch.fx import Node

from torchstrata.context import Context

from .cuts import Part
from .forms import STAGES, Reference, Stage, compare, reference, schedule
from .joint_check import is_cut_wrong
from .repro import Repro
from .shrink import Shrinker
from .text_shrink import shrink_text

_NAMED = {**ROOTS, "prims": primops.prims}


@dataclass(frozen=True, slots=True)
class Finding:
    """What went wrong where.

    Attributes:
        layer: "capture", "functionalisation", "partition", "pattern", "decomposition", "lowering",
            "fusion", "code generation" or "launch".
        stage: the stage that was compared; see ``forms.STAGES``.
        difference: how its result differs.
        decision: the pass or decision that makes it differ, and its position; empty where the layer
            has no choice.
        nodes: what is left of the graph: the targets of its calls.
        repro: the file.
    """

    layer: str
    stage: str
    difference: str
    decision: str = ""
    nodes: tuple[str, ...] = ()
    repro: Path | None = None

    def __str__(self) -> str:
        lines = [f"layer: {self.layer} (stage {self.stage})", f"difference: {self.difference}"]
        lines += [f"decision: {self.decision}"] if self.decision else []
        lines += [f"nodes: {', '.join(self.nodes)}"] if self.nodes else []
        if self.repro is not None:
            lines.append(f"repro: {self.repro}")
            lines.append(f"  python -m torchstrata replay {self.repro} --stage {self.stage}")
        return "\n".join(lines)


def find_decision(
    ctx: Context, stage: Stage, part: Part, known: Reference
) -> tuple[str, Decision | None]:
    """The layer of a stage that goes wrong, and the first of its decisions with which it does; None
    if it does without any.
    """

    def try_limits(limits: dict[str, int]) -> tuple[bool, Any]:
        found, log = compare(ctx, stage, part.graph, part.inputs, known, limits)
        return bool(found), log

    for i, layer in enumerate(stage.layers):
        off = dict.fromkeys(stage.layers[i + 1 :], 0)
        wrong, log = try_limits(off)
        if not wrong:
            continue
        if not log.counts[layer] or try_limits({**off, layer: 0})[0]:
            after = stage.source == "captured" and is_cut_wrong(ctx, part, known)
            return "partition" if after else layer, None
        low, high = 0, log.counts[layer]
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if try_limits({**off, layer: middle})[0] else (middle, high)
        _, log = try_limits({**off, layer: high})
        return layer, log.last(layer)
    return stage.layers[-1], None


def locate(
    ctx: Context, stage: Stage, part: Part, difference: str, path: Path, seconds: float = 90.0
) -> Finding:
    """The finding for a stage that goes wrong on a graph; the repro is written to ``path``."""
    layer, decision = find_decision(
        ctx, stage, part, reference(stage.source, part.graph, part.inputs)
    )
    before = STAGES.get(stage.before)

    def fails(smaller: Part) -> bool:
        known = reference(stage.source, smaller.graph, smaller.inputs)
        found, _ = compare(ctx, stage, smaller.graph, smaller.inputs, known)
        if not found or found.startswith("raises") != difference.startswith("raises"):
            return False
        return before is None or not compare(ctx, before, smaller.graph, smaller.inputs, known)[0]

    small = Shrinker(stage.source, fails, seconds).run(part)
    shown, _ = compare(ctx, stage, small.graph, small.inputs)
    finding = Finding(layer, stage.name, shown or difference, _said(decision), _targets(small))
    try:
        repro = Repro.of(stage.name, stage.source, small, _facts(ctx, finding))
        repro = shrink_text(repro, fails)
        repro = as_program(ctx, stage, repro)
    except Unwritable:
        return finding
    repro.write(path)
    return replace(finding, repro=path)


def _said(decision: Decision | None) -> str:
    return "" if decision is None else f"{decision.index}: {decision}"


def _targets(part: Part) -> tuple[str, ...]:
    return tuple(map(_named, part.calls))


def _named(node: Node) -> str:
    """The name of what a node calls."""
    target: Any = node.target
    try:
        name = target if node.op == "call_method" else format_target(target, _NAMED)
    except Unwritable:
        name = getattr(target, "__name__", str(target))
    return name.removeprefix("torch.").removeprefix("ops.")


def _facts(ctx: Context, finding: Finding) -> dict[str, Any]:
    changed = {
        name: value
        for name, value in ctx.config.saved().items()
        if value is None or isinstance(value, (bool, int, float, str))
    }
    return {
        "layer": finding.layer,
        "decision": finding.decision,
        "nodes": list(finding.nodes),
        "difference": finding.difference,
        "inference": ctx.inference,
        "options": changed,
        "torch": str(torch.__version__),
    }


def as_program(ctx: Context, stage: Stage, repro: Repro) -> Repro:
    """For stages that take a loop program, the repro with the program's text."""
    if stage.name not in ("kernels", "host"):
        return repro
    program = schedule(ctx, repro.part().graph)
    text = loopir.format_program(program)
    return replace(repro, source="program", text=text, constants=dict(program.constants))
