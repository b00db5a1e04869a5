"""Times built kernels on the current CUDA device, for tuning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from loopir import ArtifactStore, Kernel, KernelSource, Template, kernels_of

from inductor_triton.kernels.indexing import integer
from inductor_triton.kernels.tiling import hint
from inductor_triton.launching.compile import example_variant, load_or_compile
from inductor_triton.launching.launch import build_launchers, capability_of
from inductor_triton.products.convolution import as_product
from inductor_triton.products.product import product_of
from inductor_triton.spec import sequence_of

from .selection import median

CACHE_BYTES = 256 << 20
AHEAD_CYCLES = 1_000_000


class DeviceBench:
    """Times launches with random operands, flushing the cache before each."""

    def __init__(self, store: ArtifactStore) -> None:
        self.name = torch.cuda.get_device_name()
        self._store = store
        self._capability = capability_of(torch.cuda.current_device())
        self._operands: tuple[object, list[Any]] | None = None
        self._flush: torch.Tensor | None = None

    def compile(self, source: KernelSource) -> None:
        """Compiles the usual variant of each part."""
        for part in sequence_of(source).parts:
            load_or_compile(part, example_variant(part), self._capability, self._store)

    def time(self, source: KernelSource, repeats: int) -> float:
        """Median microseconds of a launch. Raises torch.OutOfMemoryError, BuildError."""
        kernel = source.kernel
        operands: list[Any] = self.operands(kernel)
        given = {buffer.name: tensor for buffer, tensor in zip(kernel.buffers, operands)}
        sequence = sequence_of(source)
        given |= {
            b.name: torch.empty(hint(kernel, b.numel), dtype=b.dtype, device="cuda")
            for b in sequence.scratch
        }  # type: ignore[arg-type]
        sizes = [hint(kernel, size) for size in kernel.sizes]
        calls = [
            (launch, [*(given[buffer.name] for buffer in part.kernel.buffers), *sizes])
            for launch, part in zip(build_launchers(sequence.parts, self._store), sequence.parts)
        ]

        def run() -> None:
            for launch, arguments in calls:
                launch(*arguments)

        return self.time_call(run, repeats)

    def time_call(self, call: Callable[[], object], repeats: int) -> float:
        """Median microseconds of the work that ``call`` queues."""
        if self._flush is None:
            self._flush = torch.empty(CACHE_BYTES, dtype=torch.int8, device="cuda")
        call()
        events = []
        torch.cuda._sleep(AHEAD_CYCLES)
        for _ in range(repeats):
            self._flush.zero_()
            pair = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            pair[0].record()
            call()
            pair[1].record()
            events.append(pair)
        torch.cuda.synchronize()
        return median([start.elapsed_time(end) * 1e3 for start, end in events])

    def operands(self, kernel: Kernel | Template) -> list[Any]:
        """Random tensors for the buffers, cached until another kernel's are requested. Raises
        torch.OutOfMemoryError.
        """
        if self._operands is None or self._operands[0] is not kernel:
            self._operands = None
            largest, tensors = _smallest_indirect(kernel), _ends_of_groups(kernel)
            for buffer in kernel.buffers:
                if buffer.name not in tensors:
                    tensors[buffer.name] = _random(
                        hint(kernel, buffer.numel), buffer.dtype, largest
                    )
            self._operands = kernel, [tensors[buffer.name] for buffer in kernel.buffers]
        return self._operands[1]


def _ends_of_groups(kernel: Kernel | Template) -> dict[str, torch.Tensor]:
    """The ends of groups that divide a dim of a product into equal parts."""
    found = product_of(as_product(kernel)) if isinstance(kernel, Template) else None
    if found is None or found.ends is None:
        return {}
    buffer = next(buffer for buffer in kernel.buffers if buffer.name == found.ends.buffer)
    extent, groups = hint(kernel, getattr(found, found.ragged)), int(found.batch)
    ends = torch.full((hint(kernel, buffer.numel),), extent, dtype=buffer.dtype)  # type: ignore[arg-type]
    whole = torch.arange(1, groups + 1) * extent // groups // 8 * 8
    ends.as_strided(
        (groups,), (hint(kernel, found.ends.stride[0]),), hint(kernel, found.ends.offset)
    ).copy_(whole)
    return {buffer.name: ends.cuda()}


def _smallest_indirect(kernel: Kernel | Template) -> int:
    """A bound below which integers are in range for every indirect access."""
    steps = [step for item in kernels_of(kernel) for step in item.steps]
    sizes: list[Any] = [integer(step.args[1]) for step in steps if step.op == "indirect"]  # type: ignore[arg-type]
    return min((size for size in sizes if size), default=2)


def _random(numel: int, dtype: torch.dtype, largest: int) -> torch.Tensor:
    if dtype.is_floating_point:
        return torch.randn(
            numel, device="cuda", dtype=torch.float32 if dtype.itemsize < 2 else dtype
        ).to(dtype)
    return torch.randint(
        min(largest, 127) if dtype.itemsize == 1 else largest, (numel,), device="cuda"
    ).to(dtype)
