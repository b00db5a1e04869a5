"""The autograd layer alone, eager kernels on both sides: saved bytes, step time, compile time, cost
per call.
"""

from __future__ import annotations

import copy
import functools
import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import bytecode_dynamo
import torch
import torch.nn.functional as F
from aotgrad import aot_backend, aot_function, run_eager
from torch import nn

from benchmarks.measure import alternate

INCUMBENT = "aot_eager_decomp_partition"


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads, self.dropout = heads, dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        split = (b, t, self.heads, c // self.heads)
        q, k, v = (
            p.view(split).transpose(1, 2) for p in self.qkv(self.norms[0](x)).split(c, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c)
        x = x + F.dropout(self.proj(y), self.dropout, self.training)
        y = self.down(F.gelu(self.up(self.norms[1](x))))
        return x + F.dropout(y, self.dropout, self.training)


class GPT(nn.Module):
    """A decoder with tied embeddings that returns its loss."""

    def __init__(
        self,
        layers: int = 12,
        width: int = 256,
        heads: int = 4,
        vocabulary: int = 2048,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(512, width)
        self.blocks = nn.ModuleList([Block(width, heads, dropout) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions(
            torch.arange(tokens.shape[1], device=tokens.device)
        )
        for block in self.blocks:
            x = block(x)
        logits = self.norm(x) @ self.tokens.weight.t()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Bottleneck(nn.Module):
    """ResNet's block of three convolutions."""

    def __init__(self, inner: int, outer: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_convolution(inner, width, 1, 1), nn.ReLU(inplace=True),
            *_convolution(width, width, 3, stride), nn.ReLU(inplace=True),
            *_convolution(width, outer, 1, 1),
        )  # fmt: skip
        self.shortcut = (
            nn.Sequential(*_convolution(inner, outer, 1, stride))
            if inner != outer
            else nn.Identity()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.shortcut(x), inplace=True)


def _convolution(inner: int, outer: int, kernel: int, stride: int) -> list[nn.Module]:
    return [nn.Conv2d(inner, outer, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outer)]


class ResNet50(nn.Module):
    """The 50-layer residual network, with its loss."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            *_convolution(3, 64, 7, 2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        ]
        inner = 64
        for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for i in range(count):
                layers.append(Bottleneck(inner, 4 * width, width, stride if i == 0 else 1))
                inner = 4 * width
        self.net = nn.Sequential(
            *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inner, 100)
        )

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.net(images), labels)


def gpt_and_batch(dropout: float = 0.0) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    return GPT(dropout=dropout), (
        torch.randint(0, 2048, (2, 128)),
        torch.randint(0, 2048, (2, 128)),
    )


def resnet_and_batch() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    return ResNet50(), (torch.randn(4, 3, 128, 128), torch.randint(0, 100, (4,)))


def ours(f: Callable[..., Any], **choices: Any) -> Callable[..., Any]:
    return bytecode_dynamo.optimize(aot_backend(run_eager, **choices))(f)


def saved_bytes(loss: torch.Tensor, excluded: Iterator[torch.Tensor]) -> int:
    """Bytes of distinct storages that the graph behind ``loss`` holds, parameters and inputs left
    out.
    """
    seen = {t.untyped_storage().data_ptr() for t in excluded}
    total = 0
    nodes: list[Any] = [loss.grad_fn]
    visited = set()
    while nodes:
        node = nodes.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        nodes.extend(n for n, _ in node.next_functions)
        for tensor in _tensors_of(node):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in seen:
                seen.add(storage.data_ptr())
                total += storage.nbytes()
    return total


def _tensors_of(node: Any) -> Iterator[torch.Tensor]:
    held = [
        getattr(node, name)
        for name in dir(node)
        if name.startswith("_saved_") and not name.startswith("_saved_self_")
    ]
    held += [getattr(node, "saved_tensors", ()), *getattr(node, "__dict__", {}).values()]
    for value in held:
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(item, torch.Tensor):
                yield item


def _step(call: Callable[..., torch.Tensor], batch: tuple[torch.Tensor, ...]) -> None:
    call(*batch).backward()


def _training(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> dict[str, Any]:
    models = {"eager": model, "ours": copy.deepcopy(model), "torch.compile": copy.deepcopy(model)}
    calls = {
        "eager": models["eager"],
        "ours": ours(models["ours"]),
        "torch.compile": torch.compile(models["torch.compile"], backend=INCUMBENT),
    }
    saved = {}
    for name, call in calls.items():
        _step(call, batch)
        loss = call(*batch)
        saved[name] = saved_bytes(
            loss, (*models[name].parameters(), *models[name].buffers(), *batch)
        )
        del loss
    gc.collect()
    times = alternate(
        {name: functools.partial(_step, call, batch) for name, call in calls.items()},
        rounds=9,
        seconds=0.3,
    )
    row: dict[str, Any] = {f"{name} saved MB": round(size / 1e6, 2) for name, size in saved.items()}
    row["saved, ours over torch.compile"] = round(saved["ours"] / saved["torch.compile"], 3)
    row |= {f"{name} ms": round(1e3 * seconds, 1) for name, seconds in times.items()}
    row["step, ours over torch.compile"] = round(times["ours"] / times["torch.compile"], 3)
    return row


def gpt_12_layers() -> dict[str, Any]:
    """12 layers, width 256, 2 x 128 tokens, no dropout."""
    return _training(*gpt_and_batch())


def gpt_12_layers_dropout() -> dict[str, Any]:
    """The same with dropout 0.1."""
    return _training(*gpt_and_batch(0.1))


def resnet_50() -> dict[str, Any]:
    """ResNet-50, 4 images of 128 x 128."""
    return _training(*resnet_and_batch())


def trace_and_partition() -> dict[str, Any]:
    """Seconds from the captured program to a callable step of the 12-layer GPT, second of two
    compilations.
    """
    found: dict[str, float] = {}
    for _ in range(2):
        for name in ("ours", "torch.compile"):
            model, batch = gpt_and_batch()
            call = ours(model) if name == "ours" else torch.compile(model, backend="aot_eager")
            started = time.perf_counter()
            _step(call, batch)
            first = time.perf_counter() - started
            started = time.perf_counter()
            _step(call, batch)
            found[name] = first - (time.perf_counter() - started)
            torch._dynamo.reset()
    return {f"{n} s": round(s, 2) for n, s in found.items()} | {
        "ratio": round(found["ours"] / found["torch.compile"], 3)
    }


def increment() -> dict[str, Any]:
    """Forward and backward of ``x + 1``: what the autograd runtime adds to eager's call, in
    microseconds.

    Fastest tenth of 300 turns of 2 ms. "ours": aot_backend around a hand-written kernel, the
    runtime alone; "ours, run_eager": with ATen's op called through its overload; "aot_function":
    with the lookup of the arguments' kind; "autograd.Function": a hand-written one.
    """

    def f(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def kernel(gm: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        return lambda x: (x + 1,)

    class Increment(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x + 1

        @staticmethod
        def backward(ctx: Any, tangent: torch.Tensor) -> torch.Tensor:
            return tangent

    x, tangent = torch.ones(8, requires_grad=True), torch.ones(8)
    gm = torch.fx.symbolic_trace(f)
    bare, compiled = aot_backend(kernel)(copy.deepcopy(gm), [x]), aot_backend(run_eager)(gm, [x])
    dispatched = aot_function(f, forward_compiler=kernel)
    incumbent, by_hand = torch.compile(f, backend="aot_eager"), Increment.apply
    calls: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "eager": lambda x: f(x),
        "ours": lambda x: bare(x)[0],
        "ours, run_eager": lambda x: compiled(x)[0],
        "aot_function": lambda x: dispatched(x),
        "torch.compile": lambda x: incumbent(x),
        "autograd.Function": lambda x: by_hand(x),
    }

    def both(call: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], None]:
        def run() -> None:
            x.grad = None
            call(x).backward(tangent)

        return run

    result = alternate(
        {name: both(call) for name, call in calls.items()}, rounds=300, seconds=0.002, quantile=0.1
    )
    return {"eager us": round(1e6 * result["eager"], 2)} | {
        f"{name} adds us": round(1e6 * (seconds - result["eager"]), 2)
        for name, seconds in result.items()
        if name != "eager"
    }


CASES = [increment, gpt_12_layers, gpt_12_layers_dropout, resnet_50, trace_and_partition]
