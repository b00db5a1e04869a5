"""Tensors with gaps between their elements keep their strides in a program that writes to them:
reshapes copy, views raise.
"""

from __future__ import annotations

import pytest
import torch
import torchstrata

from integration_tests.repros.outcome import outcome


def _reshaped(x):
    x.mul_(2)
    return x.reshape(-1).view(-1, 4)


def _reshaped_part(x):
    x.mul_(2)
    return x[1:].flatten().add_(1)


def _viewed(x):
    x.mul_(2)
    return x.view(-1)


def _made_contiguous(x):
    x.mul_(2)
    return x.contiguous().add_(1)


def _written_through_a_view(x):
    x[1:].mul_(2)
    return x.contiguous().add_(1)


def _asked(x):
    x.mul_(2)
    return x + x.stride(0), x.is_contiguous(), x.t()


PROGRAMS = [_reshaped, _reshaped_part, _viewed, _made_contiguous, _written_through_a_view, _asked]
LAYOUTS = {
    "rows": lambda x: x[::2],
    "columns": lambda x: x[:, :4][:3],
    "transposed": lambda x: x.t()[:4, ::2].t(),
    "dense": lambda x: x[:3].clone(),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_strides_with_gaps_survive_writes(program, requires_grad, layout):
    def run(call):
        memory = torch.arange(48.0).reshape(6, 8).requires_grad_(requires_grad)
        x = LAYOUTS[layout](memory * 1)
        result = outcome(call, x)
        parts = result if isinstance(result, tuple) else (result,)
        storage = x.untyped_storage().data_ptr()
        seen = [
            (p.detach(), p.stride(), p.untyped_storage().data_ptr() == storage)
            if torch.is_tensor(p)
            else p
            for p in parts
        ]
        if requires_grad and torch.is_tensor(parts[0]):
            (parts[0] * 2).sum().backward()
        return str(seen), x.tolist(), x.stride(), str(memory.grad)

    assert run(torchstrata.compile(program)) == run(program)


def _among_gaps(x):
    x.as_strided((2, 4), (4, 1)).add_(1)


def _among_gaps_after_a_write(x):
    x[:, 1] = x.sum()
    x.as_strided((2, 4), (4, 1)).detach().add_(1)


def _read_among_gaps_after_a_write(x):
    x[:, 1] = x.sum()
    return x.as_strided((2, 4), (4, 1)) * 1


@pytest.mark.filterwarnings("ignore:a graph runs eagerly")
@pytest.mark.parametrize(
    "function", [_among_gaps, _among_gaps_after_a_write, _read_among_gaps_after_a_write]
)
def test_places_among_gaps(function):
    """The elements in gaps were not written, and read from memory that nobody had filled."""
    found = []
    for call in (function, torchstrata.compile(function)):
        memory = torch.arange(16.0).reshape(4, 4)
        found.append((call(memory[::2]), memory))
    torch.testing.assert_close(found[1], found[0])
