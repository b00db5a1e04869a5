"""A device type of somebody else's package: installed, it compiles, with no change here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import torch
import toy_device
import torchstrata
from integration_tests.models.zoo import ZOO

torchstrata.config.fallback = "error"
for name in ("mlp", "gpt"):
    entry = next(entry for entry in ZOO if entry.name == name)
    torch.manual_seed(0)
    module, inputs = entry.build().to("toy"), [x.to("toy") for x in entry.inputs(2)]
    found = []
    for program in (module, torchstrata.compile(module, fullgraph=True)):
        module.zero_grad()
        with torch.no_grad():
            inference = program(*inputs)
        result = program(*inputs)
        result.float().square().mean().backward()
        gradients = [p.grad.cpu() for p in module.parameters() if p.grad is not None]
        found.append([inference.cpu(), result.detach().cpu(), *gradients])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
print("right", toy_device.ToyCodeGenerator.launches > 20, torchstrata.counters["fallbacks"])
"""
WITHOUT = """
import torch
import toy_device
import torchstrata

toy = torch.ones(3).to("toy")
print(torchstrata.compile(lambda x: x.sin() + 1, fullgraph=True)(toy))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the package is installed, from a copy outside the repository."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    root = tmp_path_factory.mktemp("vendor")
    shutil.copytree(Path(__file__).with_name("toy_device"), root / "toy_device")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    command += ["--no-build-isolation", "--target", str(root / "site"), str(root / "toy_device")]
    subprocess.run(command, check=True)
    return root / "site"


def run(text: str, site: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(site), *filter(None, sys.path)])
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", text],
        env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip


def test_models_compile_for_it(site: Path) -> None:
    done = run(PROGRAM, site)
    assert done.stdout.split() == ["right", "True", "0"], done.stderr[-2000:]


def test_without_its_generator_the_error_names_the_device(site: Path) -> None:
    (points,) = site.glob("*.dist-info/entry_points.txt")
    text = points.read_text()
    try:
        points.write_text("")
        done = run(WITHOUT, site)
    finally:
        points.write_text(text)
    assert done.returncode == 1
    assert "no code generator for device 'toy' (there are: cpu" in done.stderr
