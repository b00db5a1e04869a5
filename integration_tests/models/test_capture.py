"""Capture of unmodified models: one graph, no break, and eager's results, gradients and buffers,
for several sizes.
"""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Iterator
from typing import Any

import bytecode_dynamo as bd
import pytest
import torch

if any(importlib.util.find_spec(name) is None for name in ("transformers", "timm", "torchvision")):
    pytest.skip("needs transformers, timm and torchvision", allow_module_level=True)

from integration_tests.models import hf, vision

# Models that are quick to capture stand for their family in the default suite.
QUICK = {
    "bert", "gpt2", "t5", "llama", "vit", "clip", "mixtral", "swin", "torchvision-resnet18",
}  # fmt: skip
ENTRIES = {entry.name: entry for entry in (*hf.NAMED, *hf.EXTRA, *vision.NAMED, *vision.EXTRA)}
NAMES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in ENTRIES]
# One makes a list of positions, one halves the length until nothing is left.
SPECIALISED = {"funnel", "mamba"}
DATA_DEPENDENT = {"longformer"}  # asks whether any token has global attention
# in training a random number decides of each layer whether it is skipped
LAYERS_DROPPED = {"wav2vec2", "hubert"}
SIZES = ((2, 12), (3, 16), (4, 20))


@pytest.fixture(autouse=True)
def strict() -> Iterator[None]:
    bd.reset()
    with bd.config.patch(fallback="error", verify=True):
        yield


def tensors(value: Any) -> list[torch.Tensor]:
    """The tensors of a model's result, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [leaf for held in value.values() for leaf in tensors(held)]
    if isinstance(value, (list, tuple)):
        return [leaf for held in value for leaf in tensors(held)]
    return (
        [leaf for held in vars(value).values() for leaf in tensors(held)]
        if hasattr(value, "__dict__")
        else []
    )


def assert_same(result: Any, expected: Any) -> None:
    """Equal types and tensors; the graph makes the same calls, so only convolutions may round
    differently.
    """
    assert type(result) is type(expected)
    assert len(tensors(result)) == len(tensors(expected))
    for a, b in zip(tensors(result), tensors(expected)):
        assert a.requires_grad == b.requires_grad and a.stride() == b.stride()
        torch.testing.assert_close(a, b, equal_nan=True)


def backward(model: torch.nn.Module, result: Any) -> list[torch.Tensor | None]:
    """Gradients of the sum of everything that has one."""
    loss = sum(leaf.float().sum() for leaf in tensors(result) if leaf.requires_grad)
    assert isinstance(loss, torch.Tensor)
    loss.backward()
    return [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", NAMES)
def test_one_graph_that_equals_eager(name: str, training: bool) -> None:
    entry = ENTRIES[name]
    torch.manual_seed(0)
    model = entry.build().train(training)
    twin = copy.deepcopy(model)
    found: list[Any] = []
    captured = bd.optimize("eager", on_capture=found.append)(model)
    for batch, length in SIZES:
        inputs = entry.example(model, batch, length)
        torch.manual_seed(1)
        expected = twin(**inputs)
        torch.manual_seed(1)
        result = captured(**inputs)
        assert_same(result, expected)
        assert_same(list(model.buffers()), list(twin.buffers()))
        if training:
            for a, b in zip(backward(model, result), backward(twin, expected)):
                assert (a is None) == (b is None)
                if a is not None and b is not None:
                    torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4, equal_nan=True)
            model.zero_grad()
            twin.zero_grad()
    if name in DATA_DEPENDENT or (training and name in LAYERS_DROPPED):
        return
    assert [str(item.stop) for item in found if item.stop is not None] == []
    assert len(found) <= 2 or name in SPECIALISED, "sizes that change become symbols once"
    assert bd.counters["fallbacks"] == 0
