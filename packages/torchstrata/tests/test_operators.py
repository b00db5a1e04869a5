"""What is described of operators outside torch, and what has no description."""

from __future__ import annotations

import functools
import os
import types
from typing import Any

import pytest
import torch
from loopir import Undescribed
from torchstrata.operators import describe_operators

VALUES = types.ModuleType("values_of_operators")
VALUES.factor = 2.0  # type: ignore[attr-defined]
TENSOR = torch.ones(3)
FACTOR = 2.0


def described(kernel: Any) -> str:
    """The description of an operator with a kernel for fakes."""
    with torch.library._scoped_library("described", "FRAGMENT") as library:
        library.define("one(Tensor x) -> Tensor")
        torch.library.register_fake("described::one", kernel, lib=library)
        return describe_operators([torch.ops.described.one])[0]


def with_module(x):
    return x * VALUES.factor


def with_nested(x):
    def inner():
        return x * FACTOR

    return inner()


def with_attribute(x):
    return getattr(x, "real") * factors()  # noqa: B009


def factors():
    return FACTOR


class Scale:
    """What a kernel may call."""

    by = 2.0

    @staticmethod
    def scaled(x):
        return x * Scale.by


def with_class(x):
    return Scale.scaled(x)


def with_loop(x):
    return with_loop(x) if x is None else x * FACTOR


@pytest.mark.parametrize(
    ("kernel", "owner", "name"),
    [
        (with_module, VALUES, "factor"),
        (with_nested, None, "FACTOR"),
        (with_attribute, None, "FACTOR"),
        (with_class, Scale, "by"),
        (with_loop, None, "FACTOR"),
    ],
)
def test_what_a_kernel_reads_is_described(kernel, owner, name, monkeypatch):
    before = described(kernel)
    assert described(kernel) == before
    if owner is None:
        monkeypatch.setitem(kernel.__globals__, name, 3.0)
    else:
        monkeypatch.setattr(owner, name, 3.0)
    assert described(kernel) != before


def test_defaults_and_closures_are_described():
    def make(factor):
        return lambda x, shift=factor: x * factor + shift

    def shifted(shift):
        return lambda x, shift=shift: x + shift

    def partial(factor):
        return functools.partial(lambda factor, x: x * factor, factor)

    for made in (make, shifted, partial):
        assert described(made(2)) == described(made(2)) != described(made(3))


@pytest.mark.parametrize("key", ["CPU", "CompositeExplicitAutograd"])
def test_kernels_that_run_with_the_program_are_not(key):
    def describe(factor):
        with torch.library._scoped_library("described", "FRAGMENT") as library:
            library.define("one(Tensor x) -> Tensor")
            library.impl("one", lambda x: x * factor, key)
            torch.library.register_fake("described::one", torch.empty_like, lib=library)
            return describe_operators([torch.ops.described.one])[0]

    assert describe(2) == describe(3)


@pytest.mark.parametrize(
    "key", ["Meta", "CompositeImplicitAutograd", "Autograd", "AutogradCPU", "AutocastCPU"]
)
def test_kernels_that_a_trace_may_run_are_known_to_the_dispatcher_alone(key):
    with torch.library._scoped_library("described", "FRAGMENT") as library:
        library.define("one(Tensor x) -> Tensor")
        library.impl("one", lambda x: x, key)
        with pytest.raises(Undescribed, match=f"a kernel of described.one.default: {key}"):
            describe_operators([torch.ops.described.one])


def test_a_kernel_in_the_place_of_that_for_fakes_is_not_described():
    with torch.library._scoped_library("described", "FRAGMENT") as library:
        library.define("one(Tensor x) -> Tensor")
        torch.library.register_fake("described::one", torch.empty_like, lib=library)
        with torch.library._scoped_library("described", "IMPL") as other:
            other.impl("one", lambda x: x, "Meta", allow_override=True)
            with pytest.raises(Undescribed):
                describe_operators([torch.ops.described.one])


def custom(backward: Any = None) -> torch.library.CustomOpDef:
    made = torch.library.custom_op(
        "described::custom", lambda x: x.clone(), mutates_args=(), schema="(Tensor x) -> Tensor"
    )
    made.register_fake(torch.empty_like)
    if backward is not None:
        made.register_autograd(backward)
    return made


def test_the_formula_of_a_custom_operator_is_described():
    def describe(factor):
        return describe_operators([custom(lambda ctx, grad: grad * factor)._opoverload])[0]

    assert describe(2) == describe(2) != describe(3)
    assert describe_operators([custom()._opoverload])[0] != describe(2)


def test_operators_that_a_formula_calls_are_described():
    def describe(factor):
        with torch.library._scoped_library("described", "FRAGMENT") as library:
            library.define("inner(Tensor x) -> Tensor")
            torch.library.register_fake("described::inner", lambda x: x * factor, lib=library)
            outer = custom(lambda ctx, grad: torch.ops.described.inner(grad))
            return describe_operators([outer._opoverload])

    digest, operators = describe(2)
    assert [op.name() for op in operators] == ["described::custom", "described::inner"]
    assert describe(2)[0] == digest != describe(3)[0]


class Called:
    """A kernel that is no function."""

    def __call__(self, x):
        return x


def writes(x):
    global FACTOR
    FACTOR = 3.0
    return x


def computed(x):
    return x * getattr(VALUES, f"fac{'tor'}")


UNKNOWN = {
    "a tensor": lambda x: x + TENSOR,
    "an object": lambda x, made=Called(): made(x),  # noqa: B008
    "the environment": lambda x: x * len(os.environ),
    "the machine": lambda x: x * torch.cuda.is_available(),
    "what it evaluates": lambda x: eval("x"),
    "an object that is called": Called(),
    "a method": Called().__call__,
    "what it writes": writes,
    "a name that it computes": computed,
}


@pytest.mark.parametrize("what", UNKNOWN)
def test_what_is_not_known_is_not_described(what):
    with pytest.raises(Undescribed, match="the operator described.one.default"):
        described(UNKNOWN[what])


def test_operators_that_name_something_of_the_process_are_not():
    with pytest.raises(Undescribed):
        describe_operators([torch.ops._c10d_functional.all_reduce])
