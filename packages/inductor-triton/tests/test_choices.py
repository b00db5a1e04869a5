"""Recorded choices: sources are the same again, whatever measurements and rules say by then."""

from __future__ import annotations

import json

import primops
import pytest
import torch
from hypothesis import given, settings
from inductor_triton import generator as generators
from inductor_triton.generator import TritonCodeGenerator
from inductor_triton.kernels import codegen, heuristics
from inductor_triton.kernels.codegen import generate_sequence
from inductor_triton.kernels.passes import split_reductions
from inductor_triton.spec import Config, format_config
from inductor_triton.tuning import recorded
from inductor_triton.tuning.autotune import generate_any
from inductor_triton.tuning.candidates import candidates
from inductor_triton.tuning.recorded import MEASURED, recorded_or_measured
from loopir import Options, Template, kernel_label, lower, parse_kernel, schedule, using_choices
from loopir.testing.strategies import kernels
from primops.testing import trace
from symshapes.choices import Choices

COLUMNS = """
@kernel(device='cuda', vector='x0')
def columns(x: In('float32', 819200), out: Out('float32', 100)):
    for x0 in range(100):
        for r0 in reduce(8192):
            a = load(x, [100*r0 + x0], 'float32')
            s = reduce('sum', a, 'float32')
        store(out, [x0], s)
"""
ROWS = """
@kernel(device='cuda')
def rows(x: In('float32', 4194304), a: InOut('float32', 1024), out: Out('float32', 4194304)):
    for i in range(4096):
        for r in reduce(1024):
            v = load(x, [1024*i + r], 'float32')
            s = reduce('sum', v, 'float32')
            store(a, [r], v, mode='add')
        for r in reduce(1024):
            w = load(x, [1024*i + r], 'float32')
            d = sub(w, s)
            store(out, [1024*i + r], d)
"""


def other_rules(patch: pytest.MonkeyPatch) -> None:
    config = Config(x=2, r=2, y=1, num_warps=1)
    for name in ("reduction", "pointwise", "tiled"):
        patch.setattr(heuristics, name, lambda work: config)
    patch.setattr(codegen, "walking_grid", lambda *_: 0)
    patch.setattr(split_reductions, "SMALLEST_SHARE", 1 << 60)


def recorded_source(kernel, choices, generate=generate_sequence):
    with using_choices(choices):
        text = generate(kernel).text
    choices.finish()
    return text


def again(first):
    return Choices(json.loads(json.dumps(first.made)))


@pytest.mark.parametrize("text", [COLUMNS, ROWS])
def test_sequences_are_replayed(text, monkeypatch):
    kernel, first = parse_kernel(text), Choices()
    source = recorded_source(kernel, first)
    assert source.count("def ") > 1
    other_rules(monkeypatch)
    assert generate_sequence(kernel).text != source
    known = again(first)
    assert recorded_source(kernel, known) == source
    assert (known.made, known.stale, known.new) == (first.made, [], [])


@settings(max_examples=100)
@given(kernels(device="cuda"))
def test_random_kernels_are_replayed(kernel):
    first = Choices()
    source = recorded_source(kernel, first)
    with pytest.MonkeyPatch.context() as patch:
        other_rules(patch)
        known = again(first)
        assert recorded_source(kernel, known) == source
    assert (known.stale, known.new) == ([], [])


@pytest.mark.parametrize(
    "text",
    [
        "x=3", "x=4 wings=2", "", "x=0", "x=4 num_warps=64", "x=4 num_stages=0", "x=4 tma=1",
        "x=4 r=8 persistent=1",
    ],
)  # fmt: skip
def test_configurations_that_do_not_fit_are_stale(text):
    kernel = parse_kernel(COLUMNS)
    first = Choices()
    source = recorded_source(kernel, first)
    known = again(first)
    for name in known.known["configurations"]:
        known.known["configurations"][name] = text
    assert recorded_source(kernel, known) == source
    assert all("can't be" in each for each in known.stale)
    assert len(known.stale) == len(first.made["configurations"])


class Tuner:
    """Prefers the configuration of this number."""

    def __init__(self, number):
        self.number = number

    def choose(self, kernels):
        return [candidates(kernel)[self.number] for kernel in kernels]


def test_measured_configurations_are_replayed_without_measuring():
    kernel, first = parse_kernel(COLUMNS), Choices()
    with using_choices(first):
        generate_sequence(kernel)
        (config,) = recorded_or_measured(Tuner(3), [kernel])
        source = generate_any(kernel, config)
    assert config == candidates(kernel)[3]
    assert first.made[MEASURED] == {kernel_label(kernel): format_config(config)}
    known = again(first)
    with using_choices(known):
        generate_sequence(kernel)
        assert recorded_or_measured(None, [kernel]) == [config]
        assert generate_any(kernel, config).text == source.text
    known.finish()
    assert (known.stale, known.new) == ([], [])


def product(x, w, b):
    return torch.nn.functional.gelu(torch.nn.functional.linear(x, w, b))


def test_products_are_templates_as_recorded(monkeypatch):
    inputs = [torch.randn(*shape).half() for shape in ((64, 32), (48, 32), (48,))]
    graph = primops.decompose(trace(product, *inputs))

    def templates(choices):
        generator = TritonCodeGenerator(device="cpu", interpret=True)
        with using_choices(choices):
            program = schedule(lower(graph, Options()), Options(), {"cpu": generator})
            found = [kernel for kernel in program.kernels if isinstance(kernel, Template)]
            texts = [generator.generate_template(kernel).text for kernel in found]
        choices.finish()
        return texts

    monkeypatch.setattr(generators, "unprofitable", lambda *_: "")
    first = Choices()
    texts = templates(first)
    assert len(texts) == 1
    monkeypatch.setattr(generators, "unprofitable", lambda *_: "measured to be slower")
    monkeypatch.setattr(recorded, "matmul_config", lambda template: Config(x=16, y=16, r=16))
    assert templates(Choices()) == []
    known = again(first)
    assert templates(known) == texts
    assert (known.stale, known.new) == ([], [])
    refused = Choices()
    templates(refused)
    monkeypatch.setattr(generators, "unprofitable", lambda *_: "")
    assert templates(again(refused)) == []
