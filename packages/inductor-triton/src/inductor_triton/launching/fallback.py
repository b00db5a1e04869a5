"""Recompiles kernels that do not compile (too many registers, too much shared memory, a bug in
Triton) with smaller blocks, which often works.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from loopir import BuildError, KernelSource, Template

from inductor_triton.kernels.codegen import generate_source
from inductor_triton.products.matmul import generate_matmul
from inductor_triton.spec import Config, launch_spec, sequence_of

ATTEMPTS = 6


class BlockSizeWarning(UserWarning):
    """A kernel does not compile with its chosen block sizes and runs with smaller, slower ones."""


class KernelError(RuntimeError):
    """A kernel compiles with no block size: its graph has to run eagerly."""


def compilable(
    parts: Sequence[KernelSource], compile_part: Callable[[KernelSource], object]
) -> list[KernelSource]:
    """``parts``, with smaller blocks for those that do not compile; one warning names them. Raises
    KernelError.
    """
    result, changed = [], []
    for part in parts:
        try:
            compile_part(part)
        except BuildError as error:
            changed.append(part.kernel.name)
            part = _smaller_part(part, compile_part, error)
        result.append(part)
    if changed:
        message = (
            f"{', '.join(changed)} did not compile with the blocks chosen; smaller ones are used"
        )
        warnings.warn(message, BlockSizeWarning, stacklevel=2)
    return result


def _smaller_part(
    part: KernelSource, compile_part: Callable[[KernelSource], object], reason: BuildError
) -> KernelSource:
    for config in smaller(launch_spec(part).config):
        try:
            made = _regenerated(part, config)
            compile_part(made)
        except BuildError as error:
            reason = error
            continue
        return made
    raise KernelError(f"{part.kernel.name} compiles with no block size: {reason}") from reason


def _regenerated(part: KernelSource, config: Config) -> KernelSource:
    """The part regenerated with another configuration; its arguments stay the same."""
    if not isinstance(part.kernel, Template):
        return replace(generate_source(part.kernel, config), kernel=part.kernel)
    memory = part.kernel.buffers[:-1] if launch_spec(part).workspace else part.kernel.buffers
    return sequence_of(generate_matmul(replace(part.kernel, buffers=memory), config)).parts[0]


def smaller(config: Config) -> Iterator[Config]:
    """Yields configurations that need ever fewer registers and less shared memory."""
    for _ in range(ATTEMPTS):
        if config.grid and not config.persistent and config.x == config.y == 1:
            config = replace(config, grid=0)
        elif config.num_stages > 1:
            config = replace(config, num_stages=config.num_stages - 1)
        elif config.y > 16 and config.y >= config.x:
            config = replace(config, y=config.y // 2)
        elif config.x > 16 or (config.x > 1 and config.y == 1):
            config = replace(config, x=config.x // 2)
        elif config.r > 64 and not config.grid:
            config = replace(config, r=config.r // 4, persistent=False)
        elif config.num_warps < 16:
            config = replace(config, num_warps=config.num_warps * 2)
        else:
            return
        yield config
