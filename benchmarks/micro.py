"""Kernels of common layers on the CPU: ours, eager and torch.compile in turns, and the share of the
speed of a copy.

usage: python benchmarks/micro.py [CASE...] [--rows 1024 4096] [--dtypes fp32 bf16] [--no-peer]
[--save]

Matrices have 1024 columns. With 1024 rows they stay in the caches of large processors, with many
more they do not. The copy allocates its result, as all others do. "In cache" is what our kernels
need for as many rows as the case has when a few rows that stay in the cache are done again and
again: a function with more than a copy's time is bound by its arithmetic.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).parents[1])  # this directory has files named like packages

import torch
import torch.nn.functional as F
import torchstrata

from benchmarks.measure import alternate, environment, save_rows, single_thread_clock

COLUMNS = 1024
FEW_ROWS = (16, 64)
Case = tuple[Callable[..., Any], Callable[[torch.dtype, int], tuple[torch.Tensor, ...]], bool]


def pointwise(x):
    return 1 / (1 + torch.exp(-torch.tanh(F.gelu(torch.exp(torch.sin(x) * torch.cos(x))))))


def add_relu(x, y):
    return F.relu(x * 2 + y)


def gelu(x):
    return F.gelu(x)


def softmax(x):
    return torch.softmax(x, -1)


def layernorm(x, w, b):
    return F.layer_norm(x, (COLUMNS,), w, b)


def rmsnorm(x, w):
    return (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w


def cross_entropy(x, target):
    return F.cross_entropy(x, target)


def bias_gelu_dropout(x, b):
    return F.dropout(F.gelu(x + b), 0.1)


def transpose_add(a, b):
    return a + b.t()


def column_sum(x):
    return x.sum(0)


def full_sum(x):
    return x.sum()


def cumsum(x):
    return torch.cumsum(x, -1)


def embedding_bag(table, bags):
    return F.embedding_bag(bags, table, mode="sum")


def matrix(dtype, rows):
    return torch.randn(rows, COLUMNS, dtype=dtype)


def vector(dtype):
    return torch.randn(COLUMNS, dtype=dtype)


def wanting_grad(make):
    return lambda dtype, rows: tuple(
        t.requires_grad_() if t.is_floating_point() else t for t in make(dtype, rows)
    )


def one(dtype, rows):
    return (matrix(dtype, rows),)


def two(dtype, rows):
    return matrix(dtype, rows), matrix(dtype, rows)


def transposed(dtype, rows):
    return matrix(dtype, rows), torch.randn(COLUMNS, rows, dtype=dtype)


def with_vector(dtype, rows):
    return matrix(dtype, rows), vector(dtype)


def affine(dtype, rows):
    return matrix(dtype, rows), vector(dtype), vector(dtype)


def with_target(dtype, rows):
    return matrix(dtype, rows), torch.randint(0, COLUMNS, (rows,))


def bags(dtype, rows):
    return torch.randn(20 * rows, 64, dtype=dtype), torch.randint(0, 20 * rows, (2 * rows, 16))


CASES: dict[str, Case] = {
    "pointwise": (pointwise, one, False),
    "add_relu": (add_relu, two, False),
    "gelu": (gelu, one, False),
    "softmax": (softmax, one, False),
    "softmax_backward": (softmax, wanting_grad(one), True),
    "layernorm": (layernorm, affine, False),
    "layernorm_backward": (layernorm, wanting_grad(affine), True),
    "rmsnorm": (rmsnorm, with_vector, False),
    "rmsnorm_backward": (rmsnorm, wanting_grad(with_vector), True),
    "cross_entropy": (cross_entropy, with_target, False),
    "cross_entropy_backward": (cross_entropy, wanting_grad(with_target), True),
    "bias_gelu_dropout": (bias_gelu_dropout, with_vector, False),
    "transpose_add": (transpose_add, transposed, False),
    "column_sum": (column_sum, one, False),
    "full_sum": (full_sum, one, False),
    "cumsum": (cumsum, one, False),
    "embedding_bag": (embedding_bag, bags, False),
}
"""Name to function, inputs of a dtype, and whether the backward pass is timed as well."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def step(
    call: Callable[..., torch.Tensor],
    inputs: tuple[torch.Tensor, ...],
    gradient: torch.Tensor | None,
) -> None:
    if gradient is None:
        call(*inputs)
    else:
        torch.autograd.grad(call(*inputs), [t for t in inputs if t.requires_grad], gradient)


