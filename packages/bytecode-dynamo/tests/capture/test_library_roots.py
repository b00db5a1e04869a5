"""Functions without a frame of their own: builtins, functions of torch, decorated and cached
ones.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from bytecode_dynamo import counters, optimize


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * 2


@torch.no_grad()
def without_gradients(x: torch.Tensor) -> torch.Tensor:
    return x * 3


TARGETS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "builtin": torch.sin,
    "method": torch.Tensor.relu,
    "function of torch": F.gelu,
    "Python function of torch": functools.partial(F.softmax, dim=0),
    "decorated": without_gradients,
    "partial of a builtin": functools.partial(torch.add, 1.0),
    "composition": torch.nn.functional.normalize,
}


@pytest.mark.parametrize("name", TARGETS)
def test_one_graph(name: str) -> None:
    target = TARGETS[name]
    compiled = optimize(fullgraph=True)(target)
    x = torch.randn(4, 3, requires_grad=True)
    counters.clear()
    for _ in range(2):
        torch.testing.assert_close(compiled(x), target(x))
        assert compiled(x).requires_grad == target(x).requires_grad
    assert counters["graphs"] == 1


def test_two_builtins_of_one_optimizer() -> None:
    region = optimize()
    sin, cos = region(torch.sin), region(torch.cos)
    x = torch.randn(3)
    for _ in range(2):
        torch.testing.assert_close(sin(x), x.sin())
        torch.testing.assert_close(cos(x), x.cos())


def test_what_has_no_tensors_runs() -> None:
    assert optimize()(math.sqrt)(4.0) == 2.0
    assert optimize()(functools.lru_cache(doubled))(torch.zeros(2)).tolist() == [0.0, 0.0]
