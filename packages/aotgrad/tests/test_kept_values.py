"""Programs near the conditions of rewrites: each bit, sign of zero and alias is eager's, with
gradients and in later calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from aotgrad.testing import check_against_eager

NEGATIVE_ZERO, MIXED_ZEROS = torch.tensor([-0.0, -0.0]), torch.tensor([0.0, -0.0])


def signs(t: torch.Tensor) -> torch.Tensor:
    return torch.signbit(t)


PROGRAMS: dict[str, Callable[..., Any]] = {
    "zeros of a constant": lambda x, y: (
        signs(x[0, :2] * 0 + NEGATIVE_ZERO),
        NEGATIVE_ZERO + 0.0,
        signs(MIXED_ZEROS * x[0, :2].abs()),
    ),
    "constants themselves": lambda x, y: (
        signs(NEGATIVE_ZERO + x.new_full((2,), -0.0)),
        MIXED_ZEROS.sign() + x[0, :2],
    ),
    "neutral numbers": lambda x, y: (
        signs(x * 0 + 0.0),
        signs(x * 0 - 0.0),
        signs(x * -0.0 - -0.0),
        x * 1,
        x / 1,
        x**1,
        x - 0,
    ),
    "numbers that only look neutral": lambda x, y: (
        x * 1.0,
        x * True,
        x - -0.0,
        x + 0,
        x * -1,
        x / -1,
        x * -1 * -1,
    ),
    "slices that differ": lambda x, y: (
        x[0:1] + x[0:2].sum(0),
        x[:, ::2] + x[:, ::3].sum(),
        x[1:] * x[:-1],
        x[..., 1:3] - x[..., 0:2],
    ),
    "slices of indices": lambda x, y: (
        x[:, [0, 1]] + x[:, [1, 0]],
        x[[0], 1:] + x[[1], 1:],
        x[[0, 1], :2] - x[[0, 1], 1:3],
    ),
    "equal values with other constants": lambda x, y: (
        x.sum(0) + x.sum(1, keepdim=True),
        x.clamp(-1, 1),
        x.clamp(-1, 2),
        x + 2,
        x + 2.0,
    ),
    "one value twice": lambda x, y: (x.sin(), x.sin(), x.sin()[0]),
    "one value in three outputs": lambda x, y: (
        lambda s: (s, s * 1, s.clone(), s + 0, s.reshape(-1))
    )(x.sin()),
    "views of equal values": lambda x, y: (
        x.sin().t(),
        x.sin().reshape(-1),
        (x * 1).t(),
        x.sin()[0],
    ),
    "unbind of a stack": lambda x, y: torch.stack([x, y, x.sin()]).unbind(0),
    "unbind of a stack elsewhere": lambda x, y: (
        torch.stack([x, y], 1).unbind(0) + torch.stack([x, y], -1).unbind(2)
    ),
    "items of a stack": lambda x, y: (lambda a, b: (a + b, b.t(), a))(
        *torch.stack([x, y.t().contiguous().t()]).unbind()
    ),
    "split and joined": lambda x, y: (
        torch.cat(x.split(1)),
        torch.cat(x.chunk(2, 1), 1),
        torch.cat([x[:1], x[1:], y]),
    ),
    "overlapping strides": lambda x, y: (
        x.as_strided((2, 3), (1, 1)) + 1,
        x.as_strided((3,), (2,), 1),
        x.flatten().unfold(0, 3, 2),
    ),
    "written through strides": lambda x, y: (
        lambda s: (s.as_strided((2, 2), (4, 1), 1).mul_(2), s)
    )(x.sin()),
    "last element written": lambda x, y: (lambda s: (s[-1, -1:].zero_(), s.sum(0), s[-1, -1]))(
        x.clone()
    ),
    "first input written": lambda x, y: (x.detach().add_(1), x * y, x.detach()),
    "both inputs written": lambda x, y: (x.detach().mul_(2), y.detach().copy_(x.detach()), x + y),
    "written and read": lambda x, y: (lambda s: (s.add_(1), s.mul_(y), s))(x * 2),
    "written several times": lambda x, y: (
        lambda s: (s.fill_(3), s.fill_(4), s.clamp_(0, 1), s.clamp_(0, 1), s + y)
    )(x * 1.5),
    "broadcast together": lambda x, y: (
        *torch.broadcast_tensors(x[0], y),
        torch.broadcast_tensors(x[:, :1], y[:1])[0].sum(0),
    ),
    "broadcast and written": lambda x, y: (lambda a: (a, x[0] + a))(
        torch.broadcast_tensors(x[0].clone(), y.sum(0))[0].add(1)
    ),
    "expanded": lambda x, y: (
        x[0].expand(3, 4),
        x.expand_as(y),
        x[:, :1].expand(2, 4) * y,
        x[0].expand(1, 1, 4),
    ),
    "resized": lambda x, y: (lambda s: (s.resize_(2, 2), s + 1))(
        x.detach().clone(memory_format=torch.contiguous_format)
    ),
    "sums with one operand twice": lambda x, y: (
        x + x,
        x - x,
        torch.add(x, x, alpha=2),
        x.sum() + x.sum(),
        (x * x).sum() - y.sum(),
    ),
    "lists of tensors": lambda x, y: (
        *torch._foreach_add([x, y], 1),
        *torch._foreach_mul([x, x.t()], [2.0, 3.0]),
    ),
    "several results": lambda x, y: (*x.max(1), *x.sort(1), *x.topk(2), *torch.var_mean(x, 1)),
    "no differentiable output": lambda x, y: (x.detach() + 1, x > 0, x.argmax(), y.detach().t()),
    "one differentiable output": lambda x, y: (x.argmax(1), (x * y).sum(), y.detach()),
    "dropout of nothing or all": lambda x, y: [
        torch.dropout(x, p, train) for p in (0.0, 1.0) for train in (True, False)
    ],
    "dropout": lambda x, y: (
        torch.dropout(x, 0.5, True).sum(),
        torch.dropout(x, 0.5, False),
        torch.rand_like(y) + torch.randn(2, 4),
    ),
    "empty": lambda x, y: (x[:0].sum(), x[:0] + y[:0], torch.cat([x[:0], y]), x[:, :0].t()),
    "through views of views": lambda x, y: (
        x.reshape(-1)[1:].view(7)[::2],
        x.t()[1:].t()[:1],
        x.unsqueeze(0).squeeze(0).t(),
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_and_aliases_are_eagers(name: str) -> None:
    check_against_eager(
        PROGRAMS[name], lambda: [torch.randn(2, 4, requires_grad=True) for _ in range(2)]
    )


@pytest.mark.parametrize("name", PROGRAMS)
def test_transposed_without_gradients(name: str) -> None:
    with torch.no_grad():
        check_against_eager(PROGRAMS[name], lambda: [torch.randn(4, 2).t() for _ in range(2)])
