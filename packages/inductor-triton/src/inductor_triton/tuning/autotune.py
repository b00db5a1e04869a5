"""``max-autotune`` on the current device: chooses the configurations of kernels, and between
template and library for each product.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from loopir import (
    ArtifactStore,
    Kernel,
    KernelSource,
    Symbolic,
    Template,
    View,
    current_choices,
    map_leaves,
)

from inductor_triton.kernels.codegen import generate_sequence
from inductor_triton.kernels.tiling import hint
from inductor_triton.products.convolution import as_product
from inductor_triton.products.matmul import generate_matmul
from inductor_triton.spec import Config
from inductor_triton.toolchain import load_optional

from .bench import DeviceBench
from .recorded import recorded_or_measured, recorded_tiles
from .selection import CAREFUL, Tuner


def generate_any(kernel: Kernel | Template, config: Config | None = None) -> KernelSource:
    """Generates the source of a kernel or template."""
    if isinstance(kernel, Template):
        return generate_matmul(kernel, config or recorded_tiles(kernel))
    return generate_sequence(kernel, config)


def tuned_sources(
    sources: Sequence[KernelSource], store: ArtifactStore, lock: str | None
) -> list[KernelSource]:
    """The sources with the configurations that measurement or the lock file chose."""
    kernels = [source.kernel for source in sources]
    tuner = _tuner(store, lock)
    is_plain = current_choices() is None
    configs = tuner.choose(kernels) if is_plain else recorded_or_measured(tuner, kernels)
    return [
        s if config is None else generate_any(s.kernel, config)
        for s, config in zip(sources, configs)
    ]


def slower_than_library(template: Template, store: ArtifactStore, lock: str | None) -> str:
    """Why a library product with separate kernels is better; empty if a single launch was measured
    to be faster.
    """
    bench = DeviceBench(store)
    return _tuner(store, lock, bench).against_library(
        as_product(template), lambda: _library_time(template, bench)
    )


def _library_time(template: Template, bench: DeviceBench) -> float:
    stages = [*template.prologues, ("", template.epilogue)]
    total = sum(bench.time(generate_sequence(stage.kernel), CAREFUL) for _, stage in stages)
    memory = dict(zip((buffer.name for buffer in template.buffers), bench.operands(template)))
    for name, stage in template.prologues:
        numel = hint(template, stage.tensor.numel)
        memory[name] = torch.zeros(numel, dtype=stage.tensor.dtype, device="cuda")

    def value(leaf: object) -> object:
        if isinstance(leaf, View):
            sizes = ([hint(template, e) for e in exprs] for exprs in (leaf.shape, leaf.stride))
            return torch.as_strided(memory[leaf.buffer], *sizes, hint(template, leaf.offset))  # type: ignore[arg-type]
        return hint(template, leaf.expr) if isinstance(leaf, Symbolic) else leaf

    args, kwargs = map_leaves(value, (template.args, dict(template.kwargs)))
    return total + bench.time_call(lambda: template.op(*args, **kwargs), CAREFUL)


def _tuner(store: ArtifactStore, lock: str | None, bench: DeviceBench | None = None) -> Tuner:
    return Tuner(
        store,
        bench or DeviceBench(store),
        generate_any,
        None if lock is None else Path(lock),
        progress_bar(),
    )


def progress_bar() -> Callable[[int, int, str], None]:
    """Shows progress on a terminal, with tqdm if it is installed."""
    if not sys.stderr.isatty():
        return lambda done, total, what: None
    tqdm = load_optional("tqdm")
    bar: Any = None

    def show(done: int, total: int, what: str) -> None:
        nonlocal bar
        if tqdm is None:
            sys.stderr.write(
                f"\rtuning {done}/{total} {what:<30}" + ("\n" if done == total else "")
            )
            return
        bar = bar or tqdm.tqdm(total=total, desc="tuning", leave=False)
        bar.set_postfix_str(what)
        bar.update(done - bar.n)
        if done == total:
            bar.close()

    return show
