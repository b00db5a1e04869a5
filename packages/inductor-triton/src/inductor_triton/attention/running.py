"""Runs the kernels of attention on tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from loopir import ArtifactStore, BuildError, KernelSource

from inductor_triton.launching.grid import program_counter
from inductor_triton.launching.launch import build_launchers
from inductor_triton.spec import Config, launch_spec
from inductor_triton.toolchain import load_interpreter

from .configurations import smaller
from .function_rules import EXACT
from .problem import Problem, refusal

LARGEST_TILE, ROW, ALIGNMENT = 128, 16, 16
HOPPER = (9, 0)
DESCRIPTORS = 2 * 128
"""Bytes of each program's tensor descriptors."""
Builder = Callable[[KernelSource], Callable[..., None]]
Counter = Callable[[Sequence[int]], int]


@dataclass(frozen=True, slots=True)
class Call:
    """The operands of one call, laid out as the kernels read them.

    ``blocks`` are the tensors of the block mask, by query block and then by key block.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    captured: tuple[torch.Tensor, ...]
    blocks: tuple[torch.Tensor, ...]
    problem: Problem

    @property
    def lists(self) -> int:
        """The number of block lists for each direction."""
        return len(self.blocks) // 2

    def sizes(self, tensors: Sequence[torch.Tensor], lists: Sequence[torch.Tensor]) -> list[int]:
        """The integer arguments: lengths, strides of ``tensors``, the shape of the lists, sizes of
        captured tensors.
        """
        (batch, heads, length, _), groups = (
            self.query.shape,
            self.query.shape[1] // self.key.shape[1],
        )
        found = [batch, heads, groups, length, self.key.shape[2]]
        for tensor in tensors:
            found += tensor.stride()[:3]
        if lists:
            batches, mask_heads, rows = lists[0].shape
            by_head = rows if mask_heads > 1 else 0
            by_batch = mask_heads * rows if batches > 1 else 0
            found += [by_batch, by_head, lists[1].shape[-1]]
        for (_, sizes), tensor in zip(self.problem.captured, self.captured):
            found += [n for known, n in zip(sizes, tensor.shape) if known is None]
        return found


def prepare(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    captured: Sequence[torch.Tensor], blocks: Sequence[torch.Tensor], query_block: int,
    key_block: int, functions: str, scale: float,
) -> Call | str:  # fmt: skip
    """The call; or why the kernels don't take it."""
    query, key, value = (laid_out(x) for x in (query, key, value))
    problem = Problem(
        functions, query.dtype, query.shape[-1], value.shape[-1], float(scale),
        (query_block, key_block) if blocks else None, len(blocks) == 8,
        tuple((x.dtype, tuple(None if n != 1 else 1 for n in x.shape)) for x in captured),
        query.shape[2] % LARGEST_TILE == 0, key.shape[2] % LARGEST_TILE == 0,
        query.shape[1] != key.shape[1],
        not torch.backends.cuda.matmul.allow_tf32,
        not query.is_cuda or torch.cuda.get_device_capability(query.device) >= HOPPER,
        max(*query.shape[:3], key.shape[2], *(x.numel() for x in captured)) < EXACT,
    )  # fmt: skip
    is_empty = not all(x.numel() for x in (query, key, value))
    reason = "nothing to compute" if is_empty else refusal(problem)
    reason = reason or _mask_refusal(problem, query, key, blocks)
    if reason:
        return reason
    dense = tuple(x.contiguous() for x in blocks)
    return Call(query, key, value, tuple(x.contiguous() for x in captured), dense, problem)


