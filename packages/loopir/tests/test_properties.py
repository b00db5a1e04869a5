"""Random kernels round-trip and verify; random programs equal eager however they are fused."""

import primops
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loopir import HostProgram, Options, check_kernel, compile_graph, evaluate_kernel, format_kernel, parse_kernel
from loopir.testing import EvaluatorCodeGenerator
from loopir.testing.programs import TensorProgram, tensor_programs
from loopir.testing.strategies import kernels
from primops.testing import trace
from symshapes import FakeTensorMode

EVALUATOR = {"cpu": EvaluatorCodeGenerator()}
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-4, torch.float16: 3e-2, torch.bfloat16: 2e-1}
NIGHTLY = settings.default.max_examples >= 5000  # type: ignore[union-attr]
PLAIN = {"fuse": False, "inline": False, "reuse": False, "split_reductions": False}


@given(kernels())
def test_kernels_round_trip(kernel):
    text = format_kernel(kernel)
    assert parse_kernel(text) == kernel
    assert format_kernel(parse_kernel(text)) == text


@given(kernels(), st.integers(1, 6))
def test_kernels_verify_and_evaluate(kernel, size):
    check_kernel(kernel)
    tensors = []
    for buffer in kernel.buffers:
        numel = int(buffer.numel.subs({s: size for s in kernel.sizes}))
        tensors.append((torch.rand(numel) * 4).to(buffer.dtype))
    evaluate_kernel(kernel, tensors, [size for _ in kernel.sizes])


def build(graph, args, **options) -> HostProgram:
    """Compiled and checked; each kernel's text reads back as the kernel."""
    host = compile_graph(graph, args, codegens=EVALUATOR, options=Options(check=True, threads=2, patterns=False, **options))
    for kernel in host.program.kernels:
        assert parse_kernel(format_kernel(kernel)) == kernel
    return host


def assert_like_eager(host: HostProgram, program: TensorProgram, args: list[torch.Tensor]) -> list[torch.Tensor]:
    """Equal for integers; for floats near what float64 gives, or near eager where both round."""
    results = host(*args)
    exact = program(*(arg.double() if arg.is_floating_point() else arg for arg in args))
    for result, reference, eager in zip(results, exact, program(*args), strict=True):
        assert result.dtype == eager.dtype and result.shape == eager.shape
        if not eager.is_floating_point():
            assert torch.equal(result, eager)
            continue
        tolerance = TOLERANCE[eager.dtype]
        scale = max(1.0, reference.abs().max().item() if reference.numel() else 1.0)
        error = (result.double() - reference).abs().max().item() if reference.numel() else 0.0
        assert error <= tolerance * scale, f"error {error} at scale {scale}"
    return results


@settings(max_examples=40_000 if NIGHTLY else 200)
@given(tensor_programs())
def test_programs_equal_eager_fused_or_not(program):
    args = program.arguments()
    graph = primops.decompose(trace(program, *args))
    fused = assert_like_eager(build(graph, args), program, args)
    plain = assert_like_eager(build(graph, args, **PLAIN), program, args)
    for a, b in zip(fused, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-2, equal_nan=True)


@settings(max_examples=10_000 if NIGHTLY else 100)
@given(tensor_programs(sizes=(2, 3, 6)))
def test_programs_with_symbolic_sizes_equal_eager(program):
    mode = FakeTensorMode()
    args = program.arguments((6, 5))
    fakes = [mode.from_real(tensor, source=f"x{i}", dynamic_dims=[i]) for i, tensor in enumerate(args)]
    with mode:
        graph = trace(program, *fakes)
    host = build(primops.decompose(graph), fakes)
    for rows in (6, 2, 9):
        assert_like_eager(host, program, program.arguments((rows, 5)))
