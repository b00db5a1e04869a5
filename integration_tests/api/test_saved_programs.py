"""Saved programs in a new process: no compiler on PATH, no SymPy, no Triton, nothing captured."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torchstrata

from integration_tests.models.zoo import ZOO
from integration_tests.rule import train_step

ROOT = Path(__file__).parents[2]
NAMES = ("mlp", "resnet18", "gpt", "dlrm")
PROGRAM = """
import sys
from pathlib import Path
import torch, torchstrata
from integration_tests.api.test_saved_programs import NAMES, made, step
for name in NAMES:
    model, inputs = made(name)
    program = torchstrata.load(Path(sys.argv[1]) / f"{name}.strata", model)
    results = step(program, model, inputs)
    expected = torch.load(Path(sys.argv[1]) / f"{name}.pt")
    for key, value in expected.items():
        is_close = torch.allclose(results[key], value, rtol=1e-4, atol=1e-5)
        assert is_close, f"{name} {key}"
loaded = {module.partition(".")[0] for module in sys.modules}
assert torchstrata.counters["cache_misses"] == 0 and torchstrata.counters["graphs"] == 0
print(*sorted({"sympy", "mpmath", "triton", "networkx"} & loaded))
"""


def made(name):
    """A model of the zoo, the same in every process, and inputs."""
    torch.manual_seed(0)
    entry = next(entry for entry in ZOO if entry.name == name)
    return entry.build(), tuple(entry.inputs(3))


def step(call, model, inputs):
    """A training step and a call in evaluation mode."""
    results = train_step(call, model, inputs)
    model.eval()
    with torch.no_grad():
        results["inference"] = call(*inputs)
    return results


def with_gradient(x):
    """An input as ``train_step`` passes it."""
    is_real = torch.is_tensor(x) and x.dtype.is_floating_point
    return x.clone().requires_grad_() if is_real else x


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A directory with a file of each model, and what it computes."""
    directory = tmp_path_factory.mktemp("saved")
    for name in NAMES:
        model, inputs = made(name)
        compiled = torchstrata.compile(model)
        compiled.precompile(*(with_gradient(x) for x in inputs))
        model.eval()
        with torch.no_grad():
            compiled.precompile(*inputs)
        torchstrata.save(compiled, directory / f"{name}.strata")
        model, inputs = made(name)
        results = step(torchstrata.compile(model), model, inputs)
        torch.save(results, directory / f"{name}.pt")
    return directory


def test_a_new_process_only_loads(saved, tmp_path):
    environment = os.environ | {"PATH": str(tmp_path), "STRATA_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, str(saved)],
        capture_output=True, text=True, cwd=ROOT, env=environment,
    )  # fmt: skip
    assert not done.returncode, done.stderr
    assert done.stdout.split() == []
