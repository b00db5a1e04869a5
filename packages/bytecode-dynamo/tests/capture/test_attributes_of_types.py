"""Attributes of objects whose types are written in C: what a type lacks is missing."""

from __future__ import annotations

import bytecode_dynamo as bd
import numpy as np
import pytest
import torch


class Point:
    def __init__(self, x):
        self.x = x


def instance_dict(x):
    d = Point(x).__dict__
    return (
        getattr(d, "missing", 3), hasattr(d, "missing"), hasattr(d, "get"), d.__class__,
        d.get("x") is x, d.__len__(), hasattr(d, "__dict__"),
    )  # fmt: skip


def attributes_of_attributes(x):
    point = Point(x)
    return [name for name in dir(point) if getattr(getattr(point, name), "missing", False)]


def globals_of_module(x):
    d = globals()
    return getattr(d, "missing", 3), d.__class__, hasattr(d, "keys")


def generator_of_torch(x):
    g = torch.Generator()
    return getattr(g, "missing", 3), hasattr(g, "manual_seed"), g.__class__


def generator_of_numpy(x):
    g = np.random.default_rng(3)
    return getattr(g, "missing", 3), hasattr(g, "normal"), g.__class__, g.normal()


@pytest.mark.parametrize(
    "f",
    [
        instance_dict, attributes_of_attributes, globals_of_module, generator_of_torch,
        generator_of_numpy,
    ],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_missing_attributes(f):
    def program(x):
        return x + 1, f(x)

    x = torch.ones(2)
    assert bd.optimize("eager")(program)(x)[1] == program(x)[1]
