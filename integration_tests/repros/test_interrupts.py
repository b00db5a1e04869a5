"""Signals at any instant of a compilation or graph: what the handler raises reaches the program,
and nothing else stays.
"""

from __future__ import annotations

import gc
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import bytecode_dynamo
import pytest
import torch
import torchstrata
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers")


class Late(Exception):
    pass


def _raise_late(number: int, frame: Any) -> None:
    raise Late


@pytest.fixture
def alarms() -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, _raise_late)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def _state() -> tuple[Any, ...]:
    excluded = torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.Functionalize)
    stacks = (len(_get_current_dispatch_mode_stack()), torch._C._len_torch_function_stack())
    flags = (gc.isenabled(), torch.is_grad_enabled(), torch.compiler._is_compiling_flag, excluded)
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    hook = bytecode_dynamo.hook.frame_hook
    handlers = (signal.getsignal(signal.SIGALRM), signal.getsignal(signal.SIGINT))
    return (
        stacks, flags, sys.getrecursionlimit(), hooks, hook.get_region(), hook.status()["threads"],
        type(torch.ones(1)),
        handlers, torch._C._is_torch_function_enabled(),
        torch._C._functorch.peek_interpreter_stack(),
    )  # fmt: skip


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x).relu()
        for k in range(4):
            y = (y * k).sin() + x.cos()
        return y.sum()


@pytest.mark.usefixtures("alarms")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_alarms_at_many_instants(backend: str) -> None:
    model, x, late = Model(), torch.ones(2, 4), 0
    expected, before = model(x), _state()
    torchstrata.compile(model, backend=backend)(x)
    began = time.perf_counter()
    torchstrata.reset()
    torchstrata.compile(model, backend=backend)(x).backward()
    duration = time.perf_counter() - began
    for k in range(100):
        torchstrata.reset()
        compiled = torchstrata.compile(model, backend=backend)
        try:
            try:
                began = time.perf_counter()
                signal.setitimer(signal.ITIMER_REAL, 1e-4 + duration * k / 100)
                compiled(x).backward()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            duration = min(duration, time.perf_counter() - began)  # the first may have been slow
        except Late:
            late += 1
        assert _state() == before
        torch.testing.assert_close(compiled(x), expected)
    assert late > 20 and bytecode_dynamo.counters["fallbacks"] == 0


@pytest.mark.usefixtures("alarms")
def test_a_handler_that_returns_lets_the_compilation_go_on() -> None:
    calls: list[int] = []
    signal.signal(signal.SIGALRM, lambda number, frame: calls.append(number))
    model, x = Model(), torch.ones(2, 4)
    torchstrata.reset()
    signal.setitimer(signal.ITIMER_REAL, 1e-3, 1e-3)
    try:
        found = torchstrata.compile(model, backend="eager", fullgraph=True)(x)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    torch.testing.assert_close(found, model(x))
    assert calls


@pytest.mark.parametrize("where", ["backend", "graph"])
@pytest.mark.parametrize("name", ["SIGINT", "SIGUSR1"])
def test_signals_in_backends_and_graphs(where: str, name: str) -> None:
    """An exception of a handler is none of the backend, nor of an operator whose graph might run
    again in eager mode.
    """
    number = getattr(signal, name)
    expected = KeyboardInterrupt if name == "SIGINT" else TimeoutError

    def handle(number: int, frame: Any) -> None:
        raise TimeoutError

    armed = [True]

    def send() -> None:
        if armed and armed.pop():
            signal.raise_signal(number)

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        if where == "backend":
            send()

        def run(*args: Any) -> Any:
            send()
            return graph.forward(*args)

        return run

    before = signal.signal(number, handle if name != "SIGINT" else signal.default_int_handler)
    torchstrata.reset()
    state = _state()
    try:
        compiled = torchstrata.compile(lambda x: x.sin() + 1, backend=backend)
        with pytest.raises(expected):
            compiled(torch.ones(2))
        assert _state() == state
        assert torch.equal(compiled(torch.ones(2)), torch.ones(2).sin() + 1)
        assert bytecode_dynamo.counters["fallbacks"] == bytecode_dynamo.counters["reruns"] == 0
    finally:
        signal.signal(number, before)


@pytest.mark.usefixtures("alarms")
def test_signals_in_guards() -> None:
    """A guard whose Python code is interrupted has not failed."""
    log, armed = logging.getLogger("test_interrupts"), [False]
    asked = log.__class__.isEnabledFor

    def enabled(self: Any, level: int) -> bool:
        if armed[0]:
            armed[0] = False
            signal.raise_signal(signal.SIGALRM)
        return asked(self, level)

    def f(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if log.isEnabledFor(logging.CRITICAL) else x

    torchstrata.reset()
    compiled = torchstrata.compile(f, backend="eager")
    logging.Logger.isEnabledFor = enabled  # type: ignore[method-assign]
    try:
        compiled(torch.ones(2))
        armed[0] = True
        with pytest.raises(Late):
            compiled(torch.ones(2))
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
        assert bytecode_dynamo.counters["graphs"] == 1
    finally:
        logging.Logger.isEnabledFor = asked  # type: ignore[method-assign]


def test_other_threads_compile_without_handlers() -> None:
    found: list[Any] = []

    def work() -> None:
        found.append(torchstrata.compile(lambda x: x + 1, backend="eager")(torch.ones(2)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert torch.equal(found[0], torch.full((2,), 2.0))
