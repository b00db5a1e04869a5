"""``torch.cond`` and ``while_loop`` on tensors through the whole stack, in one graph of the
program.
"""

from __future__ import annotations

import pytest
import torch
import torchstrata
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

SIGNS = (torch.ones, lambda *size: -torch.ones(*size))


@pytest.fixture(autouse=True)
def _strict(monkeypatch):
    torchstrata.reset()
    monkeypatch.setattr(torchstrata.config, "fallback", "error")


def simple(x):
    return torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a * 2, (x * 3,)) + x


def nested(x):
    def positive(a):
        return torch.cond(a.max() > 2, lambda b: b.exp(), lambda b: b * 3, (a,))

    return torch.cond(x.sum() > 0, positive, lambda a: a - 1, (x,)).relu()


def several(x):
    first, (low, index) = torch.cond(x.sum() > 0, lambda: x * 2, lambda: x * 3), x.min(0)
    return torch.cond(
        first.sum() > 5, lambda a: (a * 1, a.sum()), lambda a: (-a, a.max()), (first + low,)
    ), index


def written(x):
    y = x * 2
    row, part = y[0], y[1].clone()
    y.mul_(3)
    z = torch.cond(row.sum() > 0, lambda a: a + 1, lambda a: a * 5, (part,))
    y.add_(1)
    return y, row, z


def partly_without_gradients(x):
    with torch.no_grad():
        scale = torch.cond(x.sum() > 0, lambda a: a.exp(), lambda a: a.abs(), (x,))
    return scale * x


def sizes_inside(x):
    rows = x.shape[0]
    return torch.cond(
        x.sum() > 0, lambda a: torch.cat([a, a]) * rows, lambda a: a.repeat(2, 1) / a.size(0), (x,)
    ).view(-1)


@pytest.mark.parametrize("dynamic", [None, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "function", [simple, sizes_inside, nested, several, written, partly_without_gradients]
)
def test_branches(function, dynamic):
    compiled = torchstrata.compile(function, fullgraph=True, dynamic=dynamic)
    for size in (3, 4, 6):
        for make in SIGNS:
            results = []
            for call in (function, compiled):
                x = make(size, 2).requires_grad_()
                flat = [t for t in torch.utils._pytree.tree_leaves(call(x)) if t.requires_grad]
                results.append((flat, torch.autograd.grad(sum(t.sum() for t in flat), x)))
            torch.testing.assert_close(*results)


def test_only_the_branch_that_is_taken_has_gradients():
    compiled = torchstrata.compile(
        lambda x: torch.cond(x.min() > 0, torch.log, torch.abs, (x,)).sum(), fullgraph=True
    )
    x = torch.tensor([-1.0, 0.0, 2.0], requires_grad=True)
    compiled(x).backward()
    assert torch.equal(x.grad, torch.tensor([-1.0, 0.0, 1.0]))


@pytest.mark.parametrize("backend", ["eager", "torchstrata"])
def test_a_branch_without_gradients(backend):
    def call(x, w):
        return torch.cond(x.sum() > 0, lambda a: a * w, lambda a: torch.zeros_like(a), (x,)) * 2

    compiled = torchstrata.compile(call, backend=backend, fullgraph=True)
    for make in SIGNS:
        w = torch.full((3,), 5.0, requires_grad=True)
        result = compiled(make(3), w)
        assert result.requires_grad
        torch.testing.assert_close(result.detach(), call(make(3), w).detach())
        result.sum().backward()
        assert make is not SIGNS[0] or torch.equal(w.grad, torch.full((3,), 2.0))


def test_modules_chosen_by_data():
    class Switch(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)

        def forward(self, x):
            return torch.cond(x.mean() > 0, self.left, self.right, (x,)).relu()

    model = Switch()
    compiled = torchstrata.compile(model, fullgraph=True)
    for make in SIGNS:
        results = []
        for call in (model, compiled):
            model.zero_grad()
            out = call(make(2, 3))
            out.sum().backward()
            results.append(
                (
                    out,
                    [
                        p.grad
                        for p in (model.left if make is SIGNS[0] else model.right).parameters()
                    ],
                )
            )
        torch.testing.assert_close(*results)


@pytest.mark.parametrize("dynamic", [None, pytest.param(True, marks=pytest.mark.slow)])
def test_loops(dynamic):
    def grown(x, w):
        steps, y = while_loop(
            lambda i, a: a.sum() < 100, lambda i, a: (i + 1, a @ w + 1), (torch.tensor(0), x)
        )
        return y * 2, steps

    compiled = torchstrata.compile(grown, fullgraph=True, dynamic=dynamic)
    for size in (2, 3, 5):
        arguments = torch.ones(size, 2), torch.eye(2) * 1.5
        torch.testing.assert_close(compiled(*arguments), grown(*arguments))


@pytest.mark.parametrize("dynamic", [None, pytest.param(True, marks=pytest.mark.slow)])
def test_a_loop_over_the_rows_that_there_are(dynamic):
    def summed(x):
        start = torch.tensor(0), torch.zeros(())
        return while_loop(
            lambda i, _: i < x.size(0),
            lambda i, a: (i + 1, a + x[i.item()].sum() / x.shape[0]),
            start,
        )

    compiled = torchstrata.compile(summed, fullgraph=True, dynamic=dynamic)
    for rows in (3, 4, 6):
        x = torch.randn(rows, 2)
        torch.testing.assert_close(compiled(x), (torch.tensor(rows), x.sum() / rows))
    assert torchstrata.counters["graphs"] == (2 if dynamic is None else 1)


@pytest.mark.skipif(
    torch.__version__ >= (2, 15), reason="eager's own cond refuses such numbers in branches there"
)
def test_numbers_from_data_in_branches():
    def call(x, at, factor):
        n, f = (at + 0).item(), (factor + 0).item()  # no numbers of inputs, which are guarded
        part = torch.ones(n, 2) * f
        return torch.cond(
            x.sum() > 0,
            lambda a, b: a[:n].sum(0) * f + b.sum(0),
            lambda a, b: b.mean(0) * n,
            (x, part),
        )

    compiled = torchstrata.compile(call, fullgraph=True)
    for n, make in ((3, SIGNS[0]), (1, SIGNS[1]), (2, SIGNS[0])):
        arguments = make(4, 2), torch.tensor(n), torch.tensor(n + 0.5)
        torch.testing.assert_close(compiled(*arguments), call(*arguments))
    assert torchstrata.counters["graphs"] == 1


@pytest.mark.parametrize(("dim", "reverse"), [(1, False), (-1, True)])
def test_a_scan_of_columns_gives_columns(dim, reverse):
    def columns(start, xs):
        return scan(
            lambda carry, x: (carry * x, {"sum": carry + x, "total": x.sum()}),
            start,
            xs,
            dim=dim,
            reverse=reverse,
        )

    start, xs = torch.randn(3), torch.randn(3, 4)
    got = torchstrata.compile(columns, fullgraph=True)(start, xs)
    carry, sums, totals = start, [], []
    for k in range(4)[::-1] if reverse else range(4):
        sums.append(carry + xs[:, k])
        totals.append(xs[:, k].sum())
        carry = carry * xs[:, k]
    if reverse:
        sums, totals = sums[::-1], totals[::-1]
    torch.testing.assert_close(
        got, (carry, {"sum": torch.stack(sums, 1), "total": torch.stack(totals)})
    )
