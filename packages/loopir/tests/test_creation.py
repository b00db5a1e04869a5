"""What the CPU makes from numbers for another device is made there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loopir.patterns.creation import create_where_read
from loopir.patterns.match import keep_outputs, remove_dead
from primops.testing import trace
from torch import fx

OTHER = "meta"  # stands for a device with memory of its own
X = torch.randn(3, 4)


def rewritten(function: Callable[[torch.Tensor], torch.Tensor]) -> fx.GraphModule:
    with torch.no_grad():
        graph = trace(function, X.to(OTHER))
    keep_outputs(graph)
    create_where_read(graph)
    remove_dead(graph)
    graph.graph.lint()
    return graph


def devices(graph: fx.GraphModule) -> set[str]:
    return {n.meta["val"].device.type for n in graph.graph.nodes if n.op == "call_function"}


def value(graph: fx.GraphModule) -> torch.Tensor:
    """The graph's result with all on the CPU."""
    for node in graph.graph.nodes:
        if "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": torch.device("cpu")}
    graph.recompile()
    return graph(X)[0]


MADE = {
    "zeros as bool": lambda x: x.where(~torch.zeros(3, 4).to(x.device, torch.bool), 0),
    "full": lambda x: x + torch.full((3, 1), 2.5).to(x.device),
    "ones of float64": lambda x: x * torch.ones(4, dtype=torch.float64).to(x.device),
    "positions": lambda x: x + torch.arange(4).to(x.device),
    "a column of positions": lambda x: x + torch.arange(3).unsqueeze(1).expand(3, 4).to(x.device),
    "identity": lambda x: x @ torch.eye(4)[:, 1:].to(x.device),
    "two copies": lambda x: (
        x + torch.arange(4).to(x.device) * torch.arange(4).to(x.device, x.dtype)
    ),
}
LEFT = {
    "rounded steps": lambda x: x + torch.arange(0, 1, 0.25).to(x.device),
    "random": lambda x: x + torch.rand(4).to(x.device),
    "computed": lambda x: x + torch.full((4,), 2.0).sin().to(x.device),
}


@pytest.mark.parametrize("name", MADE)
def test_made_there(name: str) -> None:
    graph = rewritten(MADE[name])
    assert devices(graph) == {OTHER}
    torch.testing.assert_close(value(graph), MADE[name](X))


@pytest.mark.parametrize("name", LEFT)
def test_left_on_the_cpu(name: str) -> None:
    assert devices(rewritten(LEFT[name])) == {"cpu", OTHER}


def test_what_the_cpu_reads_too_stays_there() -> None:
    def both(x):
        row = torch.arange(4)
        return x + row.to(x.device) + row.sin().to(x.device)

    graph = rewritten(both)
    assert sum(node.target is torch.ops.aten.sin.default for node in graph.graph.nodes) == 1
    torch.testing.assert_close(value(graph), both(X))


STEPS = {
    "t": lambda v: v.t(), "row": lambda v: v[:1].expand(v.shape), "flat": lambda v: v.reshape(-1)[:1],
    "unsqueeze": lambda v: v.unsqueeze(-1)[..., 0], "permute": lambda v: v.permute(*range(v.dim())),
}  # fmt: skip


@given(
    fill=st.sampled_from([True, 3, -1.5]),
    dtype=st.sampled_from([torch.float32, torch.int32, torch.float16, torch.bool]),
    steps=st.lists(st.sampled_from(sorted(STEPS)), max_size=4),
)
def test_values(fill: float, dtype: torch.dtype, steps: list[str]) -> None:
    def run(x):
        made = torch.full((3, 3), fill, dtype=dtype)
        for step in steps:
            made = STEPS[step](made) if made.dim() == 2 else made
        return x.sum() + made.to(x.device)

    graph = rewritten(run)
    assert devices(graph) == {OTHER}
    torch.testing.assert_close(value(graph), run(X))
