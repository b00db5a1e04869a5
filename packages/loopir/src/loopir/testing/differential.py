"""Random kernels through a code generator, against the evaluator (needs Hypothesis)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from symshapes.testing.report import Report

from loopir.backend import CodeGenerator, SelectsKernels
from loopir.cache.store import ArtifactStore
from loopir.errors import BuildError
from loopir.host.generator_calls import refusal
from loopir.ir.evaluate import evaluate_kernel
from loopir.ir.kernel import Kernel
from loopir.ir.text import format_kernel

from .cases import Case
from .conditioning import unexplained
from .inputs import make_inputs
from .strategies import kernels

QUIET: Any = list(HealthCheck)
TOLERANCES: Any = {"rtol": 1e-4, "atol": 1e-3}
SIZE = 5  # of the symbols in drawn kernels
ATTEMPTS = 8


def random_kernels(
    count: int, number: int, device: str = "cpu", max_extent: int = 40
) -> list[Kernel]:
    """At most ``count`` different kernels drawn from the strategy; ``number`` is the seed."""
    found: dict[str, Kernel] = {}

    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=QUIET,
    )
    @given(kernels(device=device, max_extent=max_extent))
    def collect(kernel: Kernel) -> None:
        found[format_kernel(kernel)] = kernel

    for attempt in range(ATTEMPTS):
        seed(f"{number} {attempt}")(collect)()
        if len(found) >= count:
            break
    return list(found.values())[:count]


def check_kernels(
    drawn: Sequence[Kernel],
    generator: CodeGenerator,
    store: ArtifactStore,
    excused: list[str] | None = None,
) -> list[str]:
    """A description of each kernel whose results differ from the evaluator's; all are built
    together where that works.

    A difference is none where the evaluator's own result is as uncertain
    (``loopir.testing.conditioning``): such kernels are added to ``excused``.
    """
    sources = [generator.generate(kernel) for kernel in drawn]
    try:
        launches: Sequence[Callable[..., None] | None] = generator.build(sources, store)
    except BuildError:
        launches = [None] * len(sources)
    failures = []
    for kernel, source, launch in zip(drawn, sources, launches, strict=True):
        sizes = [SIZE] * len(kernel.sizes)
        case = Case("random", format_kernel(kernel), limits={"*": (-3, 3)})
        tensors = make_inputs(case, kernel, sizes, generator.device)
        inputs, expected = ([tensor.cpu().clone() for tensor in tensors] for _ in range(2))
        evaluate_kernel(kernel, expected, sizes)
        actual: list[torch.Tensor] = []
        try:
            (launch or generator.build([source], store)[0])(*tensors, *sizes)
            actual = [tensor.cpu() for tensor in tensors]
            for result, wanted in zip(actual, expected, strict=True):
                torch.testing.assert_close(result, wanted, **TOLERANCES, equal_nan=True)
        except AssertionError as error:
            left = unexplained(kernel, inputs, sizes, actual, expected, **TOLERANCES)
            if left:
                failures.append(f"{left}\n{case.text}")
            elif excused is not None:
                excused.append(f"{error}\n{case.text}")
        except (RuntimeError, IndexError, BuildError) as error:
            failures.append(f"{type(error).__name__}: {error}\n{case.text}")
    return failures


def check_random_kernels(
    generator: CodeGenerator, store: ArtifactStore, count: int, report: Report, number: int = 0
) -> None:
    """Adds ``count`` random kernels to a report; ``number`` is the seed."""
    with report.timed("random kernels") as area:
        drawn = random_kernels(count, number, generator.device)
        if isinstance(generator, SelectsKernels):
            refused = [kernel for kernel in drawn if not generator.supports(kernel)]
            area.refusals.update(refusal(generator, kernel) for kernel in refused)
            area.cases += len(refused)
            drawn = [kernel for kernel in drawn if kernel not in refused]
        area.cases += len(drawn)
        area.failures += [
            ("random kernel", text) for text in check_kernels(drawn, generator, store)
        ]


def report(programs: int, where: str, wrong: int, unclear: int) -> str:
    """One line of counts."""
    return (
        f"{programs} programs, {where}: {wrong} differ from the evaluator, "
        f"{unclear} as far as the evaluator's own results spread when its roundings are off by an "
        f"ULP"
    )
