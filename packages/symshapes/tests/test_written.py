"""What is known of a fake's elements ends with a write, whichever version counter tells of it."""

from __future__ import annotations

import pytest
import torch
from symshapes import FakeTensorMode, ShapeEnv

WRITES = {
    "in place": lambda t: t.add_(1),
    "out": lambda t: torch.add(t, 1, out=t),
    "in a list": lambda t: torch._foreach_add_([t], 1),
    "through data": lambda t: t.data.add_(1),
    "through a view": lambda t: t.view(1)[0].add_(1),
    "through a detached view": lambda t: t.detach().view(1).add_(1),
}


def assigned(t):
    t.data = t + 1


@pytest.mark.parametrize("write", [*WRITES.values(), assigned], ids=[*WRITES, "assigned"])
def test_known_numbers_end(write):
    mode = FakeTensorMode(ShapeEnv())
    with mode:
        t = torch.tensor(2)
    assert t.known_number == 2
    with mode:
        write(t)
    assert t.known_number is None


@pytest.mark.parametrize("write", [*WRITES.values(), assigned], ids=[*WRITES, "assigned"])
def test_numbers_are_read_again(write):
    mode = FakeTensorMode(ShapeEnv(allow_unbacked=True))
    t = mode.from_real(torch.tensor(2))
    with mode:
        first = t.item()
        assert t.item().node.expr == first.node.expr
        write(t)
        assert t.item().node.expr != first.node.expr


def test_other_memory_keeps_what_is_known():
    with FakeTensorMode(ShapeEnv()):
        t, other = torch.tensor(2), torch.tensor(3)
        other.add_(1)
    assert t.known_number == 2


def test_lists_raise_versions():
    mode = FakeTensorMode(ShapeEnv())
    fake, real = mode.from_real(torch.ones(2)), torch.ones(2)
    for t in (fake, real):
        torch._foreach_mul_([t], 2.0)
    assert fake._version == real._version


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(
    "write", [lambda x: torch._foreach_mul_([x], 1.5), lambda x: torch._foreach_sqrt_([x])]
)
def test_lists_refuse_results_of_other_dtypes(device, write):
    with FakeTensorMode(ShapeEnv()):
        x = torch.ones(3, dtype=torch.int64, device=device)
        torch._foreach_mul_([x], 2)
        with pytest.raises(RuntimeError, match="can't be cast"):
            write(x)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_lists_refuse_elements_that_are_written_twice(device):
    with FakeTensorMode(ShapeEnv()):
        x = torch.ones(1, device=device).expand(3)
        with pytest.raises(RuntimeError, match="single memory location"):
            torch._foreach_add_([torch.ones(2, device=device), x], 1)
        assert torch._foreach_add([x], 1)[0].shape == (3,)
