"""Memory-bound kernels on a CUDA device, next to torch.compile: share of the copy bandwidth and ratio of device times.

usage: python -m benchmarks.gpu_micro [--alone] [NAME...]     prints a row per kernel and dtype, writes results/gpu_micro.json
(with --alone: not next to torch.compile, nothing written)
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import torchstrata

from benchmarks.measure import print_rows

ROUNDS = 15
CACHE = 50 << 20


@dataclass(frozen=True)
class Micro:
    """A kernel: ``make(dtype)`` gives the function and its inputs; ``moved(inputs, results)`` the least bytes to move."""

    name: str
    make: Callable[[torch.dtype], tuple[Callable[..., Any], tuple[torch.Tensor, ...]]]
    backward: bool = False
    extra: int = 0


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _random(*shape: int, dtype: torch.dtype, grad: bool = False) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype, requires_grad=grad)


def _unary(function: Callable[..., Any], rows: int, columns: int) -> Callable[[torch.dtype], Any]:
    return lambda dtype: (function, (_random(rows, columns, dtype=dtype),))


def _chain(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(a * b + c) * torch.tanh(a) - b


def _rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * weight


def _gelu_bias_dropout(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.dropout(F.gelu(x + bias), 0.1)


def _norm(function: Callable[..., Any], grad: bool, vectors: int) -> Callable[[torch.dtype], Any]:
    def make(dtype: torch.dtype) -> tuple[Callable[..., Any], tuple[torch.Tensor, ...]]:
        return function, tuple(_random(*shape, dtype=dtype, grad=grad) for shape in ((16384, 4096), *[(4096,)] * vectors))

    return make


def _layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (x.shape[-1],), weight, bias)


def _loss(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits, target)


def _cross_entropy(grad: bool) -> Callable[[torch.dtype], Any]:
    def make(dtype: torch.dtype) -> tuple[Callable[..., Any], tuple[torch.Tensor, ...]]:
        return _loss, (_random(8192, 50304, dtype=dtype, grad=grad), torch.randint(50304, (8192,), device="cuda"))

    return make


def _matmul_gelu(dtype: torch.dtype) -> tuple[Callable[..., Any], tuple[torch.Tensor, ...]]:
    def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.gelu(F.linear(x, weight, bias))

    return linear, tuple(_random(*shape, dtype=dtype) / 8 for shape in ((8192, 4096), (4096, 4096), (4096,)))


def _embedding_bag(dtype: torch.dtype) -> tuple[Callable[..., Any], tuple[torch.Tensor, ...]]:
    def bag(indices: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return F.embedding_bag(indices, table, mode="sum")

    return bag, (torch.randint(1_000_000, (16384, 32), device="cuda"), _random(1_000_000, 64, dtype=dtype))


def _index_add(dtype: torch.dtype) -> tuple[Callable[..., Any], tuple[torch.Tensor, ...]]:
    def add(base: torch.Tensor, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        return base.index_add(0, index, source)

    return add, (
        _random(65536, 256, dtype=dtype),
        torch.randint(65536, (131072,), device="cuda"),
        _random(131072, 256, dtype=dtype),
    )


MICROS = [
    Micro("pointwise", lambda dtype: (_chain, tuple(_random(8192, 8192, dtype=dtype) for _ in range(3)))),
    Micro("softmax", _unary(lambda x: x.softmax(-1), 16384, 4096)),
    Micro("softmax_wide", _unary(lambda x: x.softmax(-1), 2048, 50304)),
    Micro("layer_norm", _norm(_layer_norm, False, 2)),
    Micro("layer_norm_training", _norm(_layer_norm, True, 2), backward=True),
    Micro("rms_norm", _norm(_rms_norm, False, 1)),
    Micro("rms_norm_training", _norm(_rms_norm, True, 1), backward=True),
    Micro("cross_entropy", _cross_entropy(False)),
    Micro("cross_entropy_training", _cross_entropy(True), backward=True),
    Micro("gelu_bias_dropout", _norm(_gelu_bias_dropout, False, 1)),
    Micro("gelu_bias_dropout_training", _norm(_gelu_bias_dropout, True, 1), backward=True),
    Micro(
        "transpose_add",
        lambda dtype: (lambda a, b: a.t() + b, (_random(8192, 8192, dtype=dtype), _random(8192, 8192, dtype=dtype))),
    ),
    Micro("sum_rows", _unary(lambda x: x.sum(1), 8192, 8192)),
    Micro("sum_columns", _unary(lambda x: x.sum(0), 8192, 8192)),
    Micro("sum_all", _unary(lambda x: x.sum(), 8192, 8192)),
    Micro("cumsum", _unary(lambda x: x.cumsum(1), 8192, 8192)),
    Micro("embedding_bag", _embedding_bag),
    Micro("index_add", _index_add),
    Micro("matmul_gelu", _matmul_gelu),
]


class Timer:
    """Device microseconds of a call: the queue is filled first, the cache is flushed, the median of the rounds counts.

    A call that writes much leaves the last of it in the cache, so it finds as much there that is still to be written to memory;
    one that only reads finds a cache with nothing to be written.
    """

    def __init__(self) -> None:
        self.block = torch.zeros(64 << 20, dtype=torch.int32, device="cuda")

    def flush(self, writes: bool) -> None:
        self.block.zero_() if writes else self.block.amax()

    def samples(self, calls: dict[str, Callable[[], Any]], writes: bool = True) -> dict[str, float]:
        times: dict[str, list[float]] = {name: [] for name in calls}
        for call in calls.values():
            for _ in range(3):
                call()
        for _ in range(ROUNDS):
            for name, call in calls.items():
                start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                torch.cuda.synchronize()
                torch.cuda._sleep(2_000_000)  # 1 ms: the host runs ahead
                self.flush(writes)
                start.record()
                call()
                end.record()
                end.synchronize()
                times[name].append(start.elapsed_time(end) * 1e3)
        return {name: statistics.median(values) for name, values in times.items()}


def _training_step(call: Callable[..., torch.Tensor], inputs: tuple[torch.Tensor, ...], tangent: torch.Tensor) -> Any:
    wanted = [value for value in inputs if value.requires_grad]
    return torch.autograd.grad(call(*inputs), wanted, tangent)


def run(micro: Micro, dtype: torch.dtype, timer: Timer, copy_rate: float, alone: bool) -> dict[str, Any]:
    """One row: share of copy bandwidth, ratio over torch.compile and eager, the largest difference from eager."""
    torch.manual_seed(0)
    function, inputs = micro.make(dtype)
    calls = {"eager": function, "ours": torchstrata.compile(function)}
    if not alone:
        calls["torch.compile"] = torch.compile(function)
    steps: dict[str, Callable[[], Any]] = {}
    for name, call in calls.items():
        if micro.backward:
            tangent = torch.ones_like(function(*inputs))
            steps[name] = lambda call=call, tangent=tangent: _training_step(call, inputs, tangent)
        else:
            steps[name] = lambda call=call: call(*inputs)
    if micro.name == "matmul_gelu":
        steps["library"] = lambda: torch.mm(inputs[0], inputs[1].t())
    results = steps["ours"]()
    results = results if isinstance(results, tuple) else (results,)
    times = timer.samples(steps, writes=sum(map(_bytes, results)) > CACHE)
    tensors = [*inputs, *results]
    moved = sum(map(_bytes, tensors))
    if micro.backward:  # the saved input and the tangent are read again, the result of the forward is written
        large = max(inputs, key=lambda tensor: tensor.numel())
        moved += _bytes(large) * (1 if function is _loss else 3)
    if micro.name == "embedding_bag":
        moved = inputs[0].numel() * (8 + 64 * inputs[1].element_size())
    if micro.name == "index_add":
        moved += 2 * _bytes(inputs[2])
    if "library" in times:
        moved = times["library"] * 1e6 * copy_rate  # the share of the library's speed without bias and gelu
    return {
        "kernel": micro.name,
        "dtype": str(dtype).removeprefix("torch."),
        "us": round(times["ours"], 1),
        "of_copy": round(moved / times["ours"] / 1e6 / copy_rate, 2),
        "over_torch_compile": round(times.get("torch.compile", 0.0) / times["ours"], 2),
        "over_eager": round(times["eager"] / times["ours"], 2),
    }


def _copy_rate(timer: Timer) -> float:
    """TB/s of a device copy, read and written bytes counted."""
    block = torch.empty(1 << 30, dtype=torch.int8, device="cuda")
    other = torch.empty_like(block)
    return 2 * block.numel() / timer.samples({"copy": lambda: other.copy_(block)})["copy"] / 1e6


def rows(names: list[str], alone: bool) -> Iterator[dict[str, Any]]:
    """All rows, the named kernels only if any are named."""
    timer = Timer()
    copy_rate = _copy_rate(timer)
    yield {"kernel": "copy", "dtype": "int8", "TB/s": round(copy_rate, 2)}
    for micro in MICROS:
        for dtype in (torch.bfloat16, torch.float32):
            if names and micro.name not in names:
                continue
            try:
                yield run(micro, dtype, timer, copy_rate, alone)
            except Exception as error:
                yield {
                    "kernel": micro.name,
                    "dtype": str(dtype).removeprefix("torch."),
                    "error": f"{type(error).__name__}: {str(error)[:300]}",
                }
            torchstrata.reset()
            torch.compiler.reset()


def main(arguments: list[str]) -> None:
    alone = "--alone" in arguments
    names = [name for name in arguments if name != "--alone"]
    print_rows("gpu_micro", rows(names, alone), ("kernel", "dtype"), save=not alone)


if __name__ == "__main__":
    main(sys.argv[1:])
