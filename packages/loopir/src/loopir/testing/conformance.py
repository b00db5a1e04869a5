"""A conformance kit for code generators: kernels that cover the vocabulary, run against the
evaluator.

``check_code_generator(MyGenerator())`` raises an AssertionError that names every case that fails
and shows its kernel.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from loopir.backend import CodeGenerator
from loopir.cache.store import ArtifactStore
from loopir.ir.evaluate import evaluate_expr, evaluate_kernel
from loopir.ir.kernel import Kernel
from loopir.ir.parse import parse_kernel

from .cases import CASES, Case

__all__ = ["CASES", "Case", "check_code_generator", "make_inputs", "run_case"]


@dataclass(frozen=True, slots=True)
class Failure:
    """A case that went wrong, for these sizes."""

    case: Case
    sizes: tuple[int, ...]
    message: str

    def __str__(self) -> str:
        return f"{self.case.name} with sizes {self.sizes}:\n{self.message}\n{self.case.text}"


def check_code_generator(
    generator: CodeGenerator,
    store: ArtifactStore | None = None,
    *,
    cases: Sequence[Case] = CASES,
    device: str | None = None,
) -> int:
    """Builds and runs every case with ``generator`` and compares with the evaluator; returns the
    number of launches.

    Tensors live on ``device`` (default: the generator's). Raises AssertionError with all failures.
    """
    device = device or generator.device
    kernels = [_on_device(parse_kernel(case.text), generator.device) for case in cases]
    with tempfile.TemporaryDirectory() as scratch:
        store = store or ArtifactStore(f"{scratch}/store")
        launchers = generator.build([generator.generate(kernel) for kernel in kernels], store)
        assert len(launchers) == len(kernels), (
            f"build returned {len(launchers)} callables for {len(kernels)} sources"
        )
        failures: list[Failure] = []
        count = 0
        for case, kernel, launcher in zip(cases, kernels, launchers, strict=True):
            for sizes in case.sizes:
                count += 1
                message = run_case(case, kernel, launcher, sizes, device)
                if message:
                    failures.append(Failure(case, sizes, message))
    if failures:
        shown = "\n\n".join(map(str, failures[:20]))
        names = ", ".join(dict.fromkeys(failure.case.name for failure in failures))
        raise AssertionError(
            f"{len(failures)} of {count} launches differ from the evaluator ({names})\n\n{shown}"
        )
    return count


def _on_device(kernel: Kernel, device: str) -> Kernel:
    return Kernel(
        kernel.name, device, kernel.buffers, kernel.sizes, kernel.ranges, kernel.reduction,
        kernel.bodies,
        kernel.vector_axis, kernel.hints, kernel.origins,
    )  # fmt: skip


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


def run_case(
    case: Case, kernel: Kernel, launcher: Callable[..., None], sizes: Sequence[int], device: str
) -> str | None:
    """What is wrong with ``launcher`` for these sizes, or None."""
    tensors = make_inputs(case, kernel, sizes, device)
    expected = [tensor.cpu().clone() for tensor in tensors]
    wanted: type[Exception] | None = None
    try:
        evaluate_kernel(kernel, expected, sizes)
    except IndexError:
        wanted = IndexError
    try:
        launcher(*tensors, *sizes)
        if device == "cuda":
            torch.cuda.synchronize()
    except Exception as error:
        if wanted is not None and isinstance(error, wanted):
            return None
        return f"raised {type(error).__name__}: {error}"
    if wanted is not None:
        return "an index out of range raised nothing (C4.7)"
    for buffer, result, reference in zip(kernel.buffers, tensors, expected, strict=True):
        try:
            torch.testing.assert_close(
                result.cpu(),
                reference,
                rtol=case.tolerance_for(buffer.dtype),
                atol=case.atol,
                equal_nan=True,
            )
        except AssertionError as error:
            return f"{buffer.name}: {error}"
    return None
