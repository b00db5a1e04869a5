"""Compiles a kernel to a callable."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from itertools import product

import halide as hl
import torch
from loopir import BuildError, Kernel, KernelSource, parse_kernel, points_of

from .launch import TooFewPoints, launcher
from .pipeline import Pipeline
from .plan import Plan
from .schedule import schedule_automatically, schedule_simply

WORK = 1 << 14  # operations that are worth a thread
FEW_STEPS = 24


def build_kernel(source: KernelSource, schedule: str) -> Callable[..., None]:
    """Raises BuildError with what Halide says."""
    kernel = parse_kernel(source.text)
    try:
        return _build(kernel, schedule)
    except (hl.HalideError, RuntimeError, TypeError) as error:
        message = f"{error}\n{source.text}"
        raise BuildError(f"Halide refuses {kernel.name}", output=message) from error


def _build(kernel: Kernel, schedule: str) -> Callable[..., None]:
    # floats as IEEE 754 has them: NaN, no reassociation, no contraction
    target = hl.get_jit_target_from_environment().with_feature(hl.TargetFeature.StrictFloat)
    plan, simple = Plan(kernel), schedule == "simple"
    p = Pipeline(plan, _lanes(plan, target))
    pipeline = hl.Pipeline([built.func for built in p.outputs])
    names = [name for built in p.outputs for name in built.stage.results]
    if simple:
        schedule_simply(p, _tasks(plan))
    else:
        plan.copied |= set(product(plan.inputs, names))  # tails are stored twice
        _estimate(p, plan)
        schedule_automatically(pipeline, target, schedule, torch.get_num_threads())
    arguments = [hl.Argument(item) for item in (*p.images.values(), *p.sizes.values())]
    launch = launcher(plan, pipeline.compile_to_callable(arguments, target), names)
    return launch if simple else _or_simply(launch, kernel)


def _or_simply(launch: Callable[..., None], kernel: Kernel) -> Callable[..., None]:
    """Autoschedulers round loops up to whole vectors: for sizes that have fewer points, Halide
    refuses before it writes, and the simple schedule runs.
    """
    simple = cache(partial(_build, kernel, "simple"))

    def run(*args: torch.Tensor | int) -> None:
        try:
            launch(*args)
        except TooFewPoints:
            simple()(*args)

    return run


def _estimate(p: Pipeline, plan: Plan) -> None:
    """Tells an autoscheduler the sizes of the example call."""
    kernel = plan.kernel
    loops = {item.symbol.name: item.extent for item in (*kernel.ranges, *kernel.reduction)}
    numels = {buffer.name: buffer.numel for buffer in kernel.buffers}
    for symbol in kernel.sizes:
        p.sizes[symbol.name].set_estimate(plan.example(symbol))
    for name, image in p.images.items():
        image.dim(0).set_estimate(0, plan.example(numels[name]))
    for built in p.outputs:
        for var in built.func.args():
            extent = loops.get(var.name(), numels[built.stage.results[0]])
            built.func.set_estimate(var, 0, plan.example(extent))


def _lanes(plan: Plan, target: hl.Target) -> int:
    """Float32s that are computed together: several vectors where the registers hold them, since
    independent operations interleave, but no more than the loop has points.
    """
    kernel, natural = plan.kernel, target.natural_vector_size(hl.Float(32))
    lanes = natural * (4 if len(kernel.steps) <= FEW_STEPS else 2)
    for item in (*kernel.ranges, *kernel.reduction):
        if item.symbol == kernel.vector_axis:
            while lanes > max(plan.example(item.extent), natural):
                lanes //= 2
    return lanes


def _tasks(plan: Plan) -> int | None:
    """Points of the outermost loop per task; None where one thread is enough."""
    kernel, threads = plan.kernel, torch.get_num_threads()
    points = plan.example(points_of(kernel.ranges[:1]))
    work = plan.example(points_of(kernel.ranges, kernel.reduction)) * len(kernel.steps)
    if threads == 1 or points < 2 or work < 2 * WORK:
        return None
    return max(-(-WORK * points // work), -(-points // (4 * threads)))
