"""Recorded choices: programs are the same again, whatever the rules of thumb say by then."""

from __future__ import annotations

import json
from importlib import import_module

import pytest
import torch
from hypothesis import given, settings
from loopir import (
    Options,
    check_program,
    format_any,
    format_schedule,
    lower,
    parse_kernel,
    schedule,
)
from loopir.blocks.outline import _are_runs
from loopir.ir.template import kernel_label
from primops import decompose
from primops.testing import trace
from symshapes.choices import Choices, using

from packages.loopir.tests.programs import random_program, tensor_programs

RULES = {
    "lowering.graph": {"MAX_WEIGHT": 2, "MAX_RECOMPUTED": 0},
    "lowering.reduction": {"SPLIT_WORK": 1},
    "lowering.view": {"EXPENSIVE": 1, "MAX_COPIES": 0, "MOST_SELECTED": 1},
    "schedule.build": {
        "MAX_RECOMPUTED": 0,
        "order_loops": lambda loops, *_: [*loops][::-1],
        "vector_axis": lambda *_: None,
    },
    "schedule.fusion": {"MAX_MEMBERS": 2, "SMALL_BUNDLE": 0, "SMALL_WORK": 0},
    "schedule.peak": {"GAIN": 99.0},
}


def text_of(program, choices, threads=2):
    arguments = program.arguments()
    graph = decompose(trace(program, *arguments))
    options = Options(check=True, threads=threads)
    with using(choices):
        found = schedule(lower(graph, options), options)
    check_program(found)
    lines = format_schedule(found).splitlines()
    kept = [line for line in lines if not line.startswith("# ")]
    return "\n".join([*map(format_any, found.kernels), *kept])


def replayed(program):
    first = Choices()
    text = text_of(program, first)
    first.finish()
    with pytest.MonkeyPatch.context() as patch:
        for module, values in RULES.items():
            for name, value in values.items():
                patch.setattr(import_module(f"loopir.{module}"), name, value)
        again = Choices(json.loads(json.dumps(first.made)))
        found = text_of(program, again, threads=64)
        again.finish()
        assert (again.stale, again.new) == ([], [])
        assert again.made == first.made
        other = text_of(program, None, threads=64)
    assert found == text
    return text != other


@settings(max_examples=60)
@given(tensor_programs())
def test_recorded_programs_are_the_same_under_other_rules(program):
    replayed(program)


def test_other_rules_make_other_programs():
    assert sum(replayed(random_program(seed)) for seed in range(12)) > 6


def test_a_label_is_that_of_the_text_and_not_of_the_name():
    text = """
@kernel(device='cpu')
def {name}(x: In('float32', 8), out: Out('float32', 8)):
    for i in range({extent}):
        a = load(x, [i], 'float32')
        store(out, [i], a)
"""
    one, same, other = (
        kernel_label(parse_kernel(text.format(name=name, extent=extent)))
        for name, extent in (("one", 8), ("two", 8), ("one", 4))
    )
    assert one == same != other
    assert one.startswith("kernel ")


@pytest.mark.parametrize(
    ("text", "is_known"),
    [
        ("", True),
        ("0 2 6 0", True),
        ("0 2 4 1, 4 2 2 0", True),
        ("0 3 6 0", False),
        ("0 2 8 0", False),
        ("0 2 4 2", False),
        ("0 2 4 0, 2 2 4 0", False),
        ("0 2 4", False),
        ("a b c d", False),
    ],
)
def test_runs_must_be_of_equal_calls(text, is_known):
    assert _are_runs([1, 2, 1, 2, 1, 2, 3], text) == is_known


def test_an_order_of_steps_that_breaks_a_dependency_is_stale():
    def program(x):
        y = x.sum(0)
        return torch.cumsum(torch.sort(y).values, 0)

    graph = decompose(trace(program, torch.randn(8, 8)))
    known = Choices({"order of steps": {"all": "a b c"}})
    with using(known):
        schedule(lower(graph, Options()), Options())
    assert known.stale == ["order of steps: all can't be 'a b c'"]
