"""First calls from several threads: one captures, the others wait and use what it captured."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import symshapes
import torch
import torchstrata
from bytecode_dynamo.capture import turns

SIZES = (3, 5, 7, 11)


def _in_threads(works: Sequence[Callable[[], Any]]) -> list[Any]:
    """The results, or exceptions, of functions that run at once."""
    results: list[Any] = [None] * len(works)
    barrier = threading.Barrier(len(works))

    def run(i: int) -> None:
        barrier.wait()
        try:
            results[i] = works[i]()
        except BaseException as error:
            results[i] = error

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    return results


@pytest.fixture(autouse=True)
def _reset(monkeypatch: pytest.MonkeyPatch) -> Any:
    torchstrata.reset()
    monkeypatch.setattr(torchstrata.config, "fallback", "error")
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.parametrize("backend", ["eager", "torchstrata"])
@pytest.mark.parametrize(("dynamic", "graphs"), [(False, 4), (None, 2)])
def test_graphs_are_those_of_one_thread(backend: str, dynamic: bool | None, graphs: int) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    compiled = torchstrata.compile(model, backend=backend, dynamic=dynamic)
    inputs = [torch.randn(size, 8) for size in SIZES]
    expected = [model(x) for x in inputs]

    def work(first: int) -> None:
        for i in range(len(SIZES)):
            k = (first + i) % len(SIZES)
            torch.testing.assert_close(compiled(inputs[k]), expected[k])

    assert _in_threads([lambda i=i: work(i) for i in range(16)]) == [None] * 16
    assert torchstrata.counters["graphs"] == graphs and not torchstrata.counters["fallbacks"]


def test_gradients() -> None:
    compiled = torchstrata.compile(lambda x: (x.sin() * x).sum(), dynamic=False)

    def work(size: int) -> bool:
        x = torch.arange(float(size), requires_grad=True)
        compiled(x).backward()
        return torch.allclose(x.grad, x.cos() * x + x.sin())

    assert all(_in_threads([lambda i=i: work(SIZES[i % 4]) for i in range(16)]))
    assert torchstrata.counters["graphs"] == 4


def test_gradients_on_threads_of_autograd() -> None:
    """Other gradients than the first need programs that are compiled in backward."""

    def double(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.sin() * x, x.cos()

    compiled = torchstrata.compile(double)

    def work(of: int) -> bool:
        x = torch.arange(5.0, requires_grad=True)
        (first,) = torch.autograd.grad(compiled(x)[of].sum(), x, create_graph=True)
        (expected,) = torch.autograd.grad(double(x)[of].sum(), x, create_graph=True)
        seconds = [torch.autograd.grad(value.sum(), x)[0] for value in (first, expected)]
        return torch.allclose(first, expected) and torch.allclose(*seconds)

    assert all(_in_threads([lambda i=i: work(i % 2) for i in range(8)]))
    assert torchstrata.counters["graphs"] == 1


@pytest.mark.parametrize("backend", ["aot_eager", "torchstrata"])
def test_different_programs_at_once(backend: str) -> None:
    programs: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda x: torch.nn.functional.gelu(x).sum(0),
        lambda x: (x @ x.T).softmax(-1).clamp(min=0),
        lambda x: torch.stack([x, x * 2]).mean(0)[1:].sin(),
        lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]) + x.amax(),
        lambda x: torch.einsum("ij,kj->ik", x, x).std(),
        lambda x: x.exp().log1p().cumsum(0),
    ]

    def work(program: Callable[[torch.Tensor], torch.Tensor]) -> None:
        x = torch.arange(12.0).reshape(3, 4).div(12).requires_grad_()
        y = x.detach().clone().requires_grad_()
        result, expected = torchstrata.compile(program, backend=backend)(x), program(y)
        torch.testing.assert_close(result, expected)
        result.sum().backward()
        expected.sum().backward()
        torch.testing.assert_close(x.grad, y.grad)

    assert _in_threads([lambda p=p: work(p) for p in programs]) == [None] * len(programs)


# -- what a capture may wait for -------------------------------------------------------------------


def test_captures_that_need_each_other() -> None:
    met = threading.Barrier(2)
    compiled: dict[str, Any] = {}
    inside = threading.local()

    def calls(other: str) -> Callable[..., Any]:
        def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
            if not getattr(inside, "now", False):
                inside.now = True
                met.wait(60)
                compiled[other](torch.ones(2))
            return graph.forward

        return backend

    compiled["a"] = torchstrata.compile(lambda x: x + 1, backend=calls("b"))
    compiled["b"] = torchstrata.compile(lambda x: x * 2, backend=calls("a"))
    a, b = _in_threads([lambda: compiled["a"](torch.ones(2)), lambda: compiled["b"](torch.ones(2))])
    assert torch.equal(a, torch.full((2,), 2.0)) and torch.equal(b, torch.full((2,), 2.0))


@pytest.mark.parametrize("same", [False, True])
def test_backend_that_waits_for_a_thread(same: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "STALLED_AFTER", 0.3)
    monkeypatch.setattr(turns, "LOOKED_AT_EVERY", 0.1)
    found: list[Any] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        if not found:
            found.append(None)
            called = compiled if same else torchstrata.compile(lambda x: x - 1)
            found.extend(_in_threads([lambda: called(torch.ones(2))]))
        return graph.forward

    compiled = torchstrata.compile(lambda x: x + 1, backend=backend)
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    assert torch.equal(found[1], torch.full((2,), 2.0 if same else 0.0))


def test_same_code_inside_of_its_capture() -> None:
    results: list[Any] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        if not results:
            results.append(None)
            results.append(compiled(torch.ones(3)))
        return graph.forward

    compiled = torchstrata.compile(lambda x: x + 1, backend=backend, dynamic=False)
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    assert torch.equal(results[1], torch.full((3,), 2.0))


def test_exceptions_reach_every_thread() -> None:
    failing = True

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        if failing:
            raise ValueError("not today")
        return graph.forward

    compiled = torchstrata.compile(lambda x: x + 1, backend=backend)
    results = _in_threads([lambda: compiled(torch.ones(2))] * 6)
    assert all("not today" in str(error) for error in results)
    failing = False
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    assert torchstrata.counters["graphs"] == 7


class _Capturing:
    """A thread that captures ``compiled`` and stays in the backend until ``go`` is set."""

    def __init__(self) -> None:
        self.inside, self.go = threading.Event(), threading.Event()
        self.captures, self.process = 0, os.getpid()
        self.compiled = torchstrata.compile(lambda x: x + 1, backend=self._backend)
        self.thread = threading.Thread(target=self.compiled, args=(torch.ones(2),), daemon=True)

    def _backend(self, graph: torch.fx.GraphModule, inputs: Any) -> Any:
        self.captures += 1
        if os.getpid() == self.process:
            self.inside.set()
            self.go.wait(60)
        return graph.forward

    def __enter__(self) -> _Capturing:
        self.thread.start()
        assert self.inside.wait(60)
        return self

    def __exit__(self, *exception: object) -> None:
        self.go.set()
        self.thread.join(60)


def test_interrupt_while_waiting() -> None:
    with _Capturing() as other:
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            other.compiled(torch.ones(2))
    assert torch.equal(other.compiled(torch.ones(2)), torch.full((2,), 2.0))
    assert other.captures == 1


def test_interrupt_while_another_thread_traces() -> None:
    inside, go = threading.Event(), threading.Event()

    def trace() -> None:
        with symshapes.deferred():
            inside.set()
            go.wait(60)

    thread = threading.Thread(target=trace, daemon=True)
    thread.start()
    assert inside.wait(60)
    compiled = torchstrata.compile(lambda x: x + 1, backend="eager")
    threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        compiled(torch.ones(2))
    go.set()
    thread.join()
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_child_captures_what_another_thread_was_capturing() -> None:
    with _Capturing() as other:
        child = os.fork()
        if not child:
            os._exit(not torch.equal(other.compiled(torch.ones(2)), torch.full((2,), 2.0)))
        status = os.waitpid(child, 0)[1]
    assert os.waitstatus_to_exitcode(status) == 0
