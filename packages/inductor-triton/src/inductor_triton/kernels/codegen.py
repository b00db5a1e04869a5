"""Generates readable Triton source from a kernel, and the facts that its launch needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import sympy
from loopir import Kernel, KernelSource, choose, kernel_label, points_of

from inductor_triton.kernels.passes.column_sums import by_program, summed_columns
from inductor_triton.kernels.passes.gelu import fuse_gelu
from inductor_triton.kernels.passes.online_softmax import OnlinePair, evictions
from inductor_triton.kernels.passes.split_reductions import split_reduction
from inductor_triton.kernels.passes.trivial_reductions import simplified
from inductor_triton.spec import ERRORS, INDEX, Config, LaunchSpec, format_config, in_order

from . import ops
from .emitter import Emitter
from .heuristics import walking_grid
from .indexing import merge_loops
from .instructions import emit_instruction
from .kernel_plan import plan_kernel
from .library import DECORATOR, needed_functions
from .reductions import loop_reduction, online_reduction, persistent_reduction
from .tiling import choose_tiling, describe, narrowest


def generate_sequence(kernel: Kernel, config: Config | None = None) -> KernelSource:
    """The Triton source of ``kernel``, or of several kernels if one would leave most of the device
    idle. ``config`` applies to the only or first one.
    """
    walk = _walk_over_rows(kernel, config)
    if walk is not None:
        return walk
    simple = simplified(replace(kernel, bodies=fuse_gelu(kernel.bodies, kernel.dtypes)))
    split = split_reduction(simple)
    if split is None:
        return replace(generate_source(simple, config), kernel=kernel)
    first, *rest = split.parts
    parts = (generate_source(first, config), *map(generate_source, rest))
    return in_order(kernel, parts, split.scratch)


def _walk_over_rows(kernel: Kernel, config: Config | None) -> KernelSource | None:
    """A row kernel with column sums as a grid that walks over the rows, followed by the sum of the
    programs' shares.
    """
    sums = summed_columns(kernel)
    if not sums or kernel.sizes:
        return None
    flat = merge_loops(kernel)
    work = describe(flat)
    config = config or choose_tiling(flat, work).config
    grid = (
        config.grid or walking_grid(config, work.points, narrowest(kernel))
        if config.persistent
        else 0
    )
    label = lambda: f"{kernel_label(kernel)} {format_config(config)}"  # noqa: E731
    is_grid = lambda text: text.isdigit() and (text == "0" or config.persistent)  # noqa: E731
    grid = int(choose("grids over rows", label, str(grid), is_grid))
    if grid == 0:
        return None
    columns = by_program(kernel, sums, grid)
    parts = (
        generate_source(columns.rows, replace(config, grid=grid)),
        generate_source(columns.combine),
    )
    return in_order(kernel, parts, columns.shares)


def generate_source(kernel: Kernel, config: Config | None = None) -> KernelSource:
    """The Triton source of ``kernel``; its metadata is ``(("launch", LaunchSpec),)``."""
    plan = plan_kernel(merge_loops(kernel), config)
    tiling, emitter = plan.tiling, Emitter(plan)
    emitter.numbers = {}
    function = emit_function(emitter)
    text = assemble(kernel.origins, tiling.config, function)
    grid, batch = tiling.config.grid, points_of(tiling.batch)
    blocks = () if grid else tuple((axis.extent, axis.block) for axis in tiling.program_axes)
    spec = describe_launch(emitter, blocks, sympy.Integer(grid or 1) * batch)
    return KernelSource(kernel, text, (("launch", spec),))


def describe_launch(
    emitter: Emitter, blocks: tuple[tuple[sympy.Expr, int], ...], batch: sympy.Expr
) -> LaunchSpec:
    """The facts that a launch of the emitter's function needs."""
    kernel, plan = emitter.kernel, emitter.plan
    return LaunchSpec(
        function=emitter.function,
        signature=tuple(ops.SIGNATURES[buffer.dtype] for buffer in kernel.buffers),
        sizes=tuple(size.name for size in kernel.sizes),
        blocks=blocks,
        batch=batch,
        config=plan.tiling.config,
        index=plan.index_type,
        limits=plan.limits,
        errors=emitter.uses_errors,
        numbers=tuple(offset // each for offset, each in emitter.numbers or ()),
    )


def emit_function(emitter: Emitter) -> str:
    """The text of the kernel function."""
    emitter.emit_axes()
    plan, config = emitter.plan, emitter.tiling.config
    is_kept = config.persistent or config.grid > 0
    for number, part in enumerate(plan.parts):
        emitter.eviction = {} if is_kept else evictions(plan.parts, number)
        inner = isinstance(part, OnlinePair) or part.inner
        emitter.body_dims = frozenset(
            axis.name for axis in emitter.tiling.axes if axis.name != "r" or inner
        )
        outer = dict(emitter.values)
        if isinstance(part, OnlinePair):
            emitter.values = outer | online_reduction(emitter, part)
        elif not part.inner:
            for step in part.instructions:
                emit_instruction(emitter, step)
        else:
            results = (
                persistent_reduction(emitter, part)
                if config.persistent
                else loop_reduction(emitter, part, plan.operations[number])
            )
            emitter.values = outer | results
    emitter.end_walk()
    return function_text(emitter, {axis.block_name: axis.block for axis in emitter.tiling.axes})


def function_text(emitter: Emitter, blocks: Mapping[str, int]) -> str:
    """The emitter's lines as a function; ``blocks`` are its block-size constants."""
    parameters = [emitter.name(buffer.name) for buffer in emitter.kernel.buffers]
    parameters += [emitter.name(size.name) for size in emitter.kernel.sizes]
    parameters += (emitter.numbers or {}).values()
    parameters += [ERRORS] if emitter.uses_errors else []
    parameters += [f"{INDEX}: tl.constexpr"] if emitter.index_type == "dynamic" else []
    header = [DECORATOR, f"def {emitter.function}({', '.join(parameters)}):"]
    header += [f"    {name}: tl.constexpr = {value}" for name, value in blocks.items()]
    return "\n".join(header + emitter.lines) + "\n"


def assemble(origins: Iterable[tuple[str, str]], config: Config, function: str) -> str:
    """The module of a kernel function: imports, the device functions that it calls, and a comment
    with its origin.
    """
    lines = ["import triton", "import triton.language as tl"]
    if "libdevice." in function:
        lines.append("from triton.language.extra.cuda import libdevice")
    parts = ["\n".join(lines) + "\n", *needed_functions(function)]
    comment = [f"# {name}: {' '.join(line.split())}".rstrip(": ") for name, line in origins]
    comment.append(f"# num_warps={config.num_warps}, num_stages={config.num_stages}")
    return "\n\n".join([*parts, "\n".join(comment) + "\n" + function])
