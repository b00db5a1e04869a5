"""Recorded and replayed host programs: needs a CUDA device. Every test compares many calls with
eager.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import aotgrad
import inductor_triton
import pytest
import torch
import torchstrata
from inductor_triton.attention import offered
from inductor_triton.attention.few_queries import run_few
from inductor_triton.cuda_graphs.replay import Replay
from torch import nn

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def compiled(function: Callable[..., Any], *inputs: torch.Tensor) -> Callable[..., Any]:
    """``function`` traced into an ATen graph and compiled."""
    return aotgrad.aot_function(
        function,
        forward_compiler=inductor_triton.compile_graph,
        backward_compiler=inductor_triton.compile_graph,
    )


def body(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x @ w).relu().sum(1) + x.mean(1)


def make(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda")


@pytest.fixture(autouse=True)
def fresh_counters():
    inductor_triton.counters.clear()


def check(f: Callable[..., Any], g: Callable[..., Any], *inputs: torch.Tensor) -> torch.Tensor:
    result = f(*inputs)
    torch.testing.assert_close(result, g(*inputs))
    return result


def test_replays_and_equals_eager():
    x, w = make(64, 32), make(32, 16)
    f = compiled(body, x, w)
    with torch.no_grad():
        for step in range(8):
            x.copy_(make(64, 32))
            w.add_(step)
            check(f, body, x, w)
    assert inductor_triton.counters["recorded"] == 1
    assert inductor_triton.counters["replayed"] >= 5


def test_results_that_are_held_are_not_overwritten():
    x, w = make(64, 32), make(32, 16)
    f = compiled(body, x, w)
    held, wanted = [], []
    with torch.no_grad():
        for _ in range(12):
            x.copy_(make(64, 32))
            held.append(f(x, w))
            wanted.append(body(x, w))
    for result, expected in zip(held, wanted):
        torch.testing.assert_close(result, expected)
    assert inductor_triton.counters["recorded"] in (2, 3)  # the last hands out copies
    assert inductor_triton.counters["replayed"] >= 6


def test_a_view_of_a_result_holds_it():
    x, w = make(64, 32), make(32, 16)
    f = compiled(body, x, w)
    with torch.no_grad():
        for _ in range(4):
            f(x, w)
        view = f(x, w)[3:5]
        before = view.clone()
        x.neg_()
        f(x, w)
    torch.testing.assert_close(view, before, rtol=0, atol=0)


def test_inputs_that_move_are_copied():
    w = make(32, 16)
    f = compiled(body, make(64, 32), w)
    kept = []
    with torch.no_grad():
        for _ in range(10):
            x = make(64, 32)
            kept.append(x)
            check(f, body, x, w)
    assert inductor_triton.counters["replayed"] > 0


def test_results_become_inputs():
    def step(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ w) + x

    x, w = make(16, 16), make(16, 16) / 8
    f = compiled(step, x, w)
    ours = theirs = x
    with torch.no_grad():
        for _ in range(20):
            ours, theirs = f(ours, w), step(theirs, w)
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


def test_inputs_and_views_of_them_are_results():
    def program(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x, x.t(), x @ w, (x @ w).relu()

    x, w = make(16, 16), make(16, 16)
    f = compiled(program, x, w)
    with torch.no_grad():
        for _ in range(8):
            same, turned, product, positive = f(x, w)
            assert same.data_ptr() == x.data_ptr()
            assert turned.data_ptr() == x.data_ptr()
            torch.testing.assert_close(turned, x.t())
            torch.testing.assert_close(product, x @ w)
            torch.testing.assert_close(positive, (x @ w).relu())
            x.add_(1)


def chain(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Small kernels that need each other's results, among library calls, fills and copies."""
    found = []
    for _ in range(4):
        x = torch.softmax(x @ w, -1).cumsum(0)
        x = x / x.sum(-1, keepdim=True) + x.flip(0).amax(0)
        values = x.sort(-1).values
        counts = torch.zeros_like(x).index_add(0, torch.arange(len(x), device=x.device), values)
        x = counts.roll(1, 0) - counts.mean(0) + torch.linalg.vector_norm(x)
        found += [x.sum(), x.std(1)]
    return (*found, x)


