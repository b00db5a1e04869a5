"""The models of the zoo on a CUDA device, against eager there."""

from __future__ import annotations

import copy

import pytest
import torch
import torchstrata

from integration_tests.models.zoo import ZOO, Entry
from integration_tests.rule import assert_by_rule, relative_errors, to_double, train_step

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.manual_seed(0)
    torchstrata.reset()
    with torchstrata.config.patch(fallback="error", verify="contracts"):
        yield


def on_device(entry: Entry, batch: int) -> tuple:
    return tuple(x.cuda() for x in entry.inputs(batch))


@pytest.mark.parametrize("dynamic", [None, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("entry", ZOO, ids=[entry.name for entry in ZOO])
def test_training_equals_eager(entry: Entry, dynamic: bool | None) -> None:
    model = entry.build().cuda().train(not entry.random)
    twin = copy.deepcopy(model)
    compiled = torchstrata.compile(twin, dynamic=dynamic)
    for batch in (4, 6):
        errors: dict[str, float] = {}
        for _ in range(4):
            probe, exact_model, inputs = (
                copy.deepcopy(model),
                to_double(model),
                on_device(entry, batch),
            )
            eager = train_step(probe, probe, inputs)
            exact = train_step(exact_model, exact_model, to_double(inputs))
            for name, error in relative_errors(eager, exact).items():
                errors[name] = max(error, errors.get(name, 0.0))
        twin.load_state_dict(model.state_dict())
        for name, value in train_step(compiled, twin, inputs).items():
            assert_by_rule(value, eager[name], exact[name], name, errors.get(name, 0.0))
    assert torchstrata.counters["fallbacks"] == 0
