"""Pointwise loops fused into operators that a backend has templates for."""

from dataclasses import dataclass, replace

import primops
import pytest
import torch
import torch.nn.functional as F
from loopir import OffersTemplates, Options, Template, compile_graph, format_any, format_schedule
from loopir.testing import EvaluatorCodeGenerator, EvaluatorTemplates
from primops.testing import trace
from symshapes import FakeTensorMode

aten = torch.ops.aten
EVERYTHING = EvaluatorTemplates()


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def compile_with(fn, args, codegen=EVERYTHING):
    graph = primops.decompose(trace(fn, *args))
    return compile_graph(
        graph, args, codegens={"cpu": codegen}, options=Options(check=True, threads=2)
    )


def check(fn, *args, templates=1, launches=None, externs=0):
    """Compares with eager; the host program."""
    host = compile_with(fn, args)
    expected = fn(*args)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for result, reference in zip(host(*args), expected, strict=True):
        torch.testing.assert_close(result, reference, rtol=1e-4, atol=1e-4)
        assert result.stride() == reference.stride()
    found = sum(isinstance(kernel, Template) for kernel in host.program.kernels)
    assert (found, host.extern_count) == (templates, externs), format_schedule(host.program)
    assert host.launch_count == (templates if launches is None else launches)
    return host


def text(host):
    kernels = [format_any(replace(kernel, origins=())) for kernel in host.program.kernels]
    return "\n".join([*kernels, format_schedule(host.program)])


def test_linear_gelu_linear_residual(golden):
    def fn(x, w1, b, w2):
        return F.linear(F.gelu(F.linear(x, w1, b)), w2) + x

    host = check(
        fn,
        torch.randn(4, 8, 16),
        torch.randn(32, 16),
        torch.randn(32),
        torch.randn(16, 32),
        templates=2,
    )
    golden(text(host))


def test_prologue_is_computed_where_the_operand_is_loaded():
    host = check(
        lambda x, w: torch.mm(x.bfloat16().float() * 2, w.t()),
        torch.randn(8, 16),
        torch.randn(4, 16),
    )
    (template,) = host.program.kernels
    ((name, stage),) = template.prologues
    assert name == "operand0" and [str(r.extent) for r in stage.kernel.ranges] == ["8", "16"]
    assert "prologue, saves" in format_schedule(host.program)


@pytest.mark.parametrize("spelled", [aten.bmm, lambda a, b: aten.baddbmm(a[:, :1, :5], a, b)])
def test_batched_products(spelled):
    check(lambda a, b: torch.relu(spelled(a, b)), torch.randn(3, 4, 6), torch.randn(3, 6, 5))


def test_convolution_in_channels_last():
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    check(
        lambda x, w, b: F.silu(F.conv2d(x, w, b, padding=1)),
        x,
        torch.randn(4, 3, 3, 3),
        torch.randn(4),
    )


def test_a_result_that_is_needed_itself_is_stored_too():
    host = check(
        lambda x, w: (lambda y: (y, y.relu()))(x @ w), torch.randn(8, 16), torch.randn(16, 16)
    )
    assert len([b for b in host.program.kernels[0].buffers if b.role == "out"]) == 2


def test_epilogue_stores_in_another_order():
    check(
        lambda x, w: (x @ w).view(4, 8, 2, 8).transpose(1, 2).contiguous().cos(),
        torch.randn(32, 16),
        torch.randn(16, 16),
    )


def test_memory_of_an_operand_is_not_written_while_it_is_read():
    def fn(x, w):
        for _ in range(3):
            x = (x @ w).sin() + x.cos().exp()
        return x

    host = check(fn, torch.randn(8, 8), torch.randn(8, 8), templates=1, launches=3)
    assert "in_place" not in format_schedule(host.program)


def test_memory_of_a_residual_is_taken_over():
    host = check(
        lambda x, y, w: (x @ w).sin() + y.cumsum(0),
        torch.randn(8, 8),
        torch.randn(8, 8),
        torch.randn(8, 8),
        launches=2,
    )
    assert "in_place=True" in format_schedule(host.program)


def test_rows_are_reduced_in_the_epilogue():
    def fn(x, w):
        y = x @ w
        return y.softmax(-1), y.amax(-1)

    check(fn, torch.randn(8, 16), torch.randn(16, 16), templates=1)
    check(
        lambda x, w: F.layer_norm((x @ w).view(2, 4, 2, 8), (2, 8)),
        torch.randn(8, 16),
        torch.randn(16, 16),
        templates=1,
    )
    check(
        lambda x, w: (x @ w).view(8, 2, 8).softmax(-1),
        torch.randn(8, 16),
        torch.randn(16, 16),
        templates=0,
        launches=1,
        externs=1,
    )


def test_reasons_against_it():
    host = check(
        lambda x, w: x.softmax(-1) @ w, torch.randn(8, 16), torch.randn(16, 16), launches=2
    )
    assert "a reduction is no part of an operator" in format_schedule(host.program)
    host = check(
        lambda x, w: (x @ w).softmax(0),
        torch.randn(8, 16),
        torch.randn(16, 16),
        templates=0,
        launches=1,
        externs=1,
    )
    assert "the loops are no parts of the operator's dims" in format_schedule(host.program)
    host = check(
        lambda x, w: (x @ w)[:, 2:].sin(),
        torch.randn(8, 16),
        torch.randn(16, 16),
        templates=0,
        launches=1,
        externs=1,
    )
    assert "their loops do not align" in format_schedule(host.program)


def test_the_backend_has_the_last_word():
    @dataclass(frozen=True)
    class Small(EvaluatorTemplates):
        def refuses(self, template):
            return "the library is faster" if template.prologues else ""

    assert isinstance(Small(), OffersTemplates) and not isinstance(
        EvaluatorCodeGenerator(), OffersTemplates
    )
    host = compile_with(
        lambda x, w: (x.sin() @ w).cos(), (torch.randn(8, 16), torch.randn(16, 16)), Small()
    )
    assert host.launch_count == 2 and "kept apart: buf0 and mm.default (buf1)" in format_schedule(
        host.program
    )
    assert "the library is faster" in format_schedule(host.program)


def test_symbolic_sizes():
    def fn(x, w, b):
        y = F.gelu(F.linear(x.sin(), w, b))
        return y.view(x.shape[0], x.shape[1], 2, 8).transpose(1, 2).contiguous() * 2

    def make(n):
        return torch.randn(n, n + 3, 16), torch.randn(16, 16), torch.randn(16)

    mode = FakeTensorMode()
    dims = ([0, 1], [], [])
    fakes = [
        mode.from_real(t, source=f"x{i}", dynamic_dims=d)
        for i, (t, d) in enumerate(zip(make(4), dims, strict=True))
    ]
    with mode:
        graph = primops.decompose(trace(fn, *fakes))
    host = compile_graph(
        graph, fakes, codegens={"cpu": EvaluatorTemplates()}, options=Options(check=True, threads=2)
    )
    assert host.launch_count == 1, format_schedule(host.program)
    for n in (4, 2, 7):
        args = make(n)
        torch.testing.assert_close(host(*args)[0], fn(*args), rtol=1e-4, atol=1e-4)
