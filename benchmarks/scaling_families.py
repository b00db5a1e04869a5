"""The programs of scaling.py: families of functions with a given number of ATen calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Program = tuple[Callable[..., Any], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Family:
    """``program(calls)``: a function of about that many calls, and its inputs."""

    name: str
    program: Callable[[int], Program]
    training: bool = False


def elementwise_chain(calls: int) -> Program:
    """One long chain of pointwise operations."""

    def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for _ in range(calls // 2):
            x = torch.sin(x) + y
        return x

    return run, (torch.randn(64), torch.randn(64))


def residuals(calls: int, training: bool = False) -> Program:
    """Residual blocks, each with a layer norm and a product with its own weight."""
    weights = [torch.randn(16, 16, requires_grad=training) for _ in range(calls // 4)]

    def run(x: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
        for weight in weights:
            x = x + torch.relu(torch.nn.functional.layer_norm(x, (16,)) @ weight)
        return x

    return run, (torch.randn(8, 16), weights)


def concatenations(calls: int) -> Program:
    """A window over a growing sequence: each concatenation drops the oldest columns."""
    columns = [torch.randn(4, 2) for _ in range(calls // 2)]

    def run(x: torch.Tensor, columns: list[torch.Tensor]) -> torch.Tensor:
        for column in columns:
            x = torch.cat([x[:, 2:], column], 1)
        return x

    return run, (torch.randn(4, 16), columns)


def branches_sum(calls: int) -> Program:
    """Branches of one input, added up."""

    def run(x: torch.Tensor) -> torch.Tensor:
        total = x
        for i in range(calls // 3):
            total = total + torch.relu(x * (i + 0.5))
        return total

    return run, (torch.randn(8, 16),)


def branches_cat(calls: int) -> Program:
    """Branches of one input, concatenated at once."""

    def run(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.relu(x * (i + 0.5)) for i in range(calls // 2)], 1)

    return run, (torch.randn(8, 16),)


def recurrence(calls: int) -> Program:
    """A recurrent cell over time steps."""

    def run(
        x: torch.Tensor, h: torch.Tensor, w: torch.Tensor, u: torch.Tensor, b: torch.Tensor
    ) -> torch.Tensor:
        states = []
        for t in range(calls // 6):
            h = torch.tanh(x[t] @ w + h @ u + b)
            states.append(h)
        return torch.stack(states)

    w, u = torch.randn(16, 16), torch.randn(16, 16)
    return run, (torch.randn(calls // 6, 4, 16), torch.randn(4, 16), w, u, torch.randn(16))


def reductions(calls: int) -> Program:
    """Independent reductions, each returned."""

    def run(x: torch.Tensor) -> list[torch.Tensor]:
        return [(x * (i + 0.5)).sum(1) for i in range(calls // 2)]

    return run, (torch.randn(8, 16),)


def views_and_writes(calls: int) -> Program:
    """Writes to slices and elements of one tensor, of views of another."""

    def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        for i in range(calls // 4):
            x[i % 16, 2:10] = y[i % 8].view(4, 2).t().reshape(8)
        return x

    return run, (torch.randn(16, 16), torch.randn(8, 8))


def optimizer(calls: int) -> Program:
    """Momentum and update of many small parameters, one by one."""
    count = calls // 5
    tensors = tuple([torch.randn(8) for _ in range(count)] for _ in range(3))

    def run(
        parameters: list[torch.Tensor], gradients: list[torch.Tensor], moments: list[torch.Tensor]
    ) -> None:
        for parameter, gradient, moment in zip(parameters, gradients, moments):
            moment.mul_(0.9).add_(gradient)
            parameter.sub_(moment.sqrt() * 0.1)

    return run, tensors


def lattice(calls: int, training: bool = False) -> Program:
    """Layers of 16 nodes; each node reads two of the layer before."""
    width = 16

    def run(nodes: list[torch.Tensor]) -> list[torch.Tensor]:
        for layer in range(calls // width):
            combine = torch.add if layer % 2 else torch.mul
            nodes = [combine(nodes[j], nodes[(j + 1) % width]) for j in range(width)]
        return nodes

    return run, ([torch.randn(64, requires_grad=training) for _ in range(width)],)


class Layer(nn.Module):
    """A layer of a transformer."""

    def __init__(self, width: int = 256, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attention and two products, each added to ``x``."""
        batch, length, width = x.shape
        parts = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.second_norm(x))))


def transformer(layers: int, training: bool = False) -> Program:
    """A language model with that many equal layers."""
    model = nn.Sequential(
        nn.Embedding(1000, 256), *(Layer() for _ in range(layers)), nn.LayerNorm(256),
        nn.Linear(256, 1000),
    )  # fmt: skip
    model.requires_grad_(training)
    return (lambda tokens: model(tokens)), (torch.randint(0, 1000, (2, 64)),)


TRANSFORMERS = (
    Family("transformer", transformer),
    Family("transformer_training", lambda layers: transformer(layers, True), True),
)

FAMILIES = (
    Family("elementwise_chain", elementwise_chain),
    Family("residuals", residuals),
    Family("concatenations", concatenations),
    Family("branches_sum", branches_sum),
    Family("branches_cat", branches_cat),
    Family("recurrence", recurrence),
    Family("reductions", reductions),
    Family("views_and_writes", views_and_writes),
    Family("optimizer", optimizer),
    Family("lattice", lattice),
    Family("residuals_training", lambda calls: residuals(calls, training=True), True),
    Family("lattice_training", lambda calls: lattice(calls, training=True), True),
)
