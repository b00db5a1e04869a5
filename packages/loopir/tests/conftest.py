"""Fixtures: compile a Python function through prims and the evaluator, and compare with eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import primops
import pytest
import torch
from loopir import HostProgram, Options, compile_graph
from loopir.testing import EvaluatorCodeGenerator
from primops.testing import trace
from symshapes import FakeTensorMode

EVALUATOR = {"cpu": EvaluatorCodeGenerator()}


def compile_function(fn: Callable[..., Any], args: Sequence[Any], **options: Any) -> HostProgram:
    """The host program of ``fn``, traced on ``args``."""
    graph = primops.decompose(trace(fn, *args))
    return compile_graph(
        graph, args, codegens=EVALUATOR, options=Options(check=True, threads=2, **options)
    )


def assert_same(got: Sequence[Any], expected: Any, tolerance: float) -> None:
    """Values, dtypes, shapes and strides."""
    expected = expected if isinstance(expected, tuple) else (expected,)
    assert len(got) == len(expected)
    for result, reference in zip(got, expected, strict=True):
        torch.testing.assert_close(
            result, reference, rtol=tolerance, atol=tolerance, equal_nan=True
        )
        for size, a, b in zip(reference.shape, result.stride(), reference.stride(), strict=True):
            assert size <= 1 or a == b, (result.stride(), reference.stride())


@pytest.fixture
def compiled():
    """``compiled(fn, *args, **options)`` is the host program of a function."""
    return lambda fn, *args, **options: compile_function(fn, args, **options)


@pytest.fixture
def run():
    """``run(fn, *args)`` compiles, compares with eager and returns the host program."""

    def check(
        fn: Callable[..., Any], *args: Any, tolerance: float = 1e-4, **options: Any
    ) -> HostProgram:
        host = compile_function(fn, args, **options)
        assert_same(host(*args), fn(*args), tolerance)
        return host

    return check


@pytest.fixture
def run_dynamic():
    """``run_dynamic(fn, make, dynamic_dims)`` traces with symbolic sizes and compares at several
    values of ``make(n)``.
    """

    def check(
        fn: Callable,
        make: Callable,
        dims: Sequence[Sequence[int]],
        sizes: Sequence[int] = (8, 3, 16),
    ) -> HostProgram:
        mode = FakeTensorMode()
        fakes = [
            mode.from_real(tensor, source=f"x{i}", dynamic_dims=list(d))
            for i, (tensor, d) in enumerate(zip(make(sizes[0]), dims, strict=True))
        ]
        with mode:
            graph = primops.decompose(trace(fn, *fakes))
        host = compile_graph(
            graph, fakes, codegens=EVALUATOR, options=Options(check=True, threads=2)
        )
        for size in sizes:
            args = make(size)
            assert_same(host(*args), fn(*args), 1e-4)
        return host

    return check
