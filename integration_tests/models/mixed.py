"""Modules with parameters in float32 that get bfloat16 values, with and without autocast, against
eager mode.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
import torchstrata
from torch import nn

IMAGE, ROWS, VECTORS = (2, 8, 10, 10), (2, 7, 8), (4, 8)
REFUSALS = RuntimeError, ValueError


class Function(nn.Module):
    """A function of the input and of parameters of these shapes."""

    def __init__(self, function: Callable[..., Any], *shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.function = function
        self.weights = nn.ParameterList([nn.Parameter(torch.rand(shape)) for shape in shapes])

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x, *self.weights)


MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "convolution": (lambda: nn.Conv2d(8, 6, 3), IMAGE),
    "group norm": (lambda: nn.GroupNorm(2, 8), IMAGE),
    "group norm of one group": (lambda: nn.GroupNorm(1, 8), (2, 8, 10)),
    "group norm without parameters": (lambda: nn.GroupNorm(2, 8, affine=False), IMAGE),
    "layer norm": (lambda: nn.LayerNorm(8), ROWS),
    "rms norm": (lambda: nn.RMSNorm(8), ROWS),
    "batch norm": (lambda: nn.BatchNorm2d(8), IMAGE),
    "linear": (lambda: nn.Linear(8, 6), ROWS),
    "encoder layer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), ROWS),
    "prelu": (lambda: nn.PReLU(8), IMAGE),
    "log sigmoid": (nn.LogSigmoid, ROWS),
    "softplus": (nn.Softplus, ROWS),
    "log softmax": (lambda: nn.LogSoftmax(-1), ROWS),
    "preferences": (lambda: Function(lambda x, y: -F.logsigmoid(x - y).mean(), VECTORS), VECTORS),
    "several labels": (
        lambda: Function(lambda x: F.multilabel_soft_margin_loss(x, torch.ones_like(x))),
        VECTORS,
    ),
    "soft margin": (
        lambda: Function(lambda x, y: F.soft_margin_loss(x, y.round() * 2 - 1), VECTORS), VECTORS
    ),
    "squared error": (lambda: Function(F.mse_loss, VECTORS), VECTORS),
    "smooth error": (lambda: Function(F.smooth_l1_loss, VECTORS), VECTORS),
    "attention": (
        lambda: Function(
            lambda x, q, k: F.scaled_dot_product_attention(x @ q, x @ k, x), (8, 8), (8, 8)
        ),
        ROWS,
    ),
    "products": (
        lambda: Function(lambda x, v, w: torch.linalg.multi_dot([x, v, w]), (8, 8), (8, 4)), VECTORS
    ),
    "lstm": (lambda: nn.LSTM(8, 6), ROWS),
    "gru": (lambda: nn.GRU(8, 6), ROWS),
    "rnn": (lambda: nn.RNN(8, 6), ROWS),
    "gru cell": (lambda: nn.GRUCell(8, 6), VECTORS),
    "gru cell without biases": (lambda: nn.GRUCell(8, 6, bias=False), VECTORS),
    "lstm cell": (lambda: nn.LSTMCell(8, 6), VECTORS),
    "rnn cell": (lambda: nn.RNNCell(8, 6), VECTORS),
}  # fmt: skip


def step(
    call: Callable[..., Any], net: nn.Module, x: torch.Tensor, autocast: bool
) -> list[torch.Tensor]:
    """The result, and gradients of the input and of the parameters."""
    x = x.clone().requires_grad_()
    mode = torch.autocast(x.device.type, torch.bfloat16)
    with mode if autocast else contextlib.nullcontext():
        result = call(x)
    result = result[0] if isinstance(result, tuple) else result
    weights = torch.linspace(0.5, 1.5, result.numel(), dtype=torch.float64, device=x.device)
    loss = (result.double() * weights.view(result.shape)).sum()
    return [result.detach(), *torch.autograd.grad(loss, [x, *net.parameters()])]


def check(name: str, device: str, dtype: torch.dtype, autocast: bool) -> None:
    """Compares with eager mode, if that takes such operands."""
    torch.manual_seed(0)
    make, shape = MODULES[name]
    net, x = make().to(device), torch.randn(shape, device=device).to(dtype)
    try:
        expected = step(net, net, x, autocast)
    except REFUSALS:
        return
    before = torchstrata.counters["fallbacks"]
    found = step(torchstrata.compile(net), net, x, autocast)
    assert torchstrata.counters["fallbacks"] == before
    for a, b in zip(found, expected, strict=True):
        size = b.double().abs().max().item()
        torch.testing.assert_close(a, b, rtol=0.03, atol=0.03 * size + 1e-3)
