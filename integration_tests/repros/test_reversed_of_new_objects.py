"""A break within a loop over ``reversed(self)`` asked a new object for its length before it had its
attributes.
"""

from __future__ import annotations

import pytest
import torch
import torchstrata
from torch import nn

ASKED: list[int] = []


class Rows:
    def __init__(self, x: torch.Tensor) -> None:
        self.rows, self.total = [x, x + 1, x + 2], 0.0
        for row in reversed(self):
            self.total = self.total + row.sum().item() * len(self.rows)

    def __len__(self) -> int:
        ASKED.append(len(self.rows))
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rows[index]


def loop(x: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
    ASKED.clear()
    return x * Rows(x).total, [*ASKED]


def left(x: torch.Tensor) -> list[float]:
    iterator = reversed(Rows(x).rows)
    next(iterator)
    torch.ones(()).item()
    rows = Rows(x)
    backward = reversed(rows)
    first = next(backward).sum().item()
    return [first, *(row.sum().item() for row in backward), *(row.sum().item() for row in iterator)]


@pytest.mark.parametrize("program", [loop, left])
@pytest.mark.parametrize("backend", ["eager", "torchstrata"])
def test_results_are_eagers(program, backend):
    compiled, x = torchstrata.compile(program, backend=backend), torch.ones(3)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), program(x))


def test_a_parametrization_is_made():
    def made(x):
        torch.manual_seed(0)
        return nn.utils.parametrizations.orthogonal(nn.Linear(5, 5))(x)

    x = torch.ones(4, 5)
    torch.testing.assert_close(torchstrata.compile(made, backend="eager")(x), made(x))
