"""Random tensor programs through the pipeline against eager.

    python -m packages.loopir.tests.sweep --programs 50000 --jobs 16

Each program is checked as ``check_program`` says. Prints failing programs and one line of counts;
returns 1 if any failed.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

import primops
import torch
from loopir.backend import CodeGenerator
from loopir.compile import compile_graph
from loopir.host.host_program import HostProgram
from loopir.ir.parse import parse_kernel
from loopir.ir.template import kernels_of
from loopir.ir.text import format_kernel
from loopir.options import Options
from loopir.testing.generator import EvaluatorCodeGenerator, EvaluatorTemplates
from primops.testing import trace
from symshapes import FakeTensorMode

from packages.loopir.tests.programs import HALVES, TensorProgram, random_program

TOLERANCE = {
    torch.float64: 1e-9, torch.float32: 2e-4, torch.float16: 3e-2, torch.bfloat16: 2e-1,
    torch.complex64: 2e-4,
    torch.complex128: 1e-9,
}  # fmt: skip
SAME = {
    torch.float64: 1e-12, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2,
    torch.complex64: 2e-6,
    torch.complex128: 1e-12,
}  # fmt: skip
PLAIN = {"fuse": False, "inline": False, "reuse": False, "split_reductions": False}
CHUNK = 50


def build(
    graph: torch.fx.GraphModule, args: Sequence[object], templates: bool = False, **options: bool
) -> HostProgram:
    """Compiled and verified for the evaluator; each kernel's text reads back as the kernel."""
    codegens: dict[str, CodeGenerator] = {
        "cpu": EvaluatorTemplates() if templates else EvaluatorCodeGenerator()
    }
    host = compile_graph(
        graph,
        args,
        codegens=codegens,
        options=Options(check=True, threads=2, patterns=False, **options),
    )
    for kernel in (each for launched in host.program.kernels for each in kernels_of(launched)):
        assert parse_kernel(format_kernel(kernel)) == kernel, format_kernel(kernel)
    return host


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest difference of two elements; NaN and infinities that agree do not differ."""
    same = (a == b) | (a.isnan() & b.isnan())
    return torch.where(same, 0, (a - b).abs()).max().item() if a.numel() else 0.0


def wide(x: torch.Tensor) -> torch.Tensor:
    """Floating and complex numbers in double precision."""
    return x.to(torch.complex128) if x.is_complex() else x.double() if x.is_floating_point() else x


def assert_like_eager(
    host: HostProgram, program: TensorProgram, args: list[torch.Tensor]
) -> list[torch.Tensor]:
    """Equal for integers; for floats near what float64 gives, or near eager where both round."""
    results = host(*args)
    for result, exact, eager in zip(
        results, program(*map(wide, args)), program(*args), strict=True
    ):
        assert result.dtype == eager.dtype and result.shape == eager.shape
        if eager.dtype not in TOLERANCE:
            assert torch.equal(result, eager), (result, eager)
            continue
        error = min(distance(wide(result), exact), distance(wide(result), wide(eager)))
        scale = max(1.0, exact.abs().max().item() if exact.numel() else 1.0)
        assert error <= TOLERANCE[eager.dtype] * scale, f"error {error} at scale {scale}"
    return results


def assert_same(fused: Sequence[torch.Tensor], plain: Sequence[torch.Tensor]) -> None:
    """Equal but for the order of sums."""
    for a, b in zip(fused, plain, strict=True):
        if a.dtype in TOLERANCE:
            scale = max(1.0, b.abs().max().item() if b.numel() else 1.0)
            error = distance(wide(a), wide(b))
            assert error <= SAME[a.dtype] * scale, (
                f"fused differs from unfused by {error} at scale {scale}"
            )
        else:
            assert torch.equal(a, b), f"fused {a}, unfused {b}"


def check_static(program: TensorProgram) -> None:
    """Text round trip, verifier, and values: fused, fused into operators, and not at all, which
    must be the same where 16-bit floats are rounded as in eager (without that, a kernel keeps them
    in float32).
    """
    args = program.arguments()
    traced = trace(program, *args)
    graph = primops.decompose(traced)
    fused = assert_like_eager(build(graph, args), program, args)
    rounded = graph
    if program.dtype in HALVES:
        rounded = primops.decompose(traced, numerics="eager")
        fused = assert_like_eager(build(rounded, args), program, args)
    assert_same(fused, assert_like_eager(build(rounded, args, **PLAIN), program, args))
    if any(rule == "product" for rule, *_ in program.steps):
        assert_like_eager(build(graph, args, templates=True), program, args)


def check_symbolic(program: TensorProgram) -> None:
    """One compilation with a symbolic number of rows against eager at those of three sizes that its
    guards admit.
    """
    mode = FakeTensorMode()
    fakes = [
        mode.from_real(x, source=f"x{i}", dynamic_dims=[i])
        for i, x in enumerate(program.arguments((6, 5)))
    ]
    with mode:
        graph = trace(program, *fakes)
    host = build(primops.decompose(graph), fakes)
    env = mode.shape_env
    for rows in (6, 2, 9):
        if not env.failing_guards(dict.fromkeys(env.hints, rows)):
            assert_like_eager(host, program, program.arguments((rows, 5)))


def check_chunk(first: int) -> list[tuple[int, str, str]]:
    """Checks CHUNK programs from number ``first`` on, every fifth with symbolic sizes: number, kind
    and failure of each.
    """
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    found = []
    for seed in range(first, first + CHUNK):
        symbolic = seed % 5 == 4
        try:
            (check_symbolic if symbolic else check_static)(
                random_program(seed, (2, 3, 6) if symbolic else (0, 1, 2, 3, 6, 8))
            )
            message = ""
        except Exception as error:
            message = f"{type(error).__name__}: {str(error)[:400]}"
        found.append((seed, "symbolic" if symbolic else "static", message))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=500)
    parser.add_argument("--first", type=int, default=0, help="number of the first program")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="stop after the chunk that reaches this"
    )
    arguments = parser.parse_args()
    started, counts = time.monotonic(), Counter()
    chunks = range(arguments.first, arguments.first + arguments.programs, CHUNK)
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for results in pool.map(check_chunk, chunks):
            for seed, kind, message in results:
                counts[kind] += 1
                if message:
                    counts["failures"] += 1
                    print(f"program {seed}, {kind}: {message}", flush=True)
            if time.monotonic() - started > arguments.seconds:
                pool.shutdown(wait=False, cancel_futures=True)
                break
    total = counts["static"] + counts["symbolic"]
    print(
        f"{total} loop programs ({counts['static']} static, {counts['symbolic']} symbolic), "
        f"{counts['failures']} failures,"
        f" {time.monotonic() - started:.0f} s with {arguments.jobs} jobs"
    )
    return int(counts["failures"] > 0)


if __name__ == "__main__":
    sys.exit(main())
