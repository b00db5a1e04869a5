"""Products padded to aligned sizes give the same values; those that are aligned or small stay."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from loopir import Options, compile_graph
from loopir.lowering import view
from loopir.patterns import padding
from loopir.patterns.match import keep_outputs
from loopir.testing import EvaluatorCodeGenerator
from primops.testing import trace
from symshapes import FakeTensorMode

PROGRAMS: dict[str, tuple[Callable[..., torch.Tensor], tuple[tuple[int, ...], ...], int]] = {
    "columns": (lambda x, w: x @ w.t(), ((16, 32), (53, 32)), 1),
    "columns of a view": (
        lambda x, w: (x.flatten(0, 1) @ w.t()).unflatten(0, (2, 8)).softmax(-1),
        ((2, 8, 32), (53, 32)),
        1,
    ),
    "inner": (lambda g, w: (g * 2) @ w, ((16, 53), (53, 32)), 1),
    "rows": (lambda g, x: g.t() @ x, ((16, 53), (16, 32)), 1),
    "bias": (lambda x, w, b: torch.addmm(b, x, w.t()), ((16, 32), (53, 32), (53,)), 1),
    "shared": (
        lambda g, w, x: (g @ w).sum() + (g.t() @ x).sum(),
        ((16, 53), (53, 32), (16, 32)),
        2,
    ),
    "aligned": (lambda x, w: x @ w, ((16, 32), (32, 64)), 0),
    "rows that need not be": (lambda x, w: x @ w, ((15, 32), (32, 64)), 0),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, shapes, count = PROGRAMS[name]
    monkeypatch.setattr(padding, "WORTH", 1)
    torch.manual_seed(0)
    inputs = [torch.randn(shape).bfloat16() for shape in shapes]
    with torch.no_grad():
        graph = trace(function, *inputs)
    keep_outputs(graph)
    assert padding.pad_products(graph, "cpu") == count
    host = compile_graph(
        graph, inputs, codegens={"cpu": EvaluatorCodeGenerator()}, options=Options(check=True)
    )
    (result,) = host(*inputs)
    expected = function(*inputs)
    torch.testing.assert_close(result, expected, rtol=2e-2, atol=2e-2)
    assert result.stride() == expected.stride()


def test_small_products_stay() -> None:
    with torch.no_grad():
        graph = trace(
            lambda x, w: x @ w.t(), torch.randn(16, 32).bfloat16(), torch.randn(53, 32).bfloat16()
        )
    assert padding.pad_products(graph, "cpu") == 0


@pytest.mark.parametrize("name", ["columns", "bias", "rows"])
def test_sizes_that_vary_stay_and_the_others_are_padded(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, shapes, count = PROGRAMS[name]
    monkeypatch.setattr(padding, "WORTH", 1)

    def make(rows: int) -> list[torch.Tensor]:
        resized = [(rows if size == 16 else size for size in shape) for shape in shapes]
        return [torch.randn(tuple(shape)).bfloat16() for shape in resized]

    mode = FakeTensorMode()
    fakes = [
        mode.from_real(x, source=f"x{i}", dynamic_dims=[0] if shape[0] == 16 else [])
        for i, (x, shape) in enumerate(zip(make(16), shapes))
    ]
    with mode:
        graph = trace(function, *fakes)
    keep_outputs(graph)
    assert padding.pad_products(graph, "cpu") == count
    host = compile_graph(
        graph, fakes, codegens={"cpu": EvaluatorCodeGenerator()}, options=Options(check=True)
    )
    for rows in (16, 5, 40):
        inputs = make(rows)
        torch.testing.assert_close(host(*inputs)[0], function(*inputs), rtol=2e-2, atol=2e-2)


def test_an_operand_is_padded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    function, shapes, _ = PROGRAMS["shared"]
    monkeypatch.setattr(padding, "WORTH", 1)
    with torch.no_grad():
        graph = trace(function, *(torch.randn(shape).bfloat16() for shape in shapes))
    padding.pad_products(graph, "cpu")
    pads = [
        node for node in graph.graph.nodes if node.target is torch.ops.aten.constant_pad_nd.default
    ]
    assert len({(node.args[0], *node.args[1]) for node in pads}) == len(pads) == 2


def test_a_large_result_is_in_memory_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A returned product is cut a run of rows at a time; one that is only read stays whole."""
    rows, inner, columns = 64, 8, 2045
    monkeypatch.setattr(padding, "WORTH", 1)
    monkeypatch.setattr(padding, "LARGEST", 8 * (columns + 3) * 2)
    monkeypatch.setattr(view, "LARGE", 1024)
    inputs = [torch.randn(rows, inner).bfloat16(), torch.randn(columns, inner).bfloat16()]

    def logits(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        result = x @ w.t()
        return result.view(2, -1, columns), result.float().logsumexp(-1)

    products = []
    for function in (logits, lambda x, w: logits(x, w)[1]):
        with torch.no_grad():
            graph = trace(function, *inputs)
        keep_outputs(graph)
        assert padding.pad_products(graph, "cpu") == 1
        products.append(sum(node.target is torch.ops.aten.mm.default for node in graph.graph.nodes))
        host = compile_graph(
            graph, inputs, codegens={"cpu": EvaluatorCodeGenerator()}, options=Options(check=True)
        )
        for result, expected in zip(
            host(*inputs), torch.utils._pytree.tree_leaves(function(*inputs)), strict=True
        ):
            torch.testing.assert_close(result, expected, rtol=2e-2, atol=2e-2)
        if products == [8]:
            weight, whole = (columns + 3) * inner * 2, rows * columns * 2
            assert host.planned_peak < weight + whole * 1.3
    assert products == [8, 1]


@pytest.mark.parametrize("columns", [30528, 50264, 128256, 1 << 20])
@pytest.mark.parametrize("rows", [64, 4096, 8192])
def test_runs_are_whole_tiles_that_fit(rows: int, columns: int) -> None:
    length = padding._rows_of_run(rows, columns, 2)
    assert length == rows or length * columns * 2 <= padding.LARGEST
    assert length == rows or length < padding.TILE[0] or length % padding.TILE[0] == 0
