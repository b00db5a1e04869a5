"""Devices with and without a number are one where tensors on them are."""

from __future__ import annotations

import pytest
import torch
import torchstrata
from symshapes import FakeTensorMode, ShapeEnv


def test_a_device_without_a_number_is_the_current_one():
    with FakeTensorMode(ShapeEnv()):
        x, y = torch.ones(2, device="cuda"), torch.ones(2, device="cuda:0")
        assert (x + y).device == x.device == y.device == torch.device("cuda", 0)
        assert torch.ones(2, device="cpu:0").device == torch.device("cpu")


def devices(x, device):
    made = torch.zeros(2, device=device)
    return (
        made.device,
        made.device == torch.device("cpu"),
        made.device == device,
        x.device == device,
        x.to(device).device,
    )


def test_a_number_of_the_cpu():
    compiled, x = torchstrata.compile(devices, fullgraph=True), torch.ones(2)
    for name in ("cpu", "cpu:0"):
        device = torch.device(name)
        assert compiled(x, device) == devices(x, device)


def by_device(x):
    properties = torch.cuda.get_device_properties(x.device)
    if torch.cuda.get_device_capability() >= (9, 0) and properties.multi_processor_count > 1:
        x = x * 2
    return x + len(torch.cuda.get_device_name(torch.cuda.current_device()))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_questions_about_a_device_do_not_break():
    x = torch.ones(2, device="cuda")
    assert torch.equal(torchstrata.compile(by_device, fullgraph=True)(x), by_device(x))


def places(x):
    return x.argmax(), x.argmin(), x.double().argmax(), x.argmax(1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("shape", [(1, 131), (4, 60), (1, 70000)])
def test_places_of_the_largest_in_one_row(shape):
    x = torch.randn(shape, device="cuda")
    assert all(map(torch.equal, torchstrata.compile(places)(x), places(x)))


def test_questions_about_a_device_answer_as_eager_mode_does(monkeypatch):
    monkeypatch.setattr(torch.cuda, "_lazy_init", refuse)
    with pytest.raises(RuntimeError, match="no device here"):
        torchstrata.compile(lambda x: x * torch.cuda.get_device_capability()[0])(torch.ones(2))


def refuse():
    raise RuntimeError("no device here")