def _mask_refusal(
    problem: Problem, query: torch.Tensor, key: torch.Tensor, blocks: Sequence[torch.Tensor]
) -> str:
    if problem.blocks is None:
        return ""
    batch, heads, length, _ = query.shape
    counts = blocks[0], blocks[len(blocks) // 2]
    covered = [x.shape[-1] * size for x, size in zip(counts, problem.blocks)]
    if covered[0] < length or covered[1] < key.shape[2]:
        return "a block mask of shorter lengths"
    fits = all(x.shape[0] in (1, batch) and x.shape[1] in (1, heads) for x in blocks)
    alike = len({tuple(x.shape[:2]) for x in blocks}) <= 1
    is_int = all(x.dtype is torch.int32 for x in blocks)
    return "" if fits and alike and is_int else "a block mask of another batch, heads or dtype"


def fits(tensor: torch.Tensor) -> bool:
    """Whether kernels can access a tensor: rows of a multiple of ROW elements, which are
    neighbours, at multiples of ALIGNMENT bytes.
    """
    steps = [step * tensor.element_size() for step in tensor.stride()[:-1]]
    return (
        tensor.stride(-1) == 1
        and tensor.shape[-1] % ROW == 0
        and not any(number % ALIGNMENT for number in (tensor.data_ptr(), *steps))
    )


def laid_out(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy that fits; zeros follow the elements of a row."""
    if fits(tensor):
        return tensor
    return F.pad(tensor, (0, -tensor.shape[-1] % ROW)).clone(memory_format=torch.contiguous_format)


class Result:
    """Memory for a result: ``target``, or if kernels can't access that, a copy."""

    def __init__(self, target: torch.Tensor) -> None:
        self.target = target
        self.memory = target if fits(target) else laid_out(target)

    def finish(self) -> torch.Tensor:
        """The target, once ``memory`` is written."""
        if self.memory is not self.target:
            self.target.copy_(self.memory[..., : self.target.shape[-1]])
        return self.target


def build_on_device(source: KernelSource) -> Callable[..., None]:
    """A launcher of a kernel on the current CUDA device."""
    (launcher,) = build_launchers([source], ArtifactStore(or_temporary=True))
    return launcher


def build_in_interpreter(source: KernelSource) -> Callable[..., None]:
    """A kernel in Triton's interpreter, on CPU tensors."""
    load_interpreter()
    from inductor_triton.launching.interpret import interpreted  # noqa: PLC0415 - needs numpy, which is optional

    return interpreted(source)


class Kernels:
    """The kernels built so far, by what was asked for."""

    def __init__(self, build: Builder) -> None:
        self._build = build
        self._built: dict[Any, tuple[Callable[..., None], Counter | None]] = {}

    def launch(
        self, key: Any, generate: Callable[[Config], KernelSource], config: Config,
        tensors: Sequence[torch.Tensor], sizes: Sequence[int],
    ) -> None:  # fmt: skip
        """Runs the kernel of ``key``; its first call generates it, with smaller tiles where those
        of ``config`` don't fit the device.
        """
        known = (key, config, tensors[0].device.index)
        if known not in self._built:
            self._built[known] = self._first(generate, config, sizes)
        built, programs = self._built[known]
        if programs is not None:
            size = DESCRIPTORS * programs(sizes)
            tensors = [*tensors, torch.empty(size, dtype=torch.uint8, device=tensors[0].device)]
        built(*tensors, *sizes)

    def _first(
        self, generate: Callable[[Config], KernelSource], config: Config, sizes: Sequence[int]
    ) -> tuple[Callable[..., None], Counter | None]:
        source = with_hints(generate(config), sizes)
        spec = launch_spec(source)
        try:
            return self._build(source), program_counter(spec) if spec.workspace else None
        except BuildError:
            less = smaller(config)
            if less is None:
                raise
            return self._first(generate, less, sizes)


def with_hints(source: KernelSource, sizes: Sequence[int]) -> KernelSource:
    """The source with the sizes of a call: the first variant compiled is the one it needs."""
    names: Mapping[Any, int] = dict(zip(source.kernel.sizes, sizes, strict=True))
    kernel = replace(source.kernel, hints=tuple(names.items()))
    return replace(source, kernel=kernel)
