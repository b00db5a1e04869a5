"""Every model of the zoo against eager: inference and training, two batch sizes, static and
dynamic, float32 and bfloat16.
"""

from __future__ import annotations

import copy

import pytest
import torch
import torchstrata

from integration_tests.models.zoo import ZOO, Entry
from integration_tests.rule import assert_by_rule, relative_errors, to_double, train_step

IDS = [entry.name for entry in ZOO]
BATCHES = (4, 6)
# In bfloat16 and of symbolic sizes one model stands for the others, whose kernels take long to
# compile.
QUICK = {("unet", "bf16"), ("gpt", "dynamic")}
LONG = {("unet", "f32", "static")}  # beside the one in bfloat16
CASES = [
    pytest.param(entry, dtype, dynamic, id=f"{entry.name}-{dtype_id}-{sizes}", marks=marks)
    for entry in ZOO
    for dtype_id, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16))
    for sizes, dynamic in (("static", None), ("dynamic", True))
    for others in [
        {(entry.name, dtype_id), (entry.name, sizes)}
        - {(entry.name, "f32"), (entry.name, "static")}
    ]
    for marks in [
        () if others <= QUICK and (entry.name, dtype_id, sizes) not in LONG else pytest.mark.slow
    ]
]


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.manual_seed(0)
    torchstrata.reset()
    with torchstrata.config.patch(fallback="error", verify="contracts"):
        yield


def build(entry: Entry, dtype: torch.dtype) -> torch.nn.Module:
    model = entry.build()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(module.weight, 0.5, 1.5)
            torch.nn.init.normal_(module.bias, std=0.1)
    return model.to(dtype)


def cast(inputs: tuple, dtype: torch.dtype) -> tuple:
    return tuple(x.to(dtype) if x.dtype.is_floating_point else x for x in inputs)


@pytest.mark.parametrize(("entry", "dtype", "dynamic"), CASES)
def test_inference_equals_eager(entry: Entry, dtype: torch.dtype, dynamic: bool | None) -> None:
    model = build(entry, dtype).eval()
    compiled = torchstrata.compile(model, dynamic=dynamic)
    for batch in BATCHES:
        inputs = cast(entry.inputs(batch), dtype)
        with torch.no_grad():
            result, eager = compiled(*inputs), model(*inputs)
            exact = to_double(model)(*to_double(inputs))
        assert_by_rule(result, eager, exact)
    if dynamic:
        assert torchstrata.counters["recompiles"] == 0
    assert torchstrata.counters["fallbacks"] == 0


@pytest.mark.parametrize(("entry", "dtype", "dynamic"), CASES)
def test_training_equals_eager(entry: Entry, dtype: torch.dtype, dynamic: bool | None) -> None:
    model = build(entry, dtype).train()
    if entry.random:
        model.eval()  # dropout off here; its own tests are in test_random.py
    twin = copy.deepcopy(model)
    compiled = torchstrata.compile(twin, dynamic=dynamic)
    for batch in BATCHES:
        typical = eager_errors(model, entry, batch, dtype)
        inputs = cast(entry.inputs(batch), dtype)
        exact = exact_step(model, inputs)
        eager = train_step(model, model, inputs)
        results = train_step(compiled, twin, inputs)
        assert results.keys() == eager.keys()
        for name, value in results.items():
            assert_by_rule(value, eager[name], exact[name], name, typical.get(name, 0.0))
        twin.load_state_dict(model.state_dict())
    assert torchstrata.counters["fallbacks"] == 0


def exact_step(model: torch.nn.Module, inputs: tuple) -> dict[str, torch.Tensor]:
    double = to_double(model)
    return train_step(double, double, to_double(inputs))


def eager_errors(
    model: torch.nn.Module, entry: Entry, batch: int, dtype: torch.dtype
) -> dict[str, float]:
    """Eager's largest error over scale of each result, on four other inputs."""
    draws = []
    for _ in range(4):
        inputs, probe = cast(entry.inputs(batch), dtype), copy.deepcopy(model)
        draws.append(relative_errors(train_step(probe, probe, inputs), exact_step(model, inputs)))
    return {name: max(draw[name] for draw in draws) for name in draws[0]}


@pytest.mark.parametrize("entry", ZOO, ids=IDS)
def test_capture_takes_the_expected_number_of_graphs(entry: Entry) -> None:
    compiled = torchstrata.compile(build(entry, torch.float32).eval())
    with torch.no_grad():
        compiled(*entry.inputs(4))
    assert torchstrata.counters["graphs"] == entry.graphs
    assert torchstrata.counters["graph_breaks"] == entry.graphs - 1


@pytest.mark.parametrize("name", ["resnet18", "gpt"])
def test_kernel_count(name: str, golden) -> None:
    entry = next(entry for entry in ZOO if entry.name == name)
    model = build(entry, torch.float32)
    lines = []
    for mode in ("inference", "training"):
        torchstrata.reset()
        compiled = torchstrata.compile(model.train(mode == "training"), fullgraph=True)
        if mode == "training":
            train_step(compiled, model, entry.inputs(4))
        else:
            with torch.no_grad():
                compiled(*entry.inputs(4))
        counts = torchstrata.counters
        lines.append(
            f"{name} {mode}: {counts['generated_kernels']} kernels, {counts['extern_calls']} "
            f"extern calls, 1 graph"
        )
        assert counts["graphs"] == 1 and counts["graph_breaks"] == 0
    print("\n".join(lines))
    golden("\n".join(lines) + "\n")
