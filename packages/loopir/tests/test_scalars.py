"""Numbers of the CPU that another device reads are moved there by one copy, wherever they are
computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loopir.patterns.match import keep_outputs
from loopir.patterns.scalars import move_scalars
from primops import TensorMeta
from primops.testing import trace
from torch import fx

OTHER = "meta"  # stands for a device with memory of its own
aten = torch.ops.aten


def moved(function: Callable[..., Sequence[torch.Tensor]], *inputs: torch.Tensor) -> fx.GraphModule:
    """The graph after the pattern, traced with inputs with dimensions on the other device."""
    there = [x.to(OTHER) if x.dim() else x for x in inputs]
    with torch.no_grad():
        graph = trace(function, *there)
    keep_outputs(graph)
    move_scalars(graph)
    graph.graph.lint()
    for node in graph.graph.nodes:
        val = node.meta.get("val")
        # of the pattern
        if node.op == "call_function" and isinstance(val, TensorMeta) and val.device.type == "cpu":
            result = node.target(*fx.map_arg(node.args, like), **node.kwargs)
            assert (tuple(result.shape), result.stride(), result.dtype) == (
                val.shape,
                val.strides,
                val.dtype,
            ), node
    return graph


def like(node: fx.Node) -> torch.Tensor:
    val = node.meta["val"]
    return torch.empty_strided(val.shape, val.stride(), dtype=val.dtype)


def values(graph: fx.GraphModule, *inputs: torch.Tensor) -> list[torch.Tensor]:
    """The graph's results with all on the CPU."""
    for node in graph.graph.nodes:
        if "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": torch.device("cpu")}
    graph.recompile()
    return list(graph(*inputs))


def copies(graph: fx.GraphModule) -> int:
    return sum(node.target is aten._to_copy.default for node in graph.graph.nodes)


def steps(count: int) -> Callable[..., list[torch.Tensor]]:
    def run(*inputs: torch.Tensor) -> list[torch.Tensor]:
        numbers, xs = inputs[:count], inputs[count:]
        return [x * (1 - 0.9 ** (number + 1)) for number, x in zip(numbers, xs, strict=True)]

    return run


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool])
def test_one_copy_for_each_dtype(dtype: torch.dtype) -> None:
    def run(a, b, x):
        return [x + a, x * b, x - a]

    inputs = (torch.ones((), dtype=dtype), torch.zeros((), dtype=dtype), torch.randn(3))
    run = run if dtype is not torch.bool else lambda a, b, x: [x + a, x * b, x * a]
    graph = moved(run, *inputs)
    assert copies(graph) == 1
    torch.testing.assert_close(values(graph, *inputs), run(*inputs))


def test_numbers_of_two_dtypes() -> None:
    inputs = (torch.tensor(2.0), torch.tensor(3), torch.randn(3))
    graph = moved(lambda a, b, x: [x * a, x * b], *inputs)
    assert copies(graph) == 2
    torch.testing.assert_close(values(graph, *inputs), [inputs[2] * 2, inputs[2] * 3])


def test_copies_of_numbers_are_one_copy() -> None:
    def run(a, b, x):
        return [x * a.to(x.device, torch.float64), x * b.to(x.device)]

    inputs = (torch.tensor(2.0), torch.tensor(3.0), torch.randn(3))
    graph = moved(run, *inputs)
    there = [
        n
        for n in graph.graph.nodes
        if n.target is aten._to_copy.default and n.meta["val"].device.type == OTHER
    ]
    assert sum(node.all_input_nodes[0].meta["val"].device.type == "cpu" for node in there) == 1


def test_a_number_alone_stays() -> None:
    graph = moved(lambda a, x: [x * a, x + a], torch.tensor(2.0), torch.randn(3))
    assert copies(graph) == 0


def test_numbers_that_the_other_device_computes_stay() -> None:
    graph = moved(
        lambda a, b, x: [(x.sum() * a) + x, x.sum() * b],
        torch.tensor(1.0),
        torch.tensor(2.0),
        torch.randn(3),
    )
    assert copies(graph) == 1


def test_constants_come_first_with_what_reads_them() -> None:
    """What a number is computed from may be a constant that stands after the first operator of the
    other device.
    """
    held = torch.tensor(5.0)

    def run(a, x):
        y = x + a
        return [y, y * held]

    inputs = (torch.tensor(2.0), torch.randn(3))
    graph = moved(run, *inputs)
    torch.testing.assert_close(values(graph, *inputs), run(*inputs))


@given(st.integers(2, 40))
def test_steps_of_an_optimizer(count: int) -> None:
    inputs = [torch.tensor(float(i)) for i in range(count)] + [
        torch.randn(2 + i % 3) for i in range(count)
    ]
    graph = moved(steps(count), *inputs)
    assert copies(graph) == 1
    torch.testing.assert_close(values(graph, *inputs), steps(count)(*inputs))


def numbers(x):
    """Numbers that the graph knows: of a tensor written out, and of a filled one."""
    three = torch.tensor(3)
    half = torch.full((), 0.5, dtype=torch.bfloat16)
    return x * three + half, torch.where(x > 1, three.type_as(x), x)


def test_known_numbers_are_written_out_on_the_other_device():
    x = torch.arange(6.0)
    graph = moved(numbers, x)
    read = [x for n in graph.graph.nodes if n.target is not aten.full.default for x in n.args]
    on = {n.meta["val"].device.type for n in read if isinstance(n, fx.Node) and "val" in n.meta}
    assert on == {OTHER}
    for found, expected in zip(values(graph, x), numbers(x), strict=True):
        assert torch.equal(found, expected)
        assert found.dtype == expected.dtype
