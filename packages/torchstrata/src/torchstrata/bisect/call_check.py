"""One call of a compiled graph, stage by stage, each against the one before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import GraphModule

from torchstrata.context import Context

from .captured import Calls, compile_eagerly, run_step
from .cuts import Part
from .evaluate import fresh
from .forms import STAGES, Stage, compare, decompose, reference, rewrite, seeded, with_passes

Progress = Callable[[Context, Stage, Part], None]


@dataclass(frozen=True, slots=True)
class WrongStage:
    """A stage that goes wrong on a graph, and how."""

    ctx: Context
    stage: Stage
    part: Part
    difference: str

    @property
    def facts(self) -> tuple[Context, Stage, Part, str]:
        """What ``locate`` takes."""
        return self.ctx, self.stage, self.part, self.difference


def check_call(
    ctx: Context,
    graph: GraphModule,
    inputs: Sequence[Any],
    progress: Progress = lambda ctx, stage, part: None,
) -> WrongStage | None:
    """Compiles a captured graph again, stage by stage, and compares the stages on the inputs of a
    call; the inputs are left as they are.

    ``progress`` is called before each stage. Returns the first that goes wrong; None if none does,
    or if eager raises on these inputs.
    """
    given = Part(graph, tuple(fresh(inputs)))
    try:
        known = reference("captured", graph, given.inputs)
    except Exception:
        return None
    settings = {"blocks": False} | ({"fallback_random": True} if known.is_random else {})
    ctx = replace(ctx, config=ctx.config.with_options(settings))
    stage = STAGES["functional"]
    progress(ctx, stage, given)
    found, _ = compare(ctx, stage, graph, given.inputs, known)
    if found:
        return WrongStage(ctx, stage, given, found)
    calls = Calls()
    call = compile_eagerly(ctx, graph, calls)
    seeded(lambda: run_step(call, fresh(given.inputs)))
    for direction, functional, values in calls.made:
        inner = replace(ctx, inference=direction == "inference")
        wrong = check_functional(inner, Part(functional, tuple(values)), progress)
        if wrong is not None:
            return wrong
    return None


def check_functional(ctx: Context, part: Part, progress: Progress) -> WrongStage | None:
    """The same for the stages of a functional graph."""
    with torch.no_grad():
        for stage in (STAGES["patterns"], STAGES["prims"]):
            wrong = _check(ctx, stage, part, progress)
            if wrong is not None:
                return wrong
            part = Part(rewrite(ctx, part.graph), part.inputs) if stage.name == "patterns" else part
        functional, part = part, Part(decompose(ctx, part.graph), part.inputs)
        for stage in STAGES.values():
            wrong = _check(ctx, stage, part, progress) if stage.source == "prims" else None
            if wrong is not None:
                return wrong
            part = (
                Part(with_passes(ctx, part.graph), part.inputs) if stage.name == "passes" else part
            )
        return _check(ctx, STAGES["blocks"], functional, progress)


def _check(ctx: Context, stage: Stage, part: Part, progress: Progress) -> WrongStage | None:
    progress(ctx, stage, part)
    found, _ = compare(ctx, stage, part.graph, part.inputs)
    return WrongStage(ctx, stage, part, found) if found else None
