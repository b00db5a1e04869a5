"""Memory-bound kernels on a CUDA device by the number of rows: share of a copy's speed.

usage: python -m benchmarks.gpu_rows [--alone] [--rows N[,N...]] [NAME...]
prints a row per kernel and number of rows, and writes results/gpu_rows.json (with --alone: not
next to torch.compile, nothing written)

Bfloat16. ``of_copy``: the time of device copies that move as many bytes, one for each pass, over
ours; see ``benchmarks.gpu_micro`` for the bytes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
import torchstrata

from benchmarks import gpu_micro
from benchmarks.gpu_micro import Micro, Tensors, Timer
from benchmarks.measure import print_rows

ROWS = (1024, 4096, 16384, 65536, 262144)
COLUMNS, CLASSES = 4096, 8192
FP8, FP8_GRADIENT = torch.float8_e4m3fn, torch.float8_e5m2
LARGEST = torch.finfo(FP8).max


def _scaled(x: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    limit = torch.finfo(dtype).max
    return (x.float() * scale).clamp(-limit, limit).to(dtype)


def _fp8_cast(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return _scaled(x, scale, FP8)


def _fp8_gradient(x: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A gradient for both products of backward: one of them reads it transposed."""
    made = _scaled(x, scale, FP8_GRADIENT)
    return made, made.t().contiguous()


def _fp8_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Each row with a scale of its own."""
    scale = LARGEST / x.float().abs().amax(-1, keepdim=True).clamp(min=1e-12)
    return _scaled(x, scale, FP8), scale.reciprocal()


def _fp8_blocks(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Each 128 elements with a scale of their own."""
    parts = x.float().view(x.shape[0], -1, 128)
    scale = LARGEST / parts.abs().amax(-1, keepdim=True).clamp(min=1e-12)
    return (parts * scale).to(FP8).view(x.shape), scale.reciprocal().squeeze(-1)


def _fp8_tensor(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The whole tensor with one scale: two passes."""
    scale = LARGEST / x.float().abs().amax().clamp(min=1e-12)
    return _scaled(x, scale, FP8), scale.reciprocal()


def _two_passes(inputs: Tensors, results: Tensors) -> list[int]:
    read = gpu_micro._bytes(inputs[0])
    return [read, read + sum(map(gpu_micro._bytes, results))]


def _cast_of(function: Callable[..., Any], scales: int) -> gpu_micro.Make:
    def make(dtype: torch.dtype, rows: int) -> tuple[Callable[..., Any], tuple[torch.Tensor, ...]]:
        one = torch.full((), 16.0, device="cuda")
        return function, (gpu_micro._random(rows, COLUMNS, dtype=dtype), *[one] * scales)

    return make


def _cross_entropy(grad: bool) -> gpu_micro.Make:
    def make(dtype: torch.dtype, rows: int) -> tuple[Callable[..., Any], tuple[torch.Tensor, ...]]:
        logits = gpu_micro._random(rows, CLASSES, dtype=dtype, grad=grad)
        return F.cross_entropy, (logits, torch.randint(CLASSES, (rows,), device="cuda"))

    return make


TAKEN = (
    "softmax", "layer_norm", "layer_norm_training", "rms_norm", "rms_norm_training",
    "gelu_bias_dropout", "gelu_bias_dropout_training",
)  # fmt: skip
MICROS = [
    *(micro for micro in gpu_micro.MICROS if micro.name in TAKEN),
    Micro("cross_entropy", 0, _cross_entropy(False), gpu_micro._all),
    Micro("cross_entropy_training", 0, _cross_entropy(True), gpu_micro._all, backward=True),
    Micro("fp8_cast", 0, _cast_of(_fp8_cast, 1), gpu_micro._all),
    Micro("fp8_gradient", 0, _cast_of(_fp8_gradient, 1), gpu_micro._all),
    Micro("fp8_rows", 0, _cast_of(_fp8_rows, 0), gpu_micro._all),
    Micro("fp8_blocks", 0, _cast_of(_fp8_blocks, 0), gpu_micro._all),
    Micro("fp8_tensor", 0, _cast_of(_fp8_tensor, 0), _two_passes),
]


def run(micro: Micro, rows: int, timer: Timer, alone: bool) -> dict[str, Any]:
    """One row of the table."""
    torch.manual_seed(0)
    function, inputs = micro.make(torch.bfloat16, rows)
    calls = {"ours": torchstrata.compile(function, dynamic=False)}
    if not alone:
        calls["torch.compile"] = torch.compile(function, dynamic=False)
    steps = {name: gpu_micro._step(micro, function, call, inputs) for name, call in calls.items()}
    results = steps["ours"]()
    results = results if isinstance(results, tuple) else (results,)
    steps["copies"] = gpu_micro._copies(micro.moved(inputs, results))
    writes = sum(map(gpu_micro._bytes, results)) > gpu_micro.CACHE
    times = timer.samples(steps, writes=writes)
    return {
        "kernel": micro.name,
        "rows": rows,
        "us": round(times["ours"], 1),
        "copies_us": round(times["copies"], 1),
        "of_copy": round(times["copies"] / times["ours"], 2),
        "over_torch_compile": round(times.get("torch.compile", 0.0) / times["ours"], 2),
    }


def table(names: list[str], counts: list[int], alone: bool) -> Iterator[dict[str, Any]]:
    """All rows, of the named kernels only if any are named."""
    timer = Timer()
    for micro in MICROS:
        for rows in counts if not names or micro.name in names else ():
            try:
                yield run(micro, rows, timer, alone)
            except Exception as error:
                text = f"{type(error).__name__}: {str(error)[:300]}"
                yield {"kernel": micro.name, "rows": rows, "error": text}
            torchstrata.reset()
            torch.compiler.reset()
            torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*")
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    options = parser.parse_args()
    found = table(options.names, [*map(int, options.rows.split(","))], options.alone)
    print_rows("gpu_rows", found, ("kernel", "rows"), save=not options.alone)


if __name__ == "__main__":
    main()
