"""What is known of a tensor's elements is forgotten when they are written to, whoever counts the
write.
"""

from __future__ import annotations

import pytest
import torch
import torchstrata


def _in_a_list(t):
    torch._foreach_add_([t], 1)


def _through_data(t):
    t.data.add_(1)


def _through_detach(t):
    t.detach().add_(1)


def _by_other_data(t):
    t.data = t.data + 1


def _through_an_array(t):
    t.detach().numpy()[...] = 4


def _out(t):
    torch.add(t, 1, out=t)


WRITES = [_in_a_list, _through_data, _through_detach, _by_other_data, _through_an_array, _out]


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_constant_that_is_written_to(write, dynamic):
    def program(x):
        t = torch.tensor(2)
        first = x[:t]
        write(t)
        return first, x[:t], x * t.item()

    x = torch.arange(9.0)
    torch.testing.assert_close(torchstrata.compile(program, dynamic=dynamic)(x), program(x))


@pytest.mark.parametrize("write", WRITES)
def test_a_number_that_is_read_twice(write):
    def program(x):
        t = x.sum()
        first = t.item()
        write(t)
        return x * first, x * t.item()

    x = torch.arange(9.0)
    torch.testing.assert_close(torchstrata.compile(program, fullgraph=True)(x), program(x))
