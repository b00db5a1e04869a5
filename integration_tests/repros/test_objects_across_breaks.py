"""Objects that the variables of a frame hold at a graph break: looking at them changes nothing."""

from __future__ import annotations

import functools
import gc

import torch
import torchstrata


def scaled(x, scale=2.0, *, shift=1.0):
    return x * scale + shift


def test_partial_of_a_partial_made_after_a_break():
    def program(x):
        inner = functools.partial(scaled, scale=3.0)
        torchstrata.graph_break()
        torchstrata.graph_break()
        made = [functools.partial(inner, shift=x)]
        torchstrata.graph_break()
        return (
            made[0](x),
            made[0].keywords["scale"],
            made[0].func is scaled,
            [type(v) for v in gc.get_referents(inner)],
        )

    x = torch.ones(1)
    assert repr(torchstrata.compile(program, backend="eager")(x)) == repr(program(x))
