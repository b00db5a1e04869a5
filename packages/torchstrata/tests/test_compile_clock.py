"""The budget for compilation, and the line that shows a long one."""

from __future__ import annotations

import io
import logging
import time
from typing import Any

import pytest
import torch
import torchstrata
from torchstrata import UsageError, compile_clock
from torchstrata.compile_clock import CompileClock


def attend(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x.sin() @ x.mT, -1).cos() @ x


def trained(options: dict[str, Any]) -> int:
    """Trains one step; how many graphs were compiled cheaply."""
    torchstrata.reset()
    x = torch.randn(6, 5, requires_grad=True)
    result = torchstrata.compile(attend, options={"verify": False, **options})(x)
    torch.testing.assert_close(result, attend(x))
    torch.testing.assert_close(
        torch.autograd.grad(result.sum(), x), torch.autograd.grad(attend(x).sum(), x)
    )
    return torchstrata.counters["cheaper_graphs"]


def test_graphs_beyond_the_budget_are_cheaper_and_not_kept(tmp_path, caplog) -> None:
    with caplog.at_level(logging.WARNING, logger="torchstrata.progress"):
        assert trained({"cache_dir": str(tmp_path), "compile_seconds": 0}) == 2
    (record,) = caplog.records
    assert "0 seconds of compilation are spent" in record.getMessage()
    assert not list(tmp_path.glob("??/*.graph"))
    assert trained({"cache_dir": str(tmp_path), "compile_seconds": 1000}) == 0
    assert list(tmp_path.glob("??/*.graph"))
    # what is in the cache needs no budget
    assert trained({"cache_dir": str(tmp_path), "compile_seconds": 0}) == 0


@pytest.mark.parametrize("value", [-1, "30", True, float("nan")])
def test_what_is_no_number_of_seconds_is_refused(value: object) -> None:
    with pytest.raises(UsageError, match="compile_seconds.*a number from 0 on, or None"):
        torchstrata.compile(attend, options={"compile_seconds": value})


def test_seconds_are_those_of_all_compilations() -> None:
    clock = CompileClock(0.03)
    with clock.running(""):
        assert not clock.is_over()
        time.sleep(0.02)
    with clock.running(""):
        time.sleep(0.02)
        assert clock.is_over()
    assert 0.04 <= clock.seconds() < 10


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("has_rich", [False, True])
def test_a_long_compilation_is_shown_on_a_terminal(monkeypatch, has_rich: bool) -> None:
    if has_rich:
        pytest.importorskip("rich")
    else:
        monkeypatch.setattr(compile_clock.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(compile_clock, "DELAY", 0.02)
    monkeypatch.setattr(compile_clock, "INTERVAL", 0.01)
    monkeypatch.setattr(compile_clock.sys, "stderr", terminal := Terminal())
    monkeypatch.setenv("TERM", "xterm")
    clock = CompileClock(600)
    with clock.running('  File "model.py", line 3, in f\n    return x'):
        clock.doing = "forward, loops"
        time.sleep(0.3)
    assert 'compiling File "model.py", line 3, in f (forward, loops), 0 of 600 s' in " ".join(
        terminal.getvalue().split()
    )


def test_a_short_one_is_not(monkeypatch) -> None:
    monkeypatch.setattr(compile_clock.sys, "stderr", terminal := Terminal())
    with CompileClock().running(""):
        pass
    assert terminal.getvalue() == ""
