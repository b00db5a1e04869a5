"""Schedules: when each stage of a pipeline runs, along which lanes, and on how many threads."""

from __future__ import annotations

from pathlib import Path

import halide as hl

from .pipeline import BuiltStage, Pipeline

GUARD = hl.TailStrategy.GuardWithIf  # the others store places twice, which may be an input's


def schedule_simply(p: Pipeline, tasks: int | None) -> None:
    """Vectorises the loop that the kernel names, computes what a row of the only output needs row
    by row, and runs the outermost loop on all threads, ``tasks`` points at a time (None: on one).
    """
    loops = [_order_loops(p, built) for built in p.stages]
    for built, ranges in zip(p.stages, loops, strict=True):
        last = p.stages[-1]
        by_row = len(p.outputs) == 1 and last.stage.kind == "store" and bool(loops[-1])
        if built not in p.outputs:
            for func in filter(None, (built.func, built.partial)):
                if by_row:
                    func.compute_at(last.func, loops[-1][0])
                elif func is built.partial and ranges:
                    func.compute_at(built.func, ranges[0])
                else:
                    func.compute_root()
        if tasks is not None and ranges and (built is last or not by_row):
            for part in _parts(built):
                part.parallel(ranges[-1], tasks, GUARD)


def _parts(built: BuiltStage) -> list[hl.Func | hl.Stage]:
    updates = range(built.func.num_update_definitions())
    return [built.func, *(built.func.update(number) for number in updates)]


def _order_loops(p: Pipeline, built: BuiltStage) -> list[hl.Var]:
    """Orders and vectorises the loops of a stage; returns those over ``ranges``, innermost
    first.
    """
    if built.partial is not None:
        lane = hl.Var("lane")
        built.partial.vectorize(lane)
        built.partial.update(0).reorder(lane, *built.reduced).vectorize(lane)
    loops, scans = built.func.args(), built.stage.kind == "scan"
    names = [var.name() for var in loops]
    if p.vector in names and not (scans and p.vector in p.inner):
        number = names.index(p.vector)
        lane, block = hl.Var(f"{p.vector}_lane"), hl.Var(f"{p.vector}_block")
        loops[number] = block
        for part in _parts(built):
            inner = [] if part is built.func else built.reduced
            part.split(hl.Var(p.vector), block, lane, p.lanes, GUARD)
            part.reorder(lane, *inner, *(loops[1:] if inner and scans else loops))
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
