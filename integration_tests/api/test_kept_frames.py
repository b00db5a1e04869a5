"""Captured functions in the cache: the next process captures nothing, and sees what changed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torchstrata

ROOT = Path(__file__).parents[2]
MODEL = """
import torch
from torch import nn
SCALE = {scale}
def scaled(x):
    return x * SCALE + {shift}
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8))
    def forward(self, x):
        {start}
        return scaled(self.layers(x)), x.shape[0]
"""
PROGRAM = """
import sys, torch, torchstrata, model
torch.manual_seed(0)
net, eager = model.Model(), model.Model()
eager.load_state_dict(net.state_dict())
for one in (net, eager):
    one.train(sys.argv[1] == "train")
compiled = torchstrata.compile(net, options={"verify": False, "fallback": "error"})
for size in map(int, sys.argv[2:]):
    x = torch.randn(size, 8)
    found, expected = compiled(x), eager(x)
    torch.testing.assert_close(found, expected)
    found[0].square().sum().backward(); expected[0].square().sum().backward()
    for a, b in zip(net.parameters(), eager.parameters()):
        torch.testing.assert_close(a.grad, b.grad)
    for a, b in zip(net.buffers(), eager.buffers()):
        torch.testing.assert_close(a, b)
print(torchstrata.counters["kept_frames"], torchstrata.counters["cache_misses"])
"""


@pytest.fixture
def process(tmp_path):
    """Runs the program in a process of its own, with a model of these values."""

    def run(*arguments: object, scale: object = 2, shift: object = 1, start: str = "pass"):
        (tmp_path / "model.py").write_text(MODEL.format(scale=scale, shift=shift, start=start))
        environment = os.environ | {
            "STRATA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]),
        }  # fmt: skip
        command = [sys.executable, "-W", "ignore", "-c", PROGRAM, *map(str, arguments)]
        done = subprocess.run(
            command, check=True, capture_output=True, text=True, cwd=ROOT, env=environment
        )
        return tuple(map(int, done.stdout.split()))

    return run


def test_another_process_captures_nothing_until_something_changes(process):
    assert process("train", 4)[0] == 0
    assert process("train", 4, 5, 6)[0] == 1
    assert process("train", 4) == (1, 0)
    assert process("train", 4, 5, 6) == (2, 0)
    assert process("train", 4, shift=3)[0] == 0
    assert process("train", 4, scale=5)[0] == 0


INFERENCE = """
import sys, torch, torchstrata
@torch.inference_mode(sys.argv[1] == "inference")
def run(call, x):
    return call(x)
def plain(x):
    return torch.relu(x) * x.shape[0]
def leaving(x):
    with torch.inference_mode(False):
        y = torch.ones(3, requires_grad=True) * 2
    return y, x + 1
for fn in (plain, leaving):
    compiled = torchstrata.compile(fn, options={"verify": False})
    for size in (4, 5, 6):
        found, expected = run(compiled, torch.ones(size, 3)), run(fn, torch.ones(size, 3))
        torch.testing.assert_close(found, expected)
        for mine, eagers in zip(*(x if isinstance(x, tuple) else (x,) for x in (found, expected))):
            assert mine.is_inference() == eagers.is_inference()
            assert mine.requires_grad == eagers.requires_grad
print(torchstrata.counters["graphs"] - torchstrata.counters["kept_frames"])
"""


def test_inference_mode(tmp_path):
    environment = os.environ | {"STRATA_CACHE_DIR": str(tmp_path)}
    captured = [
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", INFERENCE, mode],
            check=True, capture_output=True, text=True, cwd=ROOT, env=environment,
        ).stdout.strip()
        for mode in ("inference", "plain", "inference", "plain")
    ]  # fmt: skip
    assert captured == ["4", "4", "2", "2"]  # what leaves the mode is captured again


def test_a_function_that_breaks_is_listed(process, tmp_path):
    assert process("eval", 4, start="print(end='')")[0] == 0
    assert process("eval", 4, start="print(end='')")[0] == 0
    command = [sys.executable, "-m", "torchstrata", "cache", "--dir", str(tmp_path / "cache")]
    done = subprocess.run([*command, "explain"], capture_output=True, text=True, check=True)
    assert "is captured in every process: a graph break" in done.stdout
    assert process("eval", 4)[0] == 0
    assert process("eval", 4)[0] == 1


def test_nothing_is_kept_where_it_is_switched_off(tmp_path):
    options = {"verify": False, "keep_frames": False, "cache_dir": str(tmp_path)}
    torchstrata.compile(lambda x: x * 3 + 1, options=options)(torch.ones(3))
    assert not list(tmp_path.glob("??/*.frame")) and list(tmp_path.glob("??/*.graph"))
