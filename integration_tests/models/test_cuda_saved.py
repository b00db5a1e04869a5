"""Saved programs for CUDA devices in a new process: kernels come from the file, without Triton."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torchstrata

from integration_tests.models.zoo import ZOO

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
from pathlib import Path
import torch, torchstrata
from integration_tests.models.test_cuda_saved import made, step
model, inputs = made()
program = torchstrata.load(Path(sys.argv[1]) / "gpt.strata", model)
results, expected = step(program, model, inputs), torch.load(Path(sys.argv[1]) / "gpt.pt")
for a, b in zip(results, expected, strict=True):
    torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
assert torchstrata.counters["cache_misses"] == 0 and torchstrata.counters["graphs"] == 0
assert "triton" not in sys.modules
"""


def made():
    """A model of the zoo, the same in every process, and inputs."""
    torch.manual_seed(0)
    entry = next(entry for entry in ZOO if entry.name == "gpt")
    inputs = tuple(x.cuda() if torch.is_tensor(x) else x for x in entry.inputs(3))
    return entry.build().cuda(), inputs


def step(call, model, inputs):
    """Results of a few steps: later ones may be replays."""
    found = []
    for _ in range(3):
        model.zero_grad()
        result = call(*inputs)
        result.float().square().sum().backward()
        found += [result.detach().clone(), *(p.grad.clone() for p in model.parameters())]
    return found


def test_a_new_process_only_loads(tmp_path):
    model, inputs = made()
    compiled = torchstrata.compile(model)
    compiled.precompile(*inputs)
    torchstrata.save(compiled, tmp_path / "gpt.strata")
    torch.save(step(model, model, inputs), tmp_path / "gpt.pt")
    environment = os.environ | {"STRATA_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, str(tmp_path)],
        capture_output=True, text=True, cwd=ROOT, env=environment,
    )  # fmt: skip
    assert not done.returncode, done.stderr
