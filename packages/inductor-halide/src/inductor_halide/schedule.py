"""Schedules: when each stage of a pipeline runs, along which lanes, and on how many threads."""

from __future__ import annotations

from pathlib import Path

import halide as hl

from .pipeline import Pipeline, Stage

GUARD = hl.TailStrategy.GuardWithIf  # the others store places twice, which may be an input's


def schedule_simply(p: Pipeline, tasks: int | None) -> None:
    """Vectorises the loop that the kernel names, computes what a row of the only output needs row
    by row, and runs the outermost loop on all threads, ``tasks`` points at a time (None: on one).
    """
    loops = [_order_loops(p, stage) for stage in p.stages]
    targets = [stage for stage in p.stages if stage.kind in ("store", "scatter")]
    for stage, ranges in zip(p.stages, loops, strict=True):
        last = p.stages[-1]
        by_row = len(targets) == 1 and last.kind == "store" and bool(loops[-1])
        if stage not in targets:
            for func in filter(None, (stage.func, stage.partial)):
                if by_row:
                    func.compute_at(last.func, loops[-1][0])
                elif func is stage.partial and ranges:
                    func.compute_at(stage.func, ranges[0])
                else:
                    func.compute_root()
        if tasks is not None and ranges and (stage is last or not by_row):
            for part in _parts(stage):
                part.parallel(ranges[-1], tasks, GUARD)


def _parts(stage: Stage) -> list[hl.Func | hl.Stage]:
    updates = range(stage.func.num_update_definitions())
    return [stage.func, *(stage.func.update(number) for number in updates)]


def _order_loops(p: Pipeline, stage: Stage) -> list[hl.Var]:
    """Orders and vectorises the loops of a stage; returns those over ``ranges``, innermost
    first.
    """
    if stage.partial is not None:
        lane = hl.Var("lane")
        stage.partial.vectorize(lane)
        stage.partial.update(0).reorder(lane, *stage.reduced).vectorize(lane)
    loops, names = list(stage.coordinates), [var.name() for var in stage.coordinates]
    if p.vector in names and not (stage.kind == "scan" and p.vector in p.inner):
        number = names.index(p.vector)
        lane, block = hl.Var(f"{p.vector}_lane"), hl.Var(f"{p.vector}_block")
        loops[number] = block
        for part in _parts(stage):
            inner = [] if part is stage.func else stage.reduced
            part.split(stage.coordinates[number], block, lane, p.lanes, GUARD)
            part.reorder(lane, *inner, *(loops[1:] if inner and stage.kind == "scan" else loops))
            part.vectorize(lane)
    return [var for var, name in zip(loops, names, strict=True) if name in p.outer]


def schedule_automatically(
    pipeline: hl.Pipeline, target: hl.Target, name: str, threads: int
) -> None:
    """Lets one of Halide's autoschedulers decide. Estimates must be set."""
    library = Path(hl.install_dir()) / "lib64" / f"libautoschedule_{name.lower()}.so"
    hl.load_plugin(str(library))
    parameters = hl.AutoschedulerParams(name, {"parallelism": str(threads)})
    pipeline.apply_autoscheduler(target, parameters)
