"""Foreach ops write to one tensor after the other, and refuse what their elements would."""

from __future__ import annotations

import pytest
import torch
import torchstrata


@pytest.fixture(autouse=True)
def _strict(monkeypatch):
    torchstrata.reset()
    monkeypatch.setattr(torchstrata.config, "fallback", "error")


def _twice(x, y):
    torch._foreach_add_([x, x], 0.5)


def _crosswise(x, y):
    torch._foreach_mul_([x, y], [y, x])


def _rows(x, y):
    torch._foreach_add_([x[0], x[1], x], [y[0], y[1], y])


def _apart(x, y):
    torch._foreach_mul_([x[0], x[1:]], [y[0], y[1:]])


def _by_numbers(x, y):
    torch._foreach_addcmul_([x, x.t()], [y, y.t()], [y, y.t()], torch.tensor([2.0, 3.0]))


def _intermediate(x, y):
    z = x * 2
    torch._foreach_sub_([z, z[:1]], [y, z[1:2]], alpha=2)
    y.copy_(z)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", [_twice, _crosswise, _rows, _apart, _by_numbers, _intermediate])
def test_writes_in_turn(program, dynamic):
    given = [
        [torch.arange(12.0).view(3, 4)[:, :3], torch.arange(9.0).view(3, 3) / 4] for _ in range(2)
    ]
    program(*given[0])
    torchstrata.compile(program, fullgraph=True, dynamic=dynamic)(*given[1])
    torch.testing.assert_close(given[1], given[0])


def test_refused_in_place():
    def program(x, effects, number):
        effects.append(number)
        y = torch.tensor(number)
        torch._foreach_mul_([y], 2.0)
        return x * y

    call, effects = torchstrata.compile(program), []
    torch.testing.assert_close(call(torch.ones(2), effects, 0.5), torch.ones(2))
    with pytest.raises(RuntimeError, match="can't be cast"):
        call(torch.ones(2), effects, 2)
    assert effects == [0.5, 2]


def test_a_list_with_an_expanded_tensor_of_a_size_that_changes():
    """Only sizes that are numbers were looked at: the call was captured, and what the program had
    done before was lost.
    """

    def function(x, log):
        log.append(len(log))
        torch._foreach_add_([x, torch.arange(4.0).expand(x.shape[0], 4)], 1.0)

    log: list[int] = []
    compiled = torchstrata.compile(function, backend="eager")
    for rows in (2, 3, 5):
        with pytest.raises(RuntimeError, match="single memory location"):
            compiled(torch.ones(rows, 4), log)
    assert log == [0, 1, 2]
