"""Wrapper subclasses whose flat form names an attribute that is no tensor, as DTensor's mesh, and
whose operators write to tensors of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
import torchstrata
from torch.utils import _pytree as pytree

aten = torch.ops.aten


@dataclass(frozen=True)
class Unit:
    name: str


class Measured(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, values, unit):
        return torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=values.dtype)

    def __init__(self, values, unit):
        self.values, self.unit = values, unit

    def __tensor_flatten__(self):
        return ["values", "unit"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Measured(inner["values"], inner["unit"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        plain = pytree.tree_map_only(Measured, lambda t: t.values, (args, kwargs or {}))
        values = func(*plain[0], **plain[1])
        if func is aten.relu.default:
            values = plain[0][0].clone()
            values[values < 0] = 0.0
        if func is aten.sigmoid.default:
            values[0].mul_(2)  # through a view
        return Measured(values, args[0].unit)


def measured(unit: str) -> Measured:
    return Measured(torch.randn(3, 4), Unit(unit))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "torchstrata"])
def test_an_attribute_that_is_no_tensor_is_guarded_by_equality(backend: str) -> None:
    torchstrata.reset()
    compiled = torchstrata.compile(lambda x: (x * 2).relu() + 1, backend=backend, fullgraph=True)
    for unit, graphs in (("m", 1), ("m", 1), ("s", 2)):
        x = measured(unit)
        result = compiled(x)
        assert type(result) is Measured and result.unit == Unit(unit)
        torch.testing.assert_close(result.values, (x.values * 2).relu() + 1)
        assert torchstrata.counters["graphs"] == graphs
    assert torchstrata.counters["fallbacks"] == 0


def test_a_write_of_the_class_through_a_view_is_refused() -> None:
    with pytest.raises(torchstrata.FallbackWarning, match="AG013"):
        torchstrata.compile(lambda x: x.sigmoid())(measured("m"))


def test_isinstance_of_a_union_of_classes() -> None:
    torchstrata.reset()

    def program(x: torch.Tensor) -> torch.Tensor:
        unit = Unit("m")
        return x + 1 if isinstance(unit, Unit | int) and not isinstance(x, int | str) else x

    x = torch.randn(3)
    assert torch.equal(torchstrata.compile(program, fullgraph=True)(x), x + 1)
    assert torchstrata.counters["graphs"] == 1
