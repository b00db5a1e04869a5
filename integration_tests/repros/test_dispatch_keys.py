"""Guards of torch that include or exclude dispatch keys, around compiled functions."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torchstrata
from torch.utils._mode_utils import no_dispatch

C: Any = torch._C
KEY, SET = C.DispatchKey, C.DispatchKeySet
GUARDS: dict[str, Callable[[], Any]] = {
    "no dispatch": no_dispatch,
    "without Python": lambda: C._ExcludeDispatchKeyGuard(SET(KEY.Python)),
    "below autograd": C._AutoDispatchBelowAutograd,
    "below views": C._AutoDispatchBelowADInplaceOrView,
    "without views": lambda: C._ExcludeDispatchKeyGuard(SET(KEY.ADInplaceOrView)),
    "without autograd of the CPU": lambda: C._ExcludeDispatchKeyGuard(SET(KEY.AutogradCPU)),
    "forced": lambda: C._ForceDispatchKeyGuard(
        C._dispatch_tls_local_include_set(), SET(KEY.AutogradCPU)
    ),
    "Python dispatcher": C._EnablePythonDispatcher,
    "without autocast": C._DisableAutocast,
}


def _call(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x * w + 1
    return y, y.view(-1)


def _described(results: tuple[torch.Tensor, ...]) -> list[Any]:
    return [(t.detach().tolist(), t.requires_grad, t.is_leaf, t._version) for t in results]


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("name", GUARDS)
def test_guards_of_keys(name: str, warm: bool) -> None:
    torchstrata.reset()
    x, w, compiled = torch.ones(3, 2), torch.ones(2, requires_grad=True), torchstrata.compile(_call)
    if warm:
        compiled(x, w)
    with torch.autocast("cpu"):  # which one of them turns off
        for surroundings in (GUARDS[name], torch.enable_grad):
            results = []
            for call in (_call, compiled):
                with surroundings():
                    results.append(call(x, w))
            assert _described(results[1]) == _described(results[0])


def test_inside_a_custom_operator() -> None:
    torchstrata.reset()
    inner = torchstrata.compile(lambda x: x.sin() * 2, fullgraph=True)

    @torch.library.custom_op("repros::twice_sine", mutates_args=())
    def twice_sine(x: torch.Tensor) -> torch.Tensor:
        result = inner(x)
        assert not result.requires_grad
        return result

    x = torch.ones(3, requires_grad=True)
    inner(x)
    twice_sine.register_autograd(lambda ctx, g: g * 2)
    result = twice_sine(x)
    assert result.requires_grad and torch.allclose(result, x.sin() * 2)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers")
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "torchstrata"])
def test_handlers_of_signals_compute_as_ever(backend: str) -> None:
    """They run between operators on fake tensors, below autograd and inside of tracers."""
    torchstrata.reset()
    w, ready = torch.ones(3, requires_grad=True), torch.ones(3)
    inner, found, running = torchstrata.compile(lambda x: (x * 3).sum(), backend=backend), [], []
    inner(w)

    def handle(number: int, frame: Any) -> None:
        if running:
            return
        running.append(number)
        results = [inner(w), (w * 3).sum()]
        results[0].backward()
        results[1].backward()
        found.append([*_described(tuple(results)), type(w.grad)])
        running.pop()

    def call(x: torch.Tensor) -> torch.Tensor:
        for k in range(20):
            x = (x * 0.5).sin() + k
        return x

    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-3, 2e-3)
        result = torchstrata.compile(call, backend=backend)(ready)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    torch.testing.assert_close(result, call(ready))
    assert found and all(
        f == [(9.0, True, False, 0), (9.0, True, False, 0), torch.Tensor] for f in found
    ), found
