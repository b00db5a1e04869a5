"""Equal parts of a graph become calls of one graph, and compute what they computed before."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import loopir.compile
import primops
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from loopir import GraphPass, HostProgram, Options, compile_graph
from loopir.blocks import graphs_of, outline
from loopir.blocks.runs import MIN_COUNT, MIN_PERIOD, find_runs
from loopir.ir.node import Block, ExternNode
from loopir.ir.program import Launch
from loopir.lowering import lower
from loopir.schedule import memory, schedule
from loopir.testing import EvaluatorCodeGenerator
from primops import prims
from primops.testing import trace
from symshapes import FakeTensorMode

EVALUATOR = {"cpu": EvaluatorCodeGenerator()}
WIDTH = 8


def layer(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """A residual layer with two products."""
    product = F.layer_norm(x, (x.shape[-1],)) @ up
    return x + (F.gelu(product) * product.sigmoid() + 0.5) @ down


def network(count: int, one: Callable = layer) -> tuple[Callable, list[torch.Tensor]]:
    """``count`` layers, and their arguments."""
    torch.manual_seed(0)
    weights = [torch.randn(WIDTH, WIDTH) / 3 for _ in range(2 * count)]

    def run(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        for up, down in zip(weights[::2], weights[1::2], strict=True):
            x = one(x, up, down)
        return x * 2

    return run, [torch.randn(5, WIDTH), *weights]


def calls_in(gm: torch.fx.GraphModule) -> list[int]:
    """How often a graph calls each of its graphs."""
    _, *parts = graphs_of(gm)
    return [sum(n.kwargs.get("graph") is part for n in gm.graph.nodes) for part in parts]


def build(fn: Callable, args: Sequence[Any], blocks: bool = True, **more: Any) -> HostProgram:
    options = Options(check=True, threads=2, blocks=blocks)
    return compile_graph(trace(fn, *args), args, codegens=EVALUATOR, options=options, **more)


def check(fn: Callable, args: Sequence[Any], count: int, tolerance: float = 1e-4) -> None:
    """The graph calls one graph ``count`` times; results are eager's, the launches are no more than
    without blocks.
    """
    assert calls_in(outline(trace(fn, *args))) == [count]
    host, plain = build(fn, args), build(fn, args, blocks=False)
    wanted = fn(*args)
    for got, other, value in zip(
        host(*args), plain(*args), wanted if isinstance(wanted, tuple) else (wanted,), strict=True
    ):
        torch.testing.assert_close(got, value, rtol=tolerance, atol=tolerance)
        assert got.stride() == other.stride() == value.stride()
    assert host.program.launch_count <= plain.program.launch_count


# -- periods ---------------------------------------------------------------------------------------


@settings(max_examples=200)
@given(st.integers(MIN_PERIOD, 12), st.integers(MIN_COUNT, 6), st.integers(0, 9), st.integers(0, 9))
def test_a_period_is_found_between_other_numbers(period, count, before, after):
    inside = list(range(100, 100 + period)) * count
    numbers = [*range(before), *inside, *range(50, 50 + after)]
    (run,) = find_runs(numbers)
    assert (run.start, run.period, run.length) == (before, period, period * count)


@settings(max_examples=200)
@given(st.lists(st.integers(0, 3), max_size=80))
def test_runs_repeat_and_do_not_overlap(numbers):
    taken: set[int] = set()
    for run in find_runs(numbers):
        places = range(run.start, run.start + run.length)
        assert run.period >= MIN_PERIOD and run.length >= MIN_COUNT * run.period
        assert all(numbers[i] == numbers[i + run.period] for i in places[: -run.period])
        assert taken.isdisjoint(places)
        taken.update(places)


def test_the_shortest_of_equal_periods_is_taken():
    (run,) = find_runs(list(range(8)) * 12)
    assert run.period == 8


# -- outlined graphs -------------------------------------------------------------------------------


def test_text_of_an_outlined_graph(golden):
    fn, args = network(4)
    golden(primops.text.format_graph(outline(trace(fn, *args)), lines=False, strict=False))


def test_cuts_are_where_no_fusion_is_lost():
    fn, args = network(6)
    _, part = graphs_of(outline(trace(fn, *args)))
    first = next(node for node in part.graph.nodes if node.op == "call_function")
    assert first.target is torch.ops.aten.mm.default


def test_decomposition_and_lowering_see_a_part_once():
    sizes = {}
    for count in (2, 48):
        fn, args = network(count)
        gm = primops.decompose(outline(trace(fn, *args)))
        parts = graphs_of(gm)
        lowered = lower(gm)
        calls = [n for n in lowered.nodes if isinstance(n, ExternNode) and isinstance(n.op, Block)]
        inside = [node for op in {call.op for call in calls} for node in op.graph.nodes]
        prims_seen = sum(len(part.graph.nodes) for part in parts[1:])
        sizes[count] = len(lowered.nodes) - len(calls) + len(inside)
        assert prims_seen < 40
        assert len(schedule(lowered, Options(check=True)).kernels) <= 6
    assert sizes[48] <= 1.5 * sizes[2]


def test_fewer_than_three_parts_stay():
    fn, args = network(2)
    gm = trace(fn, *args)
    assert outline(gm) is gm


def differing(name: str) -> Callable:
    numbers = iter(range(1, 100))

    def one(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        n = next(numbers)
        if name == "number":
            return layer(x, up, down) * (1 + n / 99)
        if name == "type of a number":
            return layer(x, up, down) * (1 if n % 2 else 1.0)
        if name == "dtype":
            return layer(*(t.double() if n % 2 else t for t in (x, up, down))).float()
        if name == "fill":
            return layer(x, up, down) + torch.full((WIDTH,), float(n))
        assert name == "edge"
        return layer(x, up, down if n % 2 else up)

    return one


@pytest.mark.parametrize("name", ["number", "type of a number", "dtype", "fill", "edge"])
def test_parts_that_differ_are_not_equal(name):
    fn, args = network(6, differing(name))
    gm = outline(trace(fn, *args))
    assert sum(calls_in(gm)) <= 3
    args = network(6)[1]
    (got,) = build(network(6, differing(name))[0], args)(*args)
    torch.testing.assert_close(got, network(6, differing(name))[0](*args), rtol=1e-4, atol=1e-4)


def test_constants_keep_a_part_out():
    table = torch.randn(WIDTH)
    fn, args = network(5, lambda x, up, down: layer(x, up, down) * table)
    assert calls_in(outline(trace(fn, *args))) == []


def test_static_operands_differ_from_others():
    fn, args = network(5)
    gm = trace(fn, *args)
    for node in gm.graph.find_nodes(op="placeholder")[2:4]:
        node.meta["static"] = True
    assert max(calls_in(outline(gm)), default=0) < max(calls_in(outline(trace(fn, *args))))


# -- results ---------------------------------------------------------------------------------------


def test_layers():
    check(*network(5), count=4)


def test_layers_with_saved_values():
    def run(x, *weights):
        saved = []
        for up, down in zip(weights[::2], weights[1::2], strict=True):
            hidden = F.layer_norm(x, (WIDTH,))
            product = hidden @ up
            saved += [hidden, product]
            x = x + (F.gelu(product) * product.sigmoid() + 0.5) @ down
        return (x, *saved)

    check(run, network(5)[1], count=4)


def test_results_that_are_views_of_inputs():
    def run(x, *weights):
        turned = []
        for up, down in zip(weights[::2], weights[1::2], strict=True):
            turned.append(up.t())
            x = x + F.gelu(F.layer_norm(x, (WIDTH,)) @ turned[-1]).sin().cos() @ down
        return (x, *turned)

    args = network(5)[1]
    host = build(run, args)
    results = host(*args)
    assert [r.data_ptr() for r in results[1:]] == [w.data_ptr() for w in args[1::2]]
    torch.testing.assert_close(results[0], run(*args)[0], rtol=1e-4, atol=1e-4)


def test_a_recurrence_over_the_steps_of_a_sequence():
    def run(x, h, w, u):
        out = []
        for t in range(x.shape[1]):
            gates = torch.sigmoid(x[:, t] @ w + h @ u)
            h = torch.tanh(gates * h) + gates.sin() * 0.5
            out.append(h)
        return torch.stack(out, 1)

    args = [torch.randn(3, 7, WIDTH), torch.randn(3, WIDTH)]
    args += [torch.randn(WIDTH, WIDTH) for _ in range(2)]
    gm = outline(trace(run, *args))
    assert sum(calls_in(gm)) >= 5
    host, plain = build(run, args), build(run, args, blocks=False)
    torch.testing.assert_close(host(*args)[0], run(*args), rtol=1e-4, atol=1e-4)
    assert host.program.launch_count <= plain.program.launch_count + 1


def test_small_launches_of_all_parts_are_one():
    def run(x, *rest):
        counts, weights = rest[:6], rest[6:]
        added = []
        for count, up, down in zip(counts, weights[::2], weights[1::2], strict=True):
            added.append(count + 1)
            x = layer(x, up, down)
        return (x, *added)

    x, *weights = network(6)[1]
    check(run, [x, *(torch.tensor(i) for i in range(6)), *weights], count=5)


def test_each_call_draws_numbers_of_its_own():
    def run(x, w):
        drawn = [F.dropout(F.gelu((x @ w).sin() * 2 + 1) @ w, 0.5) for _ in range(4)]
        return tuple((d.cos() + d).tanh() for d in drawn)

    args = [torch.randn(16, WIDTH), torch.randn(WIDTH, WIDTH)]
    assert sum(calls_in(outline(trace(run, *args)))) >= 3
    results = build(run, args)(*args)
    masks = [result == torch.tensor(1.0).tanh() for result in results]
    assert all(not torch.equal(a, b) for a, b in itertools.combinations(masks, 2))


def test_symbolic_sizes():
    fn, args = network(5)
    mode = FakeTensorMode()
    fakes = [
        mode.from_real(tensor, source=f"x{i}", dynamic_dims=[0] if i == 0 else [])
        for i, tensor in enumerate(args)
    ]
    with mode:
        gm = trace(fn, *fakes)
    assert calls_in(outline(gm)) == [4]
    host = compile_graph(gm, fakes, codegens=EVALUATOR, options=Options(check=True, threads=2))
    for size in (5, 1, 17):
        x = torch.randn(size, WIDTH)
        torch.testing.assert_close(host(x, *args[1:])[0], fn(x, *args[1:]), rtol=1e-4, atol=1e-4)


STEPS: dict[str, Callable] = {
    "gelu": F.gelu,
    "norm": lambda x: F.layer_norm(x, (WIDTH,)),
    "softmax": lambda x: x.softmax(-1),
    "sums": lambda x: x - x.mean(0),
    "turned": lambda x: (x.t() * 2).t(),
    "half": lambda x: x.bfloat16().float() + 1,
    "product": None,  # type: ignore[dict-item]
    "back": None,  # type: ignore[dict-item]
}


@settings(max_examples=40)
@given(st.lists(st.sampled_from(sorted(STEPS)), min_size=4, max_size=9), st.integers(3, 5))
def test_random_layers(names, count):
    def one(x, up, down):
        before = x
        for name in names:
            if name == "product":
                x = x @ up
            elif name == "back":
                x = before + x @ down
            else:
                x = STEPS[name](x)
        return torch.tanh(x)

    fn, args = network(count, one)
    host, plain = build(fn, args), build(fn, args, blocks=False)
    torch.testing.assert_close(host(*args), plain(*args), rtol=1e-4, atol=1e-4)


# -- the pipeline ----------------------------------------------------------------------------------


def test_graphs_stay_whole_for_passes_that_take_them():
    fn, args = network(5)
    seen = []
    count = GraphPass("count", "prims", lambda gm: seen.append(calls_in(gm)))
    build(fn, args, passes=[count])
    assert seen == [[]]


def test_the_option_turns_blocks_off(monkeypatch):
    fn, args = network(5)
    monkeypatch.setattr(loopir.compile, "outline", lambda gm: pytest.fail("outlined"))
    build(fn, args, blocks=False)


def test_dumps_show_a_part_once_and_are_read_again():
    fn, args = network(5)
    texts = {}
    compile_graph(
        trace(fn, *args), args, codegens=EVALUATOR, options=Options(check=True, threads=2),
        on_artifact=texts.__setitem__,
    )  # fmt: skip
    text = texts["30-prims.py"]
    assert text.count("def body_") == 1 and text.count("prims.call(") == 4
    gm = primops.text.parse_graph(text)
    (got,) = primops.evaluate(gm, args)
    torch.testing.assert_close(got, fn(*args), rtol=1e-4, atol=1e-4)
    assert any(node.target is prims.call for node in gm.graph.nodes)


def test_memory_read_from_two_places_is_not_reused_in_place():
    x = torch.randn(8)
    program = build(lambda x, y: (x.sin() + y).cos(), [x, x]).program
    (kernel,) = program.kernels
    same, apart = (Launch(0, ("a", "a", "b"), (0, start, 0)) for start in (0, 4))  # type: ignore[arg-type]
    assert memory._is_in_place(kernel, same, "a", "b")
    assert not memory._is_in_place(kernel, apart, "a", "b")
