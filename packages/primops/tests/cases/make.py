"""What the cases are made of, and the table of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch

INF, NAN = float("inf"), float("nan")
GRID = [
    0.0,
    -0.0,
    0.3,
    -0.3,
    0.5,
    -0.5,
    0.999,
    1.0,
    -1.0,
    1.5,
    -1.5,
    2.5,
    3.0,
    -3.0,
    7.3,
    -7.3,
    30.0,
    -30.0,
    INF,
    -INF,
    NAN,
]


class Make:
    """Seeded tensors of one float dtype."""

    def __init__(self, dtype: torch.dtype, seed: int = 0) -> None:
        self.dtype = dtype
        self.generator = torch.Generator().manual_seed(seed)

    def f(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.generator).to(self.dtype)

    def p(self, *shape: int) -> torch.Tensor:
        """Inside (0, 1)."""
        return (torch.rand(shape, generator=self.generator) * 0.9 + 0.05).to(self.dtype)

    def i(self, high: int, *shape: int, low: int = 0) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=self.generator)

    def b(self, *shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=self.generator) > 0.5

    def grid(self) -> torch.Tensor:
        return torch.tensor(GRID).to(self.dtype)

    def pairs(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Every pair of grid values."""
        left, right = zip(*itertools.product(GRID, GRID))
        return torch.tensor(left).to(self.dtype), torch.tensor(right).to(self.dtype)


Arguments = Callable[[Make], tuple[Any, ...] | tuple[tuple[Any, ...], dict[str, Any]]]
CASES: dict[str, list[Arguments]] = {}


def case(names: str, *arguments: Arguments) -> None:
    for name in names.split():
        CASES.setdefault(name, []).extend(arguments)


def with_options(*args: Any, **options: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, options


def calls(name: str, dtype: torch.dtype) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Arguments of all cases of one operator."""
    for arguments in CASES[name]:
        made = arguments(Make(dtype))
        yield (
            made
            if len(made) == 2 and isinstance(made[0], tuple) and isinstance(made[1], dict)
            else (made, {})
        )
