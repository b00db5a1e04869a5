"""Programs that launch Triton kernels of their own: one graph, in Triton's interpreter or on a
GPU.
"""

from __future__ import annotations

import pytest
import torch
import torchstrata
from torch.testing import assert_close

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
InterpretedFunction = pytest.importorskip("triton.runtime.interpreter").InterpretedFunction

NO_DEVICE = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def _add(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    tl.store(out + i, tl.load(x + i, mask=inside) + tl.load(y + i, mask=inside), mask=inside)


def _scale(x, n, factor, BLOCK: tl.constexpr = 16):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = x + i
    tl.store(here, tl.load(here, mask=i < n) * factor, mask=i < n)


def _row_sums(x, out, rows, row, column, step, BLOCK: tl.constexpr):
    r = tl.arange(0, BLOCK)
    first = tl.load(x + r * row, mask=r < rows)
    tl.store(out + r * step, first + tl.load(x + r * row + column, mask=r < rows), mask=r < rows)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, NO_DEVICE])])
def device(request):
    return request.param


@pytest.fixture
def jit(device):
    return InterpretedFunction if device == "cpu" else triton.jit


@pytest.fixture(params=[False, True], ids=["static", "dynamic"])
def check(request, device):
    """Compares a program with eager for two sizes; it must be one graph without fallbacks."""

    def compare(program, *dims, inputs=2):
        compiled = torchstrata.compile(program, fullgraph=True, dynamic=request.param)
        torchstrata.counters.clear()
        for n in (50, 33):
            given = [torch.randn(n, *dims, device=device) for _ in range(inputs)]
            mine, eager = [t.clone() for t in given], [t.clone() for t in given]
            assert_close(compiled(*mine), program(*eager))
            assert_close(mine, eager)
        assert torchstrata.counters["fallbacks"] == 0
        assert torchstrata.counters["graphs"] == (1 if request.param else 2)

    return compare


def test_grids_are_numbers_or_functions(jit, check):
    add = jit(_add)

    def program(x, y):
        first, second = torch.empty_like(x), torch.empty_like(x)
        n = x.numel()
        add[(triton.cdiv(n, 16),)](x, y, first, n, BLOCK=16)
        add[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](first, y, second, n, BLOCK=32)
        return first * 2, second + 1

    check(program)


def test_kernels_write_to_inputs_and_to_what_they_read(jit, check):
    add, scale = jit(_add), jit(_scale)

    def program(x, y):
        z = x * 2
        scale[lambda meta: (triton.cdiv(z.numel(), meta["BLOCK"]),)](z, z.numel(), 1.5)
        scale[(4,)](y, y.numel(), factor=0.5, BLOCK=16)
        add[(4,)](x, y, x, x.numel(), BLOCK=16)
        return x + z

    check(program)


def test_strides_that_a_kernel_is_told_are_those_of_its_operands(jit, check):
    sums = jit(_row_sums)

    def program(x):
        wide = (x * 3)[:, ::4]
        out = torch.zeros(2 * x.shape[0], device=x.device)[::2]
        sums[(1,)](wide, out, x.shape[0], *wide.stride(), out.stride(0), BLOCK=64)
        turned, last = (x + 1).t(), torch.zeros_like(x)[:, 3]
        sums[(1,)](turned, last[:8], 8, *turned.stride(), last.stride(0), BLOCK=8)
        return out * 1, last * 2

    check(program, 8, inputs=1)


def test_views_of_one_tensor_are_written_apart(jit, device):
    add = jit(_add)

    def program(x, y):
        both = torch.zeros(2, x.shape[0], device=x.device)
        add[(4,)](x, y, both[0], x.numel(), BLOCK=16)
        add[(4,)](both[0], y, both[1], x.numel(), BLOCK=16)
        return both + 1

    x, y = torch.randn(2, 50, device=device)
    assert_close(torchstrata.compile(program, fullgraph=True)(x, y), program(x, y))


def test_functions_with_kernels_in_forward_and_backward(jit, device):
    add = jit(_add)

    class Sum(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            out = torch.empty_like(x)
            add[(4,)](x, y, out, x.numel(), BLOCK=16)
            return out

        @staticmethod
        def backward(ctx, g):
            twice = torch.empty_like(g)
            add[(4,)](g, g, twice, g.numel(), BLOCK=16)
            return twice, g

    def program(x, y):
        return Sum.apply(x * 2, y * 3).sin().sum()

    given = [torch.randn(50, device=device) for _ in range(2)]
    mine, eager = ([t.clone().requires_grad_() for t in given] for _ in range(2))
    torchstrata.compile(program, fullgraph=True)(*mine).backward()
    program(*eager).backward()
    assert_close([t.grad for t in mine], [t.grad for t in eager])


def test_heuristics_and_tuners_around_kernels(jit, device):
    tuned = triton.autotune(
        [triton.Config({"BLOCK": b}) for b in ((16,) if device == "cpu" else (16, 64, 256))],
        key=["n"],
    )
    ruled = triton.heuristics({"BLOCK": lambda given: triton.next_power_of_2(given["n"])})
    add, add_ruled = tuned(jit(_add)), ruled(jit(_add))

    def program(x, y):
        first, second = torch.empty_like(x), torch.empty_like(x)
        add[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, first, x.numel())
        add_ruled[(1, 1)](first, y, second, x.numel())
        return second * 2

    x, y = torch.randn(2, 50, device=device)
    assert_close(torchstrata.compile(program, fullgraph=True)(x, y), program(x, y))


def test_marked_kernels_and_operators_made_of_kernels(jit, device):
    add = jit(_add)

    def program(x, y):
        out = torch.empty_like(x)
        torch.library.wrap_triton(add)[(4,)](x, y, out, x.numel(), BLOCK=16)
        return out.relu()

    x, y = torch.randn(2, 50, device=device)
    expected = torch.relu(x + y)
    assert_close(torchstrata.compile(program, fullgraph=True)(x, y), expected)


def test_another_kernel_under_a_name_is_noticed(jit, device):
    kernels = {"used": jit(_add)}

    def _subtract(x, y, out, n, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + i, tl.load(x + i, mask=i < n) - tl.load(y + i, mask=i < n), mask=i < n)

    def program(x, y):
        out = torch.empty_like(x)
        kernels["used"][(4,)](x, y, out, x.numel(), BLOCK=16)
        return out

    compiled = torchstrata.compile(program, fullgraph=True)
    x, y = torch.randn(2, 50, device=device)
    assert_close(compiled(x, y), x + y)
    kernels["used"] = jit(_subtract)
    assert_close(compiled(x, y), x - y)
