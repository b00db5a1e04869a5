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
    targets = [stage for stage in p.stages if stage.kind in ("store", "scatter")]
    single = targets[0] if len(targets) == 1 and targets[0].kind == "store" else None
    level = None
    for stage in reversed(p.stages):
        found = _order_loops(p, stage, tasks if stage is single or single is None else None)
        if stage is single:
            level = found
    for stage in p.stages:
        if stage in targets:
            continue
        if level is not None and single is not None:
            stage.func.compute_at(single.func, level)
            if stage.partial is not None:
                stage.partial.compute_at(single.func, level)
        else:
            stage.func.compute_root()
            if stage.partial is not None and stage.coordinates:
                stage.partial.compute_at(stage.func, stage.coordinates[0])
            elif stage.partial is not None:
                stage.partial.compute_root()


def _order_loops(p: Pipeline, stage: Stage, tasks: int | None) -> hl.Var | None:
    """Orders, vectorises and parallelises the loops of a stage; returns its innermost loop over
    ``ranges``, under which a row is computed.
    """
    func, coordinates = stage.func, stage.coordinates
    names = [var.name() for var in coordinates]
    if stage.kind == "scatter":
        return None
    if stage.partial is not None:
        lane = hl.Var("lane")
        stage.partial.vectorize(lane)
        stage.partial.update(0).reorder(lane, *stage.reduced).vectorize(lane)
    loops: list[hl.Var] = list(coordinates)
    if p.vector in names:
        number = names.index(p.vector)
        outer, lane = hl.Var(f"{p.vector}_block"), hl.Var(f"{p.vector}_lane")
        loops[number] = outer
        vector = coordinates[number]
        if func.has_update_definition():
            if not stage.reduced:  # an output that is updated in place
                _vectorize(func.update(0), vector, outer, lane, [lane, *loops], p.lane_count)
            elif stage.kind != "scan":
                _vectorize(func, vector, outer, lane, [lane, *loops], p.lane_count)
                order = [lane, *stage.reduced, *loops]
                _vectorize(func.update(0), vector, outer, lane, order, p.lane_count)
            elif p.vector in p.outer:
                _vectorize(func, vector, outer, lane, [lane, *loops], p.lane_count)
                order = [lane, *stage.reduced, *loops[1:]]
                _vectorize(func.update(0), vector, outer, lane, order, p.lane_count)
        else:
            _vectorize(func, vector, outer, lane, [lane, *loops], p.lane_count)
    ranges = [var for var, name in zip(loops, names, strict=True) if name in p.outer]
    if tasks is not None and ranges:
        _parallelise(stage, ranges[-1], tasks)
    return ranges[0] if ranges else None


def _vectorize(
    stage: hl.Func | hl.Stage, var: hl.Var, outer: hl.Var, lane: hl.Var, order: list, lanes: int
) -> None:
    stage.split(var, outer, lane, lanes, GUARD)
    stage.reorder(*order)
    stage.vectorize(lane)


def _parallelise(stage: Stage, loop: hl.Var, tasks: int) -> None:
    updates = [stage.func.update(n) for n in range(stage.func.num_update_definitions())]
    for part in (stage.func, *updates):
        part.parallel(loop, tasks, GUARD)


def schedule_automatically(
    pipeline: hl.Pipeline, target: hl.Target, name: str, threads: int
) -> None:
    """Lets one of Halide's autoschedulers decide. Estimates must be set."""
    library = Path(hl.install_dir()) / "lib64" / f"libautoschedule_{name.lower()}.so"
    hl.load_plugin(str(library))
    parameters = hl.AutoschedulerParams(name, {"parallelism": str(threads)})
    pipeline.apply_autoscheduler(target, parameters)
