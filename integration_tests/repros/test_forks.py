"""A fork while another thread compiles: the child collects, compiles and ends like any process."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import bytecode_dynamo
import pytest
import symshapes
import torch
import torchstrata

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def _in_child(check: Callable[[], None]) -> int:
    """The exit status of a forked child that runs ``check``; it is killed when it hangs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        status = 1
        try:
            check()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    for _ in range(600):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return -9


class Paused:
    """Another thread that stands still in the middle of something, until the block ends."""

    def __init__(self, work: Callable[[Callable[[], None]], Any]) -> None:
        self._inside, self._go = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=work, args=(self._pause,))

    def _pause(self) -> None:
        self._inside.set()
        self._go.wait(60)

    def __enter__(self) -> None:
        self._thread.start()
        assert self._inside.wait(60)

    def __exit__(self, *args: object) -> None:
        self._go.set()
        self._thread.join()


def _while_capturing(pause: Callable[[], None]) -> Any:
    @bytecode_dynamo.assume_constant_result
    def known() -> int:
        pause()
        return 3

    return torchstrata.compile(lambda x: x * known(), backend="eager")(torch.ones(2))


def _while_compiling(pause: Callable[[], None]) -> Any:
    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        pause()
        return graph.forward

    return torchstrata.compile(lambda x: x * 3, backend=backend)(torch.ones(2))


def _while_running(pause: Callable[[], None]) -> Any:
    def run(x: torch.Tensor) -> torch.Tensor:
        bytecode_dynamo.disable(pause)()
        return x + 1

    return torchstrata.compile(run, backend="eager")(torch.ones(2))


def _while_quiet(pause: Callable[[], None]) -> None:
    with symshapes.quiet:
        pause()


def _while_locked(pause: Callable[[], None]) -> None:
    with bytecode_dynamo.api._lock, symshapes.quiet._lock:
        pause()


def _is_sound(limit: int) -> None:
    assert gc.isenabled() and not torch.compiler.is_compiling()
    assert sys.getrecursionlimit() == limit
    assert (
        bytecode_dynamo.hook.frame_hook.status()["threads"] == 0
        and not bytecode_dynamo.hook.frame_hook.status()["installed"]
    )
    torchstrata.reset()
    compiled = torchstrata.compile(lambda x: x.sin() * 2, backend="aot_eager")
    assert torch.equal(compiled(torch.ones(2)), torch.ones(2).sin() * 2)
    assert gc.isenabled() and bytecode_dynamo.counters["graphs"] == 1
    torch.ones(2, device="meta").norm()
    assert not hasattr(torch._compile, "getattr")


PLACES = (_while_capturing, _while_compiling, _while_running, _while_quiet, _while_locked)


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__.removeprefix("_while_"))
def test_the_child_is_sound(place: Callable[..., Any]) -> None:
    limit = sys.getrecursionlimit()
    with Paused(place):
        assert _in_child(lambda: _is_sound(limit)) == 0
    assert gc.isenabled() and not torch.compiler.is_compiling()


def test_a_child_of_the_compiling_thread_goes_on_compiling() -> None:
    found: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        def check() -> None:
            assert not gc.isenabled()

        found.append(_in_child(check))
        return graph.forward

    torchstrata.reset()
    assert torch.equal(
        torchstrata.compile(lambda x: x + 1, backend=backend)(torch.ones(2)), torch.full((2,), 2.0)
    )
    assert found == [0] and gc.isenabled()
