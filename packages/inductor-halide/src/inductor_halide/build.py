"""Compiles the text of a kernel to a callable."""

from __future__ import annotations

import math
from collections.abc import Callable

import halide as hl
import sympy
import torch
from loopir import BuildError, Kernel, KernelSource, example_value

from . import functions
from .launch import TooFewPoints, launcher
from .pipeline import Pipeline
from .plan import Plan
from .schedule import schedule_automatically, schedule_simply

WORK = 1 << 14  # operations that are worth a thread
FEW_STEPS = 24
GUESS = 64  # for sizes without an example value


def build_kernel(source: KernelSource, schedule: str) -> Callable[..., None]:
    """Raises BuildError with what Halide says."""
    kernel = source.kernel
    assert isinstance(kernel, Kernel)
    try:
        launch = _build(kernel, source.text, schedule)
        return launch if schedule == "simple" else _or_simply(launch, kernel, source.text)
    except (hl.HalideError, RuntimeError, TypeError) as error:
        raise BuildError(
            f"Halide refuses {kernel.name}", output=f"{error}\n{source.text}"
        ) from error


def _build(kernel: Kernel, text: str, schedule: str) -> Callable[..., None]:
    # floats as IEEE 754 has them: NaN, no reassociation, no contraction
    target = hl.get_jit_target_from_environment().with_feature(hl.TargetFeature.StrictFloat)
    vector = None if kernel.vector_axis is None else kernel.vector_axis.name
    p = Pipeline(vector, _lanes(kernel, target))
    scope: dict[str, Callable[..., None]] = {"ops": functions}  # type: ignore[dict-item]
    exec(compile(text, f"<{kernel.name}>", "exec"), scope)
    scope["kernel"](p)
    plan = Plan(kernel)
    for names, func in p.outputs:
        _describe(p, plan, names, func)
    pipeline = hl.Pipeline([func for _, func in p.outputs])
    names = [name for group, _ in p.outputs for name in group]
    if schedule == "simple":
        schedule_simply(p, _tasks(kernel))
    else:
        plan.copied |= {(a, b) for a in plan.inputs for b in names}  # tails are stored twice
        _estimate(p, kernel)
        schedule_automatically(pipeline, target, schedule, torch.get_num_threads())
    arguments = [hl.Argument(image) for image in p.images.values()]
    arguments += [hl.Argument(size) for size in p.sizes.values()]
    return launcher(plan, pipeline.compile_to_callable(arguments, target), names)


def _or_simply(launch: Callable[..., None], kernel: Kernel, text: str) -> Callable[..., None]:
    """Autoschedulers round loops up to whole vectors: for sizes that have fewer points, Halide
    refuses before it writes, and the simple schedule runs.
    """
    small: set[tuple[object, ...]] = set()
    simple: list[Callable[..., None]] = []
    count = len(kernel.buffers)

    def run(*args: torch.Tensor | int) -> None:
        sizes = args[count:]
        if sizes not in small:
            try:
                return launch(*args)
            except TooFewPoints:
                small.add(sizes)
        if not simple:
            simple.append(_build(kernel, text, "simple"))
        return simple[0](*args)

    return run


def _describe(p: Pipeline, plan: Plan, names: list[str], func: hl.Func) -> None:
    """Tells Halide what the launcher's buffers look like: from 0 on, the loops' extents, and which
    loop takes neighbours.
    """
    extents = {**p.outer, **p.inner}
    for place, (name, buffer) in enumerate(zip(names, func.output_buffers(), strict=True)):
        view = plan.views.get(name)
        for number, loop in enumerate(func.args()):
            dim = buffer.dim(number)
            if place == 0:  # which the others follow
                dim.set_min(0)
                if loop.name() in extents:
                    dim.set_extent(extents[loop.name()])
            unit = view is None or view.unit == number
            dim.set_stride(1 if unit else hl.Expr())


def _estimate(p: Pipeline, kernel: Kernel) -> None:
    """Tells an autoscheduler the sizes of the example call."""
    hints = dict(kernel.hints)

    def value(expr: sympy.Expr) -> int:
        return max(1, example_value(expr, hints, GUESS))

    loops = {item.symbol.name: value(item.extent) for item in (*kernel.ranges, *kernel.reduction)}
    numels = {buffer.name: value(buffer.numel) for buffer in kernel.buffers}
    for symbol in kernel.sizes:
        p.sizes[symbol.name].set_estimate(value(symbol))
    for name, image in p.images.items():
        image.dim(0).set_estimate(0, numels[name])
    for (name, *_), func in p.outputs:
        for var in func.args():
            func.set_estimate(var, 0, loops.get(var.name(), numels[name]))


def _lanes(kernel: Kernel, target: hl.Target) -> int:
    """Float32s that are computed together: several vectors where the registers hold them, since
    independent operations interleave, but no more than the loop has points.
    """
    natural = target.natural_vector_size(hl.Float(32))
    lanes = natural * (4 if len(kernel.steps) <= FEW_STEPS else 2)
    for item in (*kernel.ranges, *kernel.reduction):
        if item.symbol == kernel.vector_axis:
            extent = example_value(item.extent, dict(kernel.hints), GUESS)
            while lanes > max(extent, natural):
                lanes //= 2
    return lanes


def _tasks(kernel: Kernel) -> int | None:
    """Points of the outermost loop per task; None where one thread is enough."""
    threads = torch.get_num_threads()
    if threads == 1 or not kernel.ranges:
        return None
    hints = dict(kernel.hints)
    extents = [example_value(item.extent, hints, GUESS) for item in kernel.ranges]
    inner = math.prod(example_value(item.extent, hints, GUESS) for item in kernel.reduction)
    work = math.prod(extents) * inner * len(kernel.steps)
    if work < 2 * WORK or extents[0] < 2:
        return None
    per_point = max(1, work // extents[0])
    return max(-(-WORK // per_point), -(-extents[0] // (4 * threads)))
