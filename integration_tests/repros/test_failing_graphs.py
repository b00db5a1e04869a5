"""Compiled graphs that raise where eager mode does not: they fail once, and something plainer runs
from then on.
"""

from __future__ import annotations

import warnings

import pytest
import torch
import torchstrata

CAUSE = "failed_graphs: RuntimeError: no such kernel"


def backend_raising(error, times=None):
    """A graph backend whose graphs raise, the first ``times`` calls or always; it lists the
    calls.
    """
    calls = []

    def backend(graph, example_inputs):
        def run(*inputs):
            calls.append(1)
            if times is None or len(calls) <= times:
                raise error
            return graph.forward(*inputs)

        return run

    backend.calls = calls
    return backend


def program(x, log):
    log.append(1)
    x.add_(1)
    return x * 2 + torch.rand(3)


def run(call, count=4):
    torch.manual_seed(0)
    x, logs = torch.zeros(3), [[] for _ in range(count)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = [call(x, log) for log in logs]
    return repr((results, x, logs, torch.rand(1))), len(caught)


def test_failing_graph_runs_once():
    backend = backend_raising(RuntimeError("no such kernel\nin line 3"))
    expected, _ = run(program)
    torchstrata.reset()
    assert run(torchstrata.compile(program, backend=backend)) == (expected, 1)
    assert len(backend.calls) == 1
    found = dict(torchstrata.counters)
    assert (found["failed_graphs"], found[CAUSE], found["fallbacks"]) == (1, 1, 1)


@pytest.mark.parametrize("sizes", [(3, 3, 3, 3), (3, 4, 5, 6)], ids=["one size", "several"])
def test_the_plain_backend_comes_first(sizes):
    backend, plain = backend_raising(RuntimeError("no such kernel")), backend_raising(None, times=0)
    backend.plain = plain
    torchstrata.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = torchstrata.compile(lambda x: x * x.shape[0], backend=backend)
        for n in (*sizes, *sizes):
            assert torch.equal(compiled(torch.ones(n)), torch.ones(n) * n)
    graphs = len({*sizes[:2]})
    assert (len(backend.calls), torchstrata.counters["failed_graphs"]) == (graphs, graphs)
    assert len(plain.calls) == 8 - graphs


def test_where_the_plain_graph_raises_too_the_captured_one_runs():
    backend, plain = (backend_raising(RuntimeError("no such kernel")) for _ in range(2))
    backend.plain = plain
    expected, _ = run(program)
    torchstrata.reset()
    assert run(torchstrata.compile(program, backend=backend)) == (expected, 2)
    assert (len(backend.calls), len(plain.calls), torchstrata.counters["failed_graphs"]) == (
        1,
        1,
        2,
    )


def attention(q, k, v):
    return ((q @ k.transpose(-1, -2)) / 4).softmax(-1) @ v


@pytest.mark.filterwarnings("ignore")
def test_a_call_of_our_own_choice_that_raises_costs_that_call_only():
    """The written-out attention becomes one call, whose kernel here refuses."""

    def refuse(*args, **kwargs):
        raise RuntimeError("no kernel for this")

    inputs = [torch.randn(2, 4, 8, 16) for _ in range(3)]
    with torch.library._scoped_library("aten", "IMPL") as library, torch.no_grad():
        library.impl("_scaled_dot_product_flash_attention_for_cpu", refuse, "CPU")
        compiled = torchstrata.compile(attention)
        torchstrata.reset()
        for n in (1, 2, 3, 4):
            torch.testing.assert_close(compiled(*inputs), attention(*inputs))
            if n == 1:
                before = dict(torchstrata.counters)
    found = torchstrata.counters
    assert (
        (found["failed_graphs"], found["fallbacks"])
        == (before["failed_graphs"], before["fallbacks"])
        == (1, 1)
    )
    # the softmax is compiled, the products are called
    assert found["generated_kernels"] > before["generated_kernels"]


def test_lack_of_memory_is_not_remembered():
    for error in (
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("[enforce] not enough memory: 8"),
    ):
        backend = backend_raising(error, times=2)
        torchstrata.reset()
        expected, _ = run(program)
        assert run(torchstrata.compile(program, backend=backend))[0] == expected
        assert len(backend.calls) == 4 and torchstrata.counters["failed_graphs"] == 0


def handling(x, i):
    try:
        return x[i] * 2
    except (RuntimeError, IndexError) as error:
        return type(error)


def test_failing_graph_under_a_handler_is_found_out():
    backend = backend_raising(RuntimeError("no such kernel"))
    compiled = torchstrata.compile(handling, backend=backend)
    x, i = torch.arange(3.0), torch.tensor([1])
    torchstrata.reset()
    assert all(torch.equal(compiled(x, i), torch.tensor([2.0])) for _ in range(6))
    assert len(backend.calls) == 2 and torchstrata.counters["failed_graphs"] == 1


def test_data_to_blame_keeps_the_graph():
    backend = backend_raising(None, times=0)
    compiled = torchstrata.compile(handling, backend=backend)
    x, good, far = torch.arange(3.0), torch.tensor([1]), torch.tensor([7])
    torchstrata.reset()
    for i in (good, far, far, good, good, far, good, good, good):
        found, expected = compiled(x, i), handling(x, i)
        assert found is expected or torch.equal(found, expected)
    before = len(backend.calls)
    compiled(x, good)
    assert len(backend.calls) == before + 1 and torchstrata.counters["failed_graphs"] == 0


def test_error_under_fullgraph():
    compiled = torchstrata.compile(
        program, backend=backend_raising(RuntimeError("no such kernel")), fullgraph=True
    )
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no such kernel"):
            compiled(torch.zeros(3), [])


def test_explain_names_the_cause():
    with pytest.warns(UserWarning, match="no such kernel"):
        found = torchstrata.explain(
            program, backend=backend_raising(RuntimeError("no such kernel"))
        )(torch.zeros(3), [])
    assert found.failures == (
        "RuntimeError: no such kernel",
    ) and "RuntimeError: no such kernel" in str(found)


@torch.library.custom_op("repro_failing_graphs::refuses", mutates_args=())
def refuses(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 2:
        raise ValueError("too large")
    return x.clone()


@refuses.register_fake
def _(x):
    return torch.empty_like(x)


def test_error_of_eager_mode_is_raised_and_not_remembered():
    compiled = torchstrata.compile(lambda x: refuses(x + 1) * 2)
    torchstrata.reset()
    for _ in range(2):
        with pytest.raises(ValueError, match="too large"):
            compiled(torch.ones(3))
    assert (
        torch.equal(compiled(-torch.ones(3)), torch.zeros(3))
        and torchstrata.counters["failed_graphs"] == 0
    )


def test_a_graph_that_eager_refuses_is_no_fallback():
    def function(x):
        return x.as_strided((1, 4), (4, 1)).add_(1)

    compiled = torchstrata.compile(function)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="out of bounds"):
            compiled(torch.empty(0, 4))
    assert torchstrata.counters["fallbacks"] == 0