@pytest.mark.parametrize("rows", [1, 40, 513])
def test_launches_that_begin_early_wait_for_what_they_read(rows: int):
    x, w = make(rows, 96), make(96, 96)
    f = compiled(chain, x, w)
    with torch.no_grad():
        for _ in range(60):
            x.copy_(make(rows, 96))
            w.copy_(make(96, 96))
            for result, expected in zip(f(x, w), chain(x, w), strict=True):
                torch.testing.assert_close(result, expected, rtol=1e-3, atol=1e-3)
    assert inductor_triton.counters["replayed"] > 40


def own_kernels(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A chain without library calls: a launch plan."""
    found = []
    for _ in range(4):
        x = torch.softmax(x + w.sum(0).tanh(), -1).cumsum(0) / len(x)
        x = x / (x.sum(0) + 1) + x.flip(0).amax(0)
        found += [x.sum(), x.std(1)]
    return (*found, x)


def test_a_plan_of_launches_that_begin_early():
    x, w, graphs = make(300, 96), make(96, 96), inductor_triton.launch_counts()["graphs"]
    f = compiled(own_kernels, x, w)
    with torch.no_grad():
        for _ in range(200):
            x.copy_(make(300, 96))
            w.copy_(make(96, 96))
            for result, expected in zip(f(x, w), own_kernels(x, w), strict=True):
                torch.testing.assert_close(result, expected, rtol=1e-3, atol=1e-3)
    assert inductor_triton.counters["recorded"] == 0
    assert inductor_triton.launch_counts()["graphs"] - graphs > 150


def test_launches_that_begin_early_in_a_graph_of_the_user():
    x = make(7, 96)
    f = compiled(lambda x: torch.softmax(x * 2, -1) + 1, x)
    with torch.no_grad():
        f(x), f(x)
        graph, held = torch.cuda.CUDAGraph(), make(7, 96)
        with torch.cuda.graph(graph):
            held.zero_()
            held.add_(f(held))
            torch.zeros(3, device="cuda")
            held.copy_(f(held))
            result = f(held).sum()
        for _ in range(50):
            graph.replay()
        zero = torch.zeros(7, 96, device="cuda")
        expected = torch.softmax((torch.softmax(zero, -1) + 1) * 2, -1) + 1
        expected = (torch.softmax(expected * 2, -1) + 1).sum()
        torch.testing.assert_close(result, expected)


def test_attention_of_few_queries_is_recorded(monkeypatch):
    calls = []

    def run(*operands: Any) -> None:
        calls.append(operands[0].key.shape[1])
        run_few(*operands)

    monkeypatch.setattr(offered, "run_few", run)
    query, cache = make(1, 32, 1, 64), make(2, 1, 8, 512, 64)
    mask = torch.arange(512, device="cuda")[None, None, None] < 300

    def attend(query: torch.Tensor, cache: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        keys, values = (
            x[:, :, None].expand(-1, -1, 4, -1, -1).reshape(1, 32, 512, 64) for x in cache
        )
        found = nn.functional.scaled_dot_product_attention(query, keys, values, mask)
        return found.transpose(1, 2).reshape(1, -1) + 1

    f = torchstrata.compile(attend, fullgraph=True)
    with torch.no_grad():
        for _ in range(12):
            query.copy_(make(1, 32, 1, 64))
            expected = attend(query, cache, mask)
            torch.testing.assert_close(f(query, cache, mask), expected, rtol=1e-3, atol=1e-3)
    assert inductor_triton.counters["replayed"] > 4
    assert {*calls} == {8}


def test_random_numbers_differ_between_replays():
    def noisy(x: torch.Tensor) -> torch.Tensor:
        return torch.dropout(x, 0.5, True) @ x

    x = torch.eye(64, device="cuda")
    f = compiled(noisy, x)
    with torch.no_grad():
        masks = [f(x).clone() for _ in range(8)]
    assert len({tuple(mask.flatten().tolist()) for mask in masks}) == 8
    assert inductor_triton.counters["replayed"] >= 5


@pytest.mark.parametrize("accumulate", [False, True])
def test_training(accumulate: bool):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 1)).cuda()
    other = nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 1)).cuda()
    other.load_state_dict(model.state_dict())

    compiled_model = aotgrad.aot_module(
        model,
        forward_compiler=inductor_triton.compile_graph,
        backward_compiler=inductor_triton.compile_graph,
    )
    losses: list[list[torch.Tensor]] = [[], []]
    for number, (net, call) in enumerate(((model, compiled_model), (other, other))):
        torch.manual_seed(1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            x = make(16, 32)
            loss = call(x).square().mean()
            if not accumulate or step % 2 == 0:
                optimizer.zero_grad(set_to_none=not accumulate)
            loss.backward()
            optimizer.step()
            losses[number].append(loss.detach())
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-3, atol=1e-4)
    assert inductor_triton.counters["replayed"] > 0


def test_another_stream_gets_its_own_recording():
    x, w = make(64, 32), make(32, 16)
    f = compiled(body, x, w)
    with torch.no_grad():
        for _ in range(5):
            check(f, body, x, w)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(5):
                check(f, body, x, w)
        torch.cuda.synchronize()
    assert inductor_triton.counters["recorded"] == 2


def test_inside_a_graph_of_the_user():
    x, w = make(64, 32), make(32, 16)
    f = compiled(body, x, w)
    with torch.no_grad():
        for _ in range(3):
            f(x, w)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = f(x, w)
        for _ in range(3):
            x.add_(1)
            graph.replay()
            torch.testing.assert_close(result, body(x, w))


def test_library_calls_that_check_their_result():
    def counts(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.inv(x) @ x + x.relu()

    x = make(8, 8) + 8 * torch.eye(8, device="cuda")
    f = compiled(counts, x)
    with torch.no_grad():
        for _ in range(6):
            check(f, counts, x)


def test_a_recording_that_fails_leaves_stream_generator_and_memory_as_they_were(monkeypatch):
    run = Replay._run

    def waits_in_a_capture(self: Replay, *args: Any) -> list[object]:
        if torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize()
        return run(self, *args)

    monkeypatch.setattr(Replay, "_run", waits_in_a_capture)
    stream, x, w = torch.cuda.current_stream(), make(64, 32), make(32, 16)
    f = compiled(body, x, w)
    with torch.no_grad():
        for _ in range(6):
            check(f, body, x, w)
    assert inductor_triton.counters["refused"] == 1
    assert torch.cuda.current_stream() == stream
    torch.manual_seed(0)
    first = make(1000)
    torch.manual_seed(0)
    assert torch.equal(make(1000), first)
    torch.cuda.empty_cache()
    reserved, large = torch.cuda.memory_reserved(), make(1 << 24)
    del large
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == reserved


@pytest.mark.parametrize(
    "setting", ["PYTORCH_NO_CUDA_MEMORY_CACHING=1", "PYTORCH_ALLOC_CONF=backend:cudaMallocAsync"]
)
def test_allocators_without_pools(setting: str):
    program = """
import torch, inductor_triton, torchstrata
f = torchstrata.compile(lambda x: (x @ x).relu().sum(1) + torch.rand_like(x[0]).mean())
x = torch.ones(8, 8, device="cuda")
for _ in range(6):
    assert 64 <= f(x)[0] < 65
assert inductor_triton.counters["recorded"] == 0
"""
    name, _, value = setting.partition("=")
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, name: value},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_an_index_out_of_range_raises_in_a_later_call():
    def pick(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return (table[index] @ table).relu()

    table, index = make(16, 16), torch.zeros(16, dtype=torch.int64, device="cuda")
    f = compiled(pick, table, index)
    with torch.no_grad():
        for _ in range(5):
            check(f, pick, table, index)
        index.fill_(99)
        with pytest.raises(IndexError):
            for _ in range(3):
                f(table, index)
                torch.cuda.synchronize()


def test_small_programs_are_not_recorded():
    def small(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    f = compiled(small, make(4))
    for _ in range(6):
        f(make(4))
    assert not inductor_triton.counters["recorded"]
