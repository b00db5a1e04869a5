"""A conformance kit for code generators: kernels that cover the vocabulary, run against the
evaluator.

``check_code_generator(MyGenerator())`` raises an AssertionError that names every case that fails
and shows its kernel; ``python -m loopir.testing --generator module:MyGenerator`` prints a table.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable, Sequence
from functools import partial

import torch
from symshapes.testing.report import Refused, Report
from symshapes.testing.stored import assert_stored

from loopir.backend import CodeGenerator, KernelSource, Launcher, SelectsKernels
from loopir.cache.store import ArtifactStore
from loopir.errors import UnsupportedKernelError
from loopir.host.generator_calls import built, generated
from loopir.ir.evaluate import evaluate_kernel
from loopir.ir.kernel import Kernel
from loopir.ir.parse import parse_kernel

from .cases import CASES, Case
from .corpus import check_programs, run_kernel, stored_kernels
from .inputs import make_inputs

TOLERANCES = {
    torch.float64: (1e-9, 1e-9), torch.float32: (1e-4, 1e-4), torch.float16: (4e-3, 4e-3),
    torch.bfloat16: (3e-2, 3e-2),
}  # fmt: skip
"""For stored kernels: relative and absolute."""
__all__ = ["CASES", "Case", "check_code_generator", "make_inputs", "run_case"]


def check_code_generator(
    generator: CodeGenerator,
    store: ArtifactStore | None = None,
    *,
    cases: Sequence[Case] = CASES,
    device: str | None = None,
    programs: int = 0,
    strict: bool = True,
) -> Report:
    """Kernels through a code generator, against the evaluator.

    Args:
        generator: one that selects kernels (``SelectsKernels``) may refuse some.
        store: where to build; a temporary directory by default.
        cases: the fixed cases; with those of this kit, the corpus is run, too.
        device: where tensors live; the generator's device by default.
        programs: random kernels to run besides the fixed cases (needs Hypothesis).
        strict: raise AssertionError with the failures, if there are any.
    """
    device = device or generator.device
    kind = type(generator)
    report = Report("code generator", f"{kind.__module__}.{kind.__qualname__}", "launches")
    kernels = [_on_device(parse_kernel(case.text), generator.device) for case in cases]
    with tempfile.TemporaryDirectory() as scratch:
        store = store or ArtifactStore(f"{scratch}/store")
        with report.timed("building"):
            made = launchers(generator, kernels, store)
        for case, kernel, launch in zip(cases, kernels, made, strict=True):
            for sizes in case.sizes:
                with report.case(case.area, f"{case.name} with sizes {sizes}"):
                    message = run_case(case, kernel, launch(), sizes, device)
                    assert not message, f"{message}\n{case.text}"
        if cases is CASES:
            check_stored_kernels(report, generator, store, device)
            if generator.device == "cpu":
                check_programs(report, generator, store)
        if programs:
            differential = importlib.import_module("loopir.testing.differential")
            differential.check_random_kernels(generator, store, programs, report)
    if strict:
        report.raise_if_wrong()
    return report


def check_stored_kernels(
    report: Report, generator: CodeGenerator, store: ArtifactStore, device: str
) -> None:
    """Adds to a report the kernels of the corpus, against their stored results."""
    stored = stored_kernels()
    kernels = [_on_device(parse_kernel(case.text), generator.device) for case in stored]
    with report.timed("building"):
        made = launchers(generator, kernels, store)
    for case, kernel, launch in zip(stored, kernels, made, strict=True):
        with report.case("stored kernels", case.name):
            assert_stored(run_kernel(kernel, case.given, launch(), device), case.gives, TOLERANCES)


def launchers(
    generator: CodeGenerator, kernels: Sequence[Kernel], store: ArtifactStore
) -> list[Callable[[], Launcher]]:
    """For each kernel a function that returns its launcher, or raises what went wrong with it. All
    are built together where that works, else one by one.
    """
    results: list[Callable[[], Launcher]] = []
    sources = [_source(generator, kernel) for kernel in kernels]
    good = [source for source in sources if isinstance(source, KernelSource)]
    try:
        built = iter(_built(generator, good, store))
        results = [
            partial(_value, next(built) if isinstance(source, KernelSource) else source)
            for source in sources
        ]
    except Exception:
        results = [
            partial(lambda s: _built(generator, [s], store)[0], source)
            if isinstance(source, KernelSource)
            else partial(_value, source)
            for source in sources
        ]
    return results


def _source(generator: CodeGenerator, kernel: Kernel) -> KernelSource | Exception:
    try:
        if isinstance(generator, SelectsKernels):
            takes = generator.supports(kernel)
            try:
                source = generator.generate(kernel)
            except UnsupportedKernelError as error:
                reason = error.reason
                return AssertionError(f"supported, but {reason}") if takes else Refused(reason)
            return source if takes else AssertionError("not supported, but generated")
        return generated(generator, kernel.name, partial(generator.generate, kernel), None)
    except Exception as error:
        return error


def _built(
    generator: CodeGenerator, sources: Sequence[KernelSource], store: ArtifactStore
) -> list[Launcher]:
    what = f"{len(sources)} kernels"
    return built(generator, what, partial(generator.build, sources, store), len(sources), None)


def _value(value: Launcher | Exception) -> Launcher:
    if isinstance(value, Exception):
        raise value
    return value


def _on_device(kernel: Kernel, device: str) -> Kernel:
    return Kernel(
        kernel.name, device, kernel.buffers, kernel.sizes, kernel.ranges, kernel.reduction,
        kernel.bodies,
        kernel.vector_axis, kernel.hints, kernel.origins,
    )  # fmt: skip


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