def traffic(
    name: str, inputs: tuple[torch.Tensor, ...], output: torch.Tensor, backward: bool
) -> int:
    """Bytes that must be moved: inputs and output once; for a backward pass inputs, output, its
    gradient and the inputs'.
    """
    if name == "embedding_bag":
        table, indices = inputs
        return (
            indices.numel() * (indices.element_size() + table.shape[1] * table.element_size())
            + output.nbytes
        )
    read = sum(t.nbytes for t in inputs)
    return (read + output.nbytes) * (2 if backward else 1) + (read if backward else 0)


def in_cache(name: str, dtype: torch.dtype, count: int) -> float:
    """Seconds that ``count`` rows would take if they stayed in the cache: the difference between 64
    rows and 16, scaled. What else runs on the machine only adds to it, so it is taken from the
    fastest tenth of the rounds.
    """
    function, make, backward = CASES[name]
    timed = {}
    for few in FEW_ROWS:
        inputs, call = make(dtype, few), torchstrata.compile(function, dynamic=False)
        gradient = torch.randn_like(function(*inputs)) if backward else None
        timed[str(few)] = lambda call=call, inputs=inputs, gradient=gradient: step(
            call, inputs, gradient
        )
    seconds = alternate(timed, rounds=61, seconds=0.002, quantile=0.1, clock=single_thread_clock())
    few, more = FEW_ROWS
    return max(0.0, seconds[str(more)] - seconds[str(few)]) * count / (more - few)


def measure(
    name: str, dtype: torch.dtype, count: int, peer: bool, rounds: int = 21
) -> dict[str, float]:
    """Medians in microseconds and the share of a copy's bandwidth; inference cases run without
    gradients.
    """
    torch.manual_seed(0)
    function, make, backward = CASES[name]
    inputs = make(dtype, count)
    calls = {"eager": function, "ours": torchstrata.compile(function)}
    if peer:
        torch._dynamo.reset()
        calls["torch.compile"] = torch.compile(function)
    with torch.set_grad_enabled(backward):
        output = function(*inputs)
        gradient = torch.randn_like(output) if backward else None
        moved = traffic(name, inputs, output, backward)
        block = torch.randn(max(1, moved // 8))
        timed = {
            key: (lambda call=call: step(call, inputs, gradient)) for key, call in calls.items()
        }
        timed["copy"] = lambda: block.clone()
        seconds = alternate(timed, rounds=rounds, seconds=0.02, clock=single_thread_clock())
        seconds["in cache"] = in_cache(name, dtype, count)
    row = {f"{key} us": round(1e6 * value, 1) for key, value in seconds.items()}
    row["ours over eager"] = round(seconds["eager"] / seconds["ours"], 2)
    if peer:
        row["ours over torch.compile"] = round(seconds["torch.compile"] / seconds["ours"], 2)
    row["percent of copy"] = round(100 * seconds["copy"] / seconds["ours"])
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", default=[], help="names, or parts of names")
    parser.add_argument("--dtypes", nargs="*", default=list(DTYPES), choices=DTYPES)
    parser.add_argument("--rows", nargs="*", default=[1024], type=int, help="of the matrices")
    parser.add_argument("--no-peer", action="store_true", help="leave torch.compile out")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/micro.json")
    arguments = parser.parse_args()
    context = environment()
    print("  ".join(f"{name} {value}" for name, value in context.items()))
    rows: list[dict[str, Any]] = []
    names = [
        name
        for name in CASES
        if not arguments.cases or any(part in name for part in arguments.cases)
    ]
    for name, label, count in itertools.product(names, arguments.dtypes, arguments.rows):
        row = {
            "case": name,
            "dtype": label,
            "rows": count,
            **measure(name, DTYPES[label], count, not arguments.no_peer),
        }
        rows.append(row)
        if arguments.save:
            save_rows("micro", context, rows, ("case", "dtype", "rows"))
        print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    for key in ("ours over eager", "ours over torch.compile"):
        values = [row[key] for row in rows if key in row]
        if values:
            print(f"geomean {key}: {statistics.geometric_mean(values):.2f}")


if __name__ == "__main__":
    os.environ.setdefault("TORCHINDUCTOR_FX_GRAPH_CACHE", "1")
    main()
