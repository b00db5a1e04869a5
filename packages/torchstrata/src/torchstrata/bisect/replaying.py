"""Runs the stage of a repro file alone."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import loopir

from torchstrata.config import config
from torchstrata.context import Context, new_context
from torchstrata.errors import UsageError
from torchstrata.extensions import Extensions

from .capture_repro import replay_capture
from .evaluate import fresh
from .forms import STAGES, Reference, Run, built, compare, launched
from .locate import Finding, locate
from .repro import Repro, read_repro


def replay(path: str | Path, stage: str | None = None) -> str:
    """How the stage's result on a repro differs; empty if it doesn't any more.

    ``stage``: one that takes the same kind of text; by default the file's. Raises UsageError for
    another, and for a file that is no repro.
    """
    repro = read_repro(Path(path))
    name = stage or repro.stage
    if repro.source == "python":
        if name != "capture":
            raise UsageError(f"{path} has a Python function, which only the stage 'capture' takes")
        return replay_capture(repro)
    if name not in STAGES:
        raise UsageError(f"unknown stage {name!r}; the stages are capture, {', '.join(STAGES)}")
    if repro.source == "program":
        return _replay_program(repro, name)
    if STAGES[name].source != repro.source:
        fitting = [s.name for s in STAGES.values() if s.source == repro.source]
        raise UsageError(
            f"{path} has a {repro.source} graph, which the stage {name!r} doesn't take; "
            f"{', '.join(fitting)} do"
        )
    part = repro.part()
    ctx = context_of(repro, loopir.devices_of(part.graph))
    return compare(ctx, STAGES[name], part.graph, part.inputs)[0]


def context_of(repro: Repro, devices: Collection[str]) -> Context:
    """The context that a repro was found in."""
    settings = config.with_options({**repro.facts.get("options", {}), "verify": "contracts"})
    ctx = new_context(settings, devices, Extensions())
    return replace(ctx, inference=bool(repro.facts.get("inference")))


def _replay_program(repro: Repro, stage: str) -> str:
    """Kernels, or the host program, of a loop program against the evaluator."""
    if stage not in ("kernels", "host"):
        raise UsageError(f"a loop program is taken by the stages kernels and host, not {stage!r}")
    program = loopir.parse_program(repro.text, dict(repro.constants))
    ctx = context_of(repro, {kernel.device for kernel in program.kernels})
    inputs = [value for _, value in repro.inputs]
    wanted = Reference(loopir.evaluate_program(program, fresh(inputs)), None)
    try:
        run: Run = (built if stage == "kernels" else launched)(ctx, program)
        return wanted.difference(run(fresh(inputs)))
    except Exception as error:
        return f"raises {type(error).__name__}: {error}"


def shrink(path: Path) -> Finding:
    """Makes the graph of a repro as small as its stage still goes wrong on, in place. Raises
    UsageError for a file that is no repro of a graph, or does not differ any more.
    """
    repro = read_repro(path)
    if repro.source not in ("captured", "functional", "prims"):
        raise UsageError(f"{path} has no graph; what has one is made smaller")
    part, stage = repro.part(), STAGES[repro.stage]
    ctx = context_of(repro, loopir.devices_of(part.graph))
    found, _ = compare(ctx, stage, part.graph, part.inputs)
    if not found:
        raise UsageError(f"{path}: {repro.stage} does not differ")
    return locate(ctx, stage, part, found, path)
