"""What one process compiled, another only builds (loopir.cache.program_cache): the same results without
lowering, forward and backward.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap

import loopir
import pytest
import torch
import torchstrata
from torch import nn

from integration_tests.models.zoo import ZOO
from integration_tests.rule import train_step


def compiled_step(name: str, cache: str):
    torch.manual_seed(0)
    entry = next(entry for entry in ZOO if entry.name == name)
    model, inputs = entry.build(), tuple(entry.inputs(3))
    torchstrata.reset()
    call = torchstrata.compile(
        model, options={"cache_dir": cache, "verify": False, "fallback": "error"}
    )
    return train_step(call, model, inputs)


@pytest.mark.parametrize("name", ["mlp", "resnet18", "gpt", "dlrm"])
def test_a_second_compile_makes_nothing_new(name, tmp_path, monkeypatch):
    first = compiled_step(name, str(tmp_path))
    monkeypatch.setattr("primops.decompose", None)  # a call would fail
    again = compiled_step(name, str(tmp_path))
    assert torchstrata.counters["cache_misses"] == 0 and torchstrata.counters["fallbacks"] == 0
    for key, value in first.items():
        torch.testing.assert_close(again[key], value, rtol=0, atol=0, msg=key)


@pytest.mark.parametrize("name", ["mlp", "gpt"])
def test_a_cache_that_came_as_a_bundle_has_everything(name, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    expected = compiled_step(name, str(first))
    loopir.export_bundle(loopir.ArtifactStore(first), tmp_path / "bundle.zip")
    loopir.import_bundle(loopir.ArtifactStore(second), tmp_path / "bundle.zip")
    results = compiled_step(name, str(second))
    assert torchstrata.counters["cache_misses"] == 0 and torchstrata.counters["cache_hits"] > 0
    for key, value in expected.items():
        torch.testing.assert_close(results[key], value, rtol=0, atol=0, msg=key)


def test_operators_of_a_backend_are_found_in_a_new_process(tmp_path):
    program = textwrap.dedent(
        f"""
        import torch, torchstrata
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU()).eval()
        call = torchstrata.compile(model, options={{"cache_dir": {str(tmp_path)!r}, "verify": False, "fallback": "error"}})
        with torch.no_grad():
            print(call(torch.ones(1, 3, 8, 8)).sum().item(), torchstrata.counters["cache_misses"])
        """
    )
    (first, missed), (again, none) = (
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout.split()
        for _ in range(2)
    )
    assert first == again and int(missed) > 0 and int(none) == 0


def test_a_changed_model_is_not_taken_for_the_old_one(tmp_path):
    class Scale(nn.Module):
        factor = 2.0

        def forward(self, x):
            return (x * self.factor).relu()

    x = torch.randn(9)
    for factor in (2.0, 3.0, 2.0):
        torchstrata.reset()
        model = Scale()
        model.factor = factor
        call = torchstrata.compile(model, options={"cache_dir": str(tmp_path), "verify": False})
        assert torch.equal(call(x), (x * factor).relu())
