"""Column sums that move into a row kernel."""

from __future__ import annotations

import loopir
import pytest
import torch
from loopir.schedule import column_sums as columns

ROWS, COLUMNS = 1100, 24


def added(host):
    steps = [
        step
        for kernel in host.program.kernels
        for body in kernel.bodies
        for step in body.instructions
    ]
    return sum(step.op == "store" and step.args[3] == "add" for step in steps)


def norm_backward(x, g, w):
    mean, scale = x.mean(1, keepdim=True), torch.rsqrt(x.var(1, keepdim=True) + 1e-5)
    normal = (x - mean) * scale
    wide = g * w
    dx = scale * (
        wide - wide.mean(1, keepdim=True) - normal * (wide * normal).mean(1, keepdim=True)
    )
    return dx, (g * normal).sum(0), g.sum(0)


def test_gradients_of_a_norm(run):
    x, g = torch.randn(ROWS, COLUMNS), torch.randn(ROWS, COLUMNS)
    host = run(norm_backward, x, g, torch.randn(COLUMNS), tolerance=1e-3)
    assert added(host) == 2
    assert len(host.program.kernels) == 2
    assert any("sums of columns" in decision.reason for decision in host.program.decisions)


def test_what_follows_the_sums_stays_apart(run):
    def function(x, g):
        return (x + g).amax(1), (x * g).sum(0).sigmoid().to(torch.bfloat16)

    host = run(function, torch.randn(ROWS, COLUMNS), torch.randn(ROWS, COLUMNS), tolerance=1e-2)
    assert added(host) == 1


def test_calls_that_read_the_sums_run_after_the_rows(run):
    def function(x, g, w):
        sums = (x * g).sum(0)
        return (x + g).amax(1), sums[None] @ w, sums[None] @ w.cos()

    host = run(
        function,
        torch.randn(ROWS, COLUMNS),
        torch.randn(ROWS, COLUMNS),
        torch.randn(COLUMNS, 5),
        tolerance=1e-3,
    )
    assert added(host) == 1


def test_three_dimensions(run):
    def function(x, g):
        return (x + g).amax(2), (x * g).sum((0, 1))

    assert (
        added(
            run(
                function,
                torch.randn(10, 200, COLUMNS),
                torch.randn(10, 200, COLUMNS),
                tolerance=1e-3,
            )
        )
        == 1
    )


def test_sums_of_two_shapes(run):
    def function(x, g):
        heads = g.view(ROWS, 4, COLUMNS // 4)
        return (x + g).amax(1), (x * g).sum(0), (heads * heads.cos()).sum(0), heads.sum(0)

    host = run(function, torch.randn(ROWS, COLUMNS), torch.randn(ROWS, COLUMNS), tolerance=1e-3)
    assert added(host) == 3


def test_rows_that_need_the_sums_stay_apart(run):
    def function(x):
        return (x - x.sum(0)).amax(1), x.sum(1)

    run(function, torch.randn(ROWS, COLUMNS), tolerance=1e-3)


def test_sums_that_need_what_follows_other_sums_stay_apart(run):
    """Squares about the columns' means are summed when all rows have given their share to the
    means.
    """

    def function(x):
        rows = x.softmax(1)
        mean = rows.mean(0)
        return mean, (rows - mean).square().sum(0)

    run(function, torch.randn(ROWS, COLUMNS), tolerance=1e-3)


def test_transposed_reads_stay_apart(run):
    def function(x, y):
        return x.softmax(1), (x * y.t()).sum(0)

    run(function, torch.randn(ROWS, COLUMNS), torch.randn(COLUMNS, ROWS), tolerance=1e-3)


@pytest.mark.parametrize("shape", [(60, COLUMNS), (ROWS, 9000)])
def test_few_rows_or_long_rows_stay_apart(compiled, shape):
    def function(x):
        return x.softmax(1), x.sum(0)

    assert added(compiled(function, torch.empty(shape))) == 0


def test_sizes_that_are_not_known(run_dynamic):
    host = run_dynamic(
        lambda x, g: ((x + g).amax(1), (x * g).sum(0)),
        lambda n: (torch.randn(n, COLUMNS), torch.randn(n, COLUMNS)),
        ([0], [0]),
        sizes=(200, 3, 70),
    )
    assert added(host) == 1


def test_deterministic_algorithms_stay_apart(compiled, monkeypatch):
    monkeypatch.setattr(columns, "IN_ORDER", ())
    torch.use_deterministic_algorithms(True)
    try:
        assert (
            added(
                compiled(
                    norm_backward,
                    *(torch.empty(s) for s in ((ROWS, COLUMNS), (ROWS, COLUMNS), (COLUMNS,))),
                )
            )
            == 0
        )
    finally:
        torch.use_deterministic_algorithms(False)


def test_other_devices_keep_their_kernels(compiled, monkeypatch):
    monkeypatch.setattr(columns, "LEAST_ROWS", {})
    host = compiled(
        norm_backward, *(torch.empty(s) for s in ((ROWS, COLUMNS), (ROWS, COLUMNS), (COLUMNS,)))
    )
    assert isinstance(host, loopir.HostProgram)
    assert added(host) == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_scans_store_what_their_only_user_wants(run, dtype):
    x = torch.randn(6, 40).to(dtype)
    assert len(run(lambda x: x.cumsum(1), x, tolerance=2e-2).program.kernels) == 1
    assert len(run(lambda x: x.cumsum(1) * 2, x, tolerance=2e-2).program.kernels) == 2
    run(lambda x: (x.cumsum(1), x.cumsum(1, dtype=torch.float32)), x, tolerance=2e-2)
