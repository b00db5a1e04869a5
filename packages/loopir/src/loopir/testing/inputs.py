"""Random tensors for the buffers of a case's kernel."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from loopir.ir.evaluate import evaluate_expr
from loopir.ir.kernel import Kernel

from .cases import Case


def make_inputs(
    case: Case, kernel: Kernel, sizes: Sequence[int], device: str, seed: int = 0
) -> list[torch.Tensor]:
    """Tensors for the kernel's buffers, one-dimensional; outputs are filled with a value that no
    kernel writes.
    """
    generator = torch.Generator().manual_seed(seed)
    values: dict[str, torch.Tensor | int] = {
        s.name: v for s, v in zip(kernel.sizes, sizes, strict=True)
    }  # type: ignore[attr-defined]
    tensors = []
    for buffer in kernel.buffers:
        numel = max(0, int(evaluate_expr(buffer.numel, values)))
        if buffer.role == "out":
            filler = True if buffer.dtype is torch.bool else 77
            tensors.append(torch.full((numel,), filler, dtype=buffer.dtype, device=device))
            continue
        low, high = case.limits.get(buffer.name, case.limits.get("*", (-3, 3)))
        tensors.append(_random(buffer.dtype, numel, low, high, generator, case.specials).to(device))
    return tensors


def _random(
    dtype: torch.dtype,
    numel: int,
    low: float,
    high: float,
    generator: torch.Generator,
    specials: tuple[float, ...],
) -> torch.Tensor:
    if dtype is torch.bool:
        return torch.randint(0, 2, (numel,), generator=generator).to(dtype)
    if not dtype.is_floating_point:
        return torch.randint(int(low), int(high) + 1, (numel,), generator=generator).to(dtype)
    result = torch.rand((numel,), generator=generator, dtype=torch.float64) * (high - low) + low
    if specials and numel:
        places = torch.randperm(numel, generator=generator)[: len(specials)]
        result[places] = torch.tensor(specials, dtype=torch.float64)[: len(places)]
    return result.to(dtype)
