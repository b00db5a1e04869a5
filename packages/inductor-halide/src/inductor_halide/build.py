"""Compiles the text of a kernel to a callable."""

from __future__ import annotations

import math
from collections.abc import Callable

import halide as hl
import torch
from loopir import BuildError, Kernel, KernelSource, example_value

from . import functions
from .launch import launcher
from .pipeline import Pipeline
from .plan import plan_kernel
from .schedule import schedule_automatically, schedule_simply

WORK = 1 << 14  # operations that are worth a thread
GUESS = 64  # for sizes without an example value


def host_target() -> hl.Target:
    """This machine, with floats as IEEE 754 has them: NaN, no reassociation, no contraction."""
    target = hl.get_jit_target_from_environment()
    return target.with_feature(hl.TargetFeature.StrictFloat)


def build_kernel(source: KernelSource, schedule: str) -> Callable[..., None]:
    """Raises BuildError with what Halide says."""
    kernel = source.kernel
    assert isinstance(kernel, Kernel)
    try:
        return _build(kernel, source.text, schedule)
    except (hl.HalideError, RuntimeError, TypeError) as error:
        raise BuildError(f"Halide refuses {kernel.name}", output=f"{error}\n{source.text}") from error


def _build(kernel: Kernel, text: str, schedule: str) -> Callable[..., None]:
    target = host_target()
    vector = None if kernel.vector_axis is None else kernel.vector_axis.name
    p = Pipeline(vector, target.natural_vector_size(hl.Float(32)))
    scope: dict[str, Callable[..., None]] = {"ops": functions}  # type: ignore[dict-item]
    exec(compile(text, f"<{kernel.name}>", "exec"), scope)  # noqa: S102 - the kernel's own text
    scope["kernel"](p)
    for _, func in p.outputs:
        for place, buffer in enumerate(func.output_buffers()):
            for number in range(func.dimensions()):
                if place == 0:  # which the others follow
                    buffer.dim(number).set_min(0)
                buffer.dim(number).set_stride(hl.Expr())
    pipeline = hl.Pipeline([func for _, func in p.outputs])
    if schedule == "simple":
        schedule_simply(p, None, _tasks(kernel))
    else:
        schedule_automatically(p, pipeline, target, schedule, torch.get_num_threads())
    arguments = [hl.Argument(image) for image in p.images.values()]
    arguments += [hl.Argument(size) for size in p.sizes.values()]
    names = [name for group, _ in p.outputs for name in group]
    return launcher(plan_kernel(kernel), pipeline.compile_to_callable(arguments, target), names)


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
