"""Models quantised by torchao: weights of its classes, one graph."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torchstrata
from torch import nn

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its kernels for other devices
    torchao = pytest.importorskip("torchao")
    from torchao import quantization
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    from torchao.quantization import qat

INT4 = {"weight_dtype": torch.int4}
GROUPS = quantization.PerGroup(32)
CONFIGURATIONS: dict[str, Callable[[], Any]] = {
    "int8": quantization.Int8WeightOnlyConfig,
    "int8 groups": lambda: quantization.Int8WeightOnlyConfig(granularity=GROUPS),
    "int8 activations": quantization.Int8DynamicActivationInt8WeightConfig,
    "int4": lambda: quantization.IntxWeightOnlyConfig(**INT4, granularity=GROUPS),
    "int4 and int8 activations": lambda: quantization.Int8DynamicActivationIntxWeightConfig(
        **INT4, weight_granularity=GROUPS
    ),
    "float8": quantization.Float8WeightOnlyConfig,
}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 128), nn.Linear(128, 64, bias=False)
        self.norm = nn.LayerNorm(64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.down(torch.relu(self.up(x))))


def quantised(name: str) -> nn.Module:
    torch.manual_seed(0)
    model = Block()
    quantization.quantize_(model, CONFIGURATIONS[name]())
    return model


def assert_one_graph() -> None:
    counters = torchstrata.counters
    assert counters["graph_breaks"] == counters["fallbacks"] == 0


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_inference(name: str) -> None:
    torchstrata.reset()
    model = quantised(name)
    call = torchstrata.compile(model)
    with torch.no_grad():
        for length in (5, 7, 9):
            x = torch.randn(2, length, 64)
            torch.testing.assert_close(call(x), model(x), rtol=1e-4, atol=1e-5)
    assert_one_graph()
    assert torchstrata.counters["graphs"] == 2


def fake_quantised() -> nn.Module:
    model = Block()
    base = CONFIGURATIONS["int4 and int8 activations"]()
    quantization.quantize_(model, qat.QATConfig(base, step="prepare"))
    return model


TRAINED: dict[str, Callable[[], nn.Module]] = {
    "beside int8 weights": lambda: quantised("int8"),
    "quantisation aware": fake_quantised,
    "float8": lambda: convert_to_float8_training(Block(), config=Float8LinearConfig(emulate=True)),
}


@pytest.mark.parametrize("name", TRAINED)
def test_training(name: str) -> None:
    torchstrata.reset()
    torch.manual_seed(0)
    model = TRAINED[name]()
    for parameter in model.parameters():
        parameter.requires_grad_(type(parameter.data) is torch.Tensor)
    twin = copy.deepcopy(model)
    found = []
    for call, owner in ((torchstrata.compile(model), model), (twin, twin)):
        torch.manual_seed(1)
        x = torch.randn(16, 64, requires_grad=True)
        call(x).square().sum().backward()
        found.append([x.grad, *(p.grad for p in owner.parameters() if p.requires_grad)])
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-4)
    assert_one_graph()
