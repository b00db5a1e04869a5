"""Random kernels round-trip and verify; random programs equal eager however they are fused."""

import primops
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loopir import Options, check_kernel, compile_graph, evaluate_kernel, format_kernel, parse_kernel
from loopir.testing import EvaluatorCodeGenerator
from loopir.testing.strategies import kernels
from primops.testing import trace


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


UNARY = [torch.relu, torch.tanh, torch.exp, torch.neg, lambda x: x * 2 + 1, torch.sigmoid]
BINARY = [torch.add, torch.mul, torch.maximum, torch.sub]


def shaped(x, target):
    """Any tensor brought to a shape by a view, a reduction or a broadcast."""
    while x.ndim > len(target):
        x = x.mean(0)
    return x.expand(target) if x.ndim == 0 else x


@st.composite
def programs(draw):
    """A list of steps over a growing list of (6, 8) or (8, 6) values."""
    return draw(
        st.lists(
            st.tuples(st.sampled_from(STEPS), st.integers(0, 50), st.integers(0, 50), st.integers(0, 9)), min_size=1, max_size=9
        )
    )


STEPS = ("unary", "binary", "transpose", "rows", "columns", "softmax", "slice", "reshape", "flip", "cat", "pad", "matmul")


def step(kind, a, b, choice):
    if kind == "unary":
        return UNARY[choice % len(UNARY)](a.clamp(-3, 3))
    if kind == "binary":
        return BINARY[choice % len(BINARY)](a, b if b.shape == a.shape else b.t())
    if kind == "transpose":
        return a.t()
    if kind == "rows":
        return a - [a.mean, a.amax, a.sum][choice % 3](-1, keepdim=True)
    if kind == "columns":
        return a * a.mean(0, keepdim=True) + a.amin(0)
    if kind == "softmax":
        return a.softmax(choice % 2)
    if kind == "slice":
        return torch.cat([a[1:], a[:1]], 0)
    if kind == "reshape":
        return a.reshape(4, 12).cos().reshape(a.shape) if choice % 2 else a.reshape(-1).reshape(a.shape[::-1])
    if kind == "flip":
        return a.flip(choice % 2)
    if kind == "cat":
        other = b if b.shape == a.shape else b.t()
        return torch.cat([a[:, :3], other[:, 3:]], 1)
    if kind == "pad":
        return torch.nn.functional.pad(a[:, 1:], (choice % 2, 1 - choice % 2), value=0.5)
    return (a @ a.t().clamp(-1, 1)) @ a * 0.01


@settings(max_examples=60)
@given(programs(), st.booleans())
def test_programs_equal_eager_fused_or_not(steps, large):
    def fn(x, y):
        values = [x, y]
        for kind, i, j, choice in steps:
            values.append(step(kind, values[i % len(values)], values[j % len(values)], choice))
        return tuple(values[2:][-3:])

    scale = 8 if large else 1
    torch.manual_seed(0)
    args = [torch.randn(6, 8) / scale, torch.randn(8, 6)]
    graph = primops.decompose(trace(fn, *args))
    expected = [value.double() for value in fn(*(arg.double() for arg in args))]
    for options in (Options(check=True), Options(check=True, fuse=False, inline=False, reuse=False)):
        host = compile_graph(graph, args, codegens={"cpu": EvaluatorCodeGenerator()}, options=options)
        for got, reference in zip(host(*args), expected, strict=True):
            torch.testing.assert_close(got.double(), reference, rtol=1e-3, atol=1e-4)
