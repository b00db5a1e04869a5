"""Unusual inputs of compiled graphs: correct results or clear errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from inductor_cpp import compile_graph
from loopir import BuildError, HostProgram
from primops.testing import trace


def build(fn: Callable, inputs: Sequence[torch.Tensor], store) -> HostProgram:
    with torch.no_grad():
        return compile_graph(trace(fn, *inputs), inputs, store=store)


LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "transposed": lambda: torch.randn(40, 70).t(),
    "strided": lambda: torch.randn(140, 80)[::2, ::2],
    "expanded": lambda: torch.randn(1, 40).expand(70, 40),
    "overlapping": lambda: torch.randn(200).as_strided((70, 40), (1, 2)),
    "offset": lambda: torch.randn(71, 41)[1:, 1:],
    "channels last": lambda: (
        torch.randn(2, 5, 7, 40).contiguous(memory_format=torch.channels_last).flatten(0, 2)
    ),
    "empty": lambda: torch.randn(0, 40),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_inputs(store, layout: str) -> None:
    torch.manual_seed(0)
    x, y = LAYOUTS[layout](), torch.randn(40)

    def fn(x, y):
        return torch.tanh(x + y), (x * y).sum(1), x.sum(0)

    for actual, expected in zip(build(fn, (x, y), store)(x, y), fn(x, y), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


GATHERS: dict[str, Callable] = {
    "embedding": lambda table, index: torch.nn.functional.embedding(index, table),
    "index": lambda table, index: table[index] * 2,
    "gather": lambda table, index: torch.gather(table, 0, index[:, None].expand(-1, 4)) + 1,
    "index_select": lambda table, index: table.index_select(0, index).sum(1),
}


@pytest.mark.parametrize("gather", GATHERS)
@pytest.mark.parametrize("bad", [10, 1 << 40, -11])
def test_gather_out_of_range(store, gather: str, bad: int) -> None:
    table, index = torch.randn(10, 4), torch.randint(0, 10, (33,))
    host = build(GATHERS[gather], (table, index), store)
    torch.testing.assert_close(host(table, index)[0], GATHERS[gather](table, index))
    index[32] = bad
    with pytest.raises(IndexError, match="out of range"):
        host(table, index)


def test_division_by_an_integer_zero(store) -> None:
    a, b = torch.arange(40), torch.ones(40, dtype=torch.int64)

    def fn(a, b):
        return torch.div(a, b, rounding_mode="floor")

    host = build(fn, (a, b), store)
    assert torch.equal(host(a, b)[0], a)
    b[39] = 0
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        host(a, b)


def test_unsupported_instruction_set_is_refused(store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATA_CPU_ISA", "sve9")
    with pytest.raises(BuildError, match="unknown instruction set; one of"):
        build(lambda x: x + 1, (torch.ones(3),), store)


def test_missing_compiler_names_the_remedy(store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATA_CXX", "no-such-compiler")
    with pytest.raises(BuildError, match="STRATA_CXX"):
        build(lambda x: x + 41, (torch.ones(3),), store)
