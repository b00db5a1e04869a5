"""What the capture tests share: comparing an eager run with a captured one."""

from __future__ import annotations

import collections
import types
from collections.abc import Callable, Iterator
from typing import Any

import bytecode_dynamo as bd
import pytest
import torch


@pytest.fixture(autouse=True)
def strict() -> Iterator[None]:
    """Defects raise, every graph is checked against C1, and counters start at zero."""
    bd.reset()
    with bd.config.patch(fallback="error", verify=True):
        yield


def same(a: Any, b: Any) -> bool:
    """Whether two results are equal: types, tensors bit by bit with their strides, attributes of
    objects.
    """
    if isinstance(a, torch.Tensor):
        alike = (
            type(a) is type(b)
            and a.dtype == b.dtype
            and a.shape == b.shape
            and a.stride() == b.stride()
        )
        alike = alike and a.device == b.device and a.requires_grad == b.requires_grad
        return alike and (
            a.is_meta or torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())
        )
    if type(a) is not type(b):
        return False
    if isinstance(a, (list, tuple, collections.deque)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, float):
        return a == b or (a != a and b != b)
    if isinstance(a, types.SimpleNamespace):
        return same(vars(a), vars(b))
    if type(a).__eq__ is not object.__eq__:
        return a == b
    if callable(a) and not isinstance(a, type):
        return True
    return same(vars(a), vars(b)) if hasattr(a, "__dict__") else a == b


@pytest.fixture
def alike() -> Callable[[Any, Any], bool]:
    """The comparison."""
    return same


@pytest.fixture
def check() -> Callable[..., Any]:
    """``check(f, make_args, calls=1, **options)``: eager and captured runs give the same results
    and mutate arguments alike.
    """

    def run(
        f: Callable[..., Any], make: Callable[[], tuple[Any, ...]], calls: int = 2, **options: Any
    ) -> Any:
        captured = bd.optimize("eager", **{"fullgraph": True, **options})(f)
        result = None
        for _ in range(calls):
            eager_args, captured_args = make(), make()
            expected = f(*eager_args)
            result = captured(*captured_args)
            assert same(expected, result), f"expected {expected}, got {result}"
            assert same(eager_args, captured_args), (
                f"arguments: expected {eager_args}, got {captured_args}"
            )
        return result

    return run
