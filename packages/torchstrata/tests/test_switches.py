"""Each optimisation has an option; without it programs are others, and results the same."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torchstrata
from torchstrata import UsageError, config
from torchstrata.config import parse_options


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torchstrata.reset()
    yield


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norm = torch.nn.LayerNorm(12)
        self.linear = torch.nn.Linear(12, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.convolution(x)) + 1
        y = torch.softmax(self.linear(self.norm(y)), -1).transpose(2, 3)
        return (y * y.exp()).sum(1)


SWITCHES: dict[str, Any] = {
    "fusion": False, "inlining": False, "loop_order": False, "layouts": False, "templates": False,
    "vectorisation": False, "split_reductions": False, "memory_reuse": False, "patterns": False,
    "partition": "default", "cuda_graphs": False, "freeze": True,
}  # fmt: skip


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize("training", [False, True])
def test_results_without(name: str, training: bool) -> None:
    torch.manual_seed(0)
    model, x = Block(), torch.randn(2, 3, 10, 12)
    compiled = torchstrata.compile(model, options={name: SWITCHES[name], "fallback": "error"})
    with torch.set_grad_enabled(training):
        ours, eager = compiled(x), model(x)
        torch.testing.assert_close(ours, eager)
        if training:
            found = torch.autograd.grad(ours.sum(), [*model.parameters()])
            expected = torch.autograd.grad(eager.sum(), [*model.parameters()])
            torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert torchstrata.counters["fallbacks"] == 0


def kernels(function: Any, *inputs: torch.Tensor, tmp_path: Any, **options: Any) -> str:
    """The loop programs of a function, as text."""
    directory = tmp_path / "_".join(("dump", *options))
    compiled = torchstrata.compile(function, options={"dump": str(directory), **options})
    torch.testing.assert_close(compiled(*inputs), function(*inputs))
    return "\n".join(path.read_text() for path in sorted(directory.rglob("*40-loops.txt")))


def shuffled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.softmax((x.transpose(0, 1) + 1).exp() + y, -1)


def across(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.t() + y.t()


def test_loops_follow_strides_unless_loop_order_is_off(tmp_path: Any) -> None:
    inputs = torch.randn(40, 24), torch.randn(40, 24)
    usual = kernels(across, *inputs, tmp_path=tmp_path)
    without = kernels(across, *inputs, tmp_path=tmp_path, loop_order=False)
    assert "for x0 in range(960):\n" in usual
    assert "for x1 in range(40):\n" in without


@pytest.mark.parametrize("name", ["fusion", "inlining", "vectorisation"])
def test_programs_differ(name: str, tmp_path: Any) -> None:
    inputs = torch.randn(40, 24), torch.randn(24, 40)
    usual = kernels(shuffled, *inputs, tmp_path=tmp_path)
    without = kernels(shuffled, *inputs, tmp_path=tmp_path, **{name: False})
    assert usual != without
    if name == "fusion":
        assert without.count("@kernel") > usual.count("@kernel")
    if name == "vectorisation":
        assert "vector=" in usual
        assert "vector=" not in without


def test_options_are_part_of_the_key() -> None:
    keys = {
        config.with_options({name: value}).compile_settings() for name, value in SWITCHES.items()
    }
    assert len(keys | {config.compile_settings()}) == 1 + len(SWITCHES)
    assert len({config.with_options({name: v}).saved()[name] for name, v in SWITCHES.items()}) == 3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("fusion=off", {"fusion": False}),
        (
            " fusion = OFF ,partition=default,tune=1, cuda_graph_copies=8 ",
            {"fusion": False, "partition": "default", "tune": True, "cuda_graph_copies": 8},
        ),
        ("activation_memory_budget=0.5,tuning_lock=none", {"activation_memory_budget": 0.5, "tuning_lock": None}),
    ],
)  # fmt: skip
def test_text_of_options(text: str, expected: dict[str, Any]) -> None:
    assert parse_options(text) == expected
    config.with_options(expected)


def test_text_that_is_no_option() -> None:
    with pytest.raises(UsageError, match="'fusion' is no option: write NAME=VALUE"):
        parse_options("fusion")
    with pytest.raises(UsageError, match="option 'fusion' is 'maybe'; it must be bool"):
        config.with_options(parse_options("fusion=maybe"))


def run(options: str) -> subprocess.CompletedProcess[str]:
    program = "import torchstrata; c = torchstrata.config; print(c.fusion, c.partition, c.inlining)"
    environment = {**os.environ, "STRATA_OPTIONS": options}
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment
    )


def test_environment() -> None:
    assert run("fusion=off,partition=default").stdout == "False default True\n"
    wrong = run("fusio=off").stderr
    assert "STRATA_OPTIONS: unknown option 'fusio'; did you mean 'fusion'?" in wrong
