"""``super().name`` of what a base class written in C, or a slot, holds."""

from __future__ import annotations

import bytecode_dynamo as bd
import pytest
import torch


class Shaped(torch.Tensor):
    """Reads torch's attributes without torch functions, as torchvision's tensors do."""

    @property
    def shape(self):
        with torch._C.DisableTorchFunctionSubclass():
            return super().shape

    @property
    def ndim(self):
        return super().ndim

    @property
    def dtype(self):
        return torch.Tensor.dtype.__get__(self)

    @property
    def T(self):
        return super().T + 1

    @property
    def width(self):
        with torch._C.DisableTorchFunctionSubclass():
            return super().shape[-1]


class Slotted:
    __slots__ = ("x",)


class Raised(Slotted):
    @property
    def x(self):
        return super().x + 100


class Told(Exception):
    @property
    def args(self):
        return (1, *super().args)


HELD = Raised()
Slotted.x.__set__(HELD, 5)  # pyright: ignore


@pytest.mark.parametrize("made", [False, True])
def test_attributes_of_tensors_that_a_subclass_overrides(made):
    def f(x):
        y = x.as_subclass(Shaped) if made else x
        return hasattr(y, "shape"), y.shape, y.ndim, y.width, y.dtype, y.T

    x = torch.ones(2, 3)
    given = x if made else x.as_subclass(Shaped)
    *found, transposed = bd.optimize("eager", fullgraph=True)(f)(given)
    *expected, eagers = f(given)
    assert found == expected
    assert type(transposed) is Shaped
    assert torch.equal(transposed, eagers)


def test_slot_under_a_property_of_the_same_name():
    def f(x):
        return x + HELD.x

    x = torch.ones(1)
    assert bd.optimize("eager")(f)(x).tolist() == f(x).tolist()


def test_arguments_of_an_exception_under_a_property():
    def f(x):
        return x + 1, Told(5).args

    x = torch.ones(1)
    assert bd.optimize("eager")(f)(x)[1] == f(x)[1]
