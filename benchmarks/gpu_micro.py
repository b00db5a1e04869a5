"""Memory-bound kernels on a CUDA device, next to torch.compile: share of a copy's speed and ratio
of device times.

usage: python -m benchmarks.gpu_micro [--alone] [NAME...]     prints a row per kernel and dtype, writes results/gpu_micro.json
(with --alone: not next to torch.compile, nothing written)

"In cache" is what our kernels would need for all rows if these stayed in the L2 cache: a few rows
are done again and again, and twice as many; the difference is scaled. Rows so wide that too few of
them fit have no such figure, nor has training.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import torchstrata

from benchmarks.measure import print_rows

ROUNDS = 15
CACHE = 50 << 20
IN_CACHE, FEWEST_ROWS, REPEATS = 32 << 20, 256, 20


Tensors = Sequence[torch.Tensor]
Make = Callable[[torch.dtype, int], tuple[Callable[..., Any], tuple[torch.Tensor, ...]]]


@dataclass(frozen=True)
class Micro:
    """A kernel: ``make(dtype, rows)`` gives the function and its inputs; ``moved(inputs, results)``
    the least bytes that each pass moves, which are copied for comparison; ``products(*inputs)``
    makes the matrix products in it, that take the library's time beside.
    """

    name: str
    rows: int
    make: Make
    moved: Callable[[Tensors, Tensors], list[int]]
    backward: bool = False
    products: Callable[..., Any] | None = None


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _all(inputs: Tensors, results: Tensors) -> list[int]:
    """Each input read, each result written."""
    return [sum(map(_bytes, (*inputs, *results)))]


def _training(inputs: Tensors, results: Tensors, kept: int = 0) -> list[int]:
    """Forward and backward of a function of the same size: backward reads the largest input and the
    tangent. ``kept``: bytes that forward writes for backward, since the caller may write to its
    inputs or there is no other way to know them.
    """
    large = max(map(_bytes, inputs))
    return [
        sum(map(_bytes, inputs)) + large + kept,
        large + (kept or large) + sum(map(_bytes, results)),
    ]


def _rms_norm_training(inputs: Tensors, results: Tensors) -> list[int]:
    """In bfloat16 eager mode keeps its argument in float32, so that the argument may be written
    to.
    """
    return _training(inputs, results, _bytes(inputs[0]) if inputs[0].dtype is torch.bfloat16 else 0)


def _dropout_training(inputs: Tensors, results: Tensors) -> list[int]:
    """Eager mode keeps the sum and the mask."""
    return _training(inputs, results, _bytes(inputs[0]) + inputs[0].numel())


def _bag(inputs: Tensors, results: Tensors) -> list[int]:
    """The indices and a row for each."""
    return [inputs[0].numel() * (8 + 64 * inputs[1].element_size())]


def _added(inputs: Tensors, results: Tensors) -> list[int]:
    """The rows that are added to are read and written, too. Sums are taken in float32: those of
    bfloat16 are made and read.
    """
    sums = 8 * inputs[0].numel() if inputs[0].dtype is torch.bfloat16 else 0
    return [_all(inputs, results)[0] + 8 * inputs[2].numel() + sums]


def _nothing(inputs: Tensors, results: Tensors) -> list[int]:
    return []


def _logits(inputs: Tensors, results: Tensors) -> list[int]:
    """The logits are read, read again by backward, and their gradient written."""
    return [3 * inputs[0].shape[0] * inputs[1].shape[0] * inputs[0].element_size()]


def _random(*shape: int, dtype: torch.dtype, grad: bool = False) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype, requires_grad=grad)


def _unary(function: Callable[..., Any], columns: int) -> Make:
    return lambda dtype, rows: (function, (_random(rows, columns, dtype=dtype),))


def _chain(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(a * b + c) * torch.tanh(a) - b


def _rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * weight


def _gelu_bias(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.gelu(x + bias)


def _gelu_bias_dropout(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.dropout(F.gelu(x + bias), 0.1)


def _norm(function: Callable[..., Any], grad: bool, vectors: int) -> Make:
    def make(dtype: torch.dtype, rows: int) -> tuple[Callable[..., Any], tuple[torch.Tensor, ...]]:
        return function, tuple(
            _random(*shape, dtype=dtype, grad=grad)
            for shape in ((rows, 4096), *[(4096,)] * vectors)
        )

    return make


def _layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (x.shape[-1],), weight, bias)


def _loss(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits, target)


def _cross_entropy(grad: bool) -> Make:
    def make(dtype: torch.dtype, rows: int) -> tuple[Callable[..., Any], tuple[torch.Tensor, ...]]:
        return _loss, (
            _random(rows, 50304, dtype=dtype, grad=grad),
            torch.randint(50304, (rows,), device="cuda"),
        )

    return make


def _linear_loss(x: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(F.linear(x, weight), target)


def _linear_cross_entropy(
    dtype: torch.dtype, rows: int
) -> tuple[Callable[..., Any], tuple[torch.Tensor, ...]]:
    x, weight = (_random(*shape, dtype=dtype, grad=True) for shape in ((rows, 768), (50304, 768)))
    return _linear_loss, (x, weight, torch.randint(50304, (rows,), device="cuda"))


def _linear_products(x: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> None:
    logits = torch.mm(x, weight.t())
    torch.mm(logits, weight)
    torch.mm(logits.t(), x)


def _matmul_gelu(
    dtype: torch.dtype, rows: int
) -> tuple[Callable[..., Any], tuple[torch.Tensor, ...]]:
    def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.gelu(F.linear(x, weight, bias))

    return linear, tuple(
        _random(*shape, dtype=dtype) / 8 for shape in ((rows, 4096), (4096, 4096), (4096,))
    )


def _embedding_bag(
    dtype: torch.dtype, rows: int
) -> tuple[Callable[..., Any], tuple[torch.Tensor, ...]]:
    def bag(indices: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return F.embedding_bag(indices, table, mode="sum")

    return bag, (
        torch.randint(1_000_000, (rows, 32), device="cuda"),
        _random(1_000_000, 64, dtype=dtype),
    )


def _index_add(
    dtype: torch.dtype, rows: int
) -> tuple[Callable[..., Any], tuple[torch.Tensor, ...]]:
    def add(base: torch.Tensor, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        return base.index_add(0, index, source)

    return add, (
        _random(rows, 256, dtype=dtype),
        torch.randint(rows, (2 * rows,), device="cuda"),
        _random(2 * rows, 256, dtype=dtype),
    )


def _square(function: Callable[..., Any], operands: int) -> Make:
    return lambda dtype, rows: (
        function,
        tuple(_random(rows, 8192, dtype=dtype) for _ in range(operands)),
    )


def _transposed(
    dtype: torch.dtype, rows: int
) -> tuple[Callable[..., Any], tuple[torch.Tensor, ...]]:
    return lambda a, b: a.t() + b, (
        _random(8192, rows, dtype=dtype),
        _random(rows, 8192, dtype=dtype),
    )


MICROS = [
    Micro("pointwise", 8192, _square(_chain, 3), _all),
    Micro("softmax", 16384, _unary(lambda x: x.softmax(-1), 4096), _all),
    Micro("softmax_wide", 2048, _unary(lambda x: x.softmax(-1), 50304), _all),
    Micro("layer_norm", 16384, _norm(_layer_norm, False, 2), _all),
    Micro("layer_norm_training", 16384, _norm(_layer_norm, True, 2), _training, backward=True),
    Micro("rms_norm", 16384, _norm(_rms_norm, False, 1), _all),
    Micro("rms_norm_training", 16384, _norm(_rms_norm, True, 1), _rms_norm_training, backward=True),
    Micro("cross_entropy", 8192, _cross_entropy(False), _all),
    Micro("cross_entropy_training", 8192, _cross_entropy(True), _all, backward=True),
    Micro(
        "linear_cross_entropy_training",
        8192,
        _linear_cross_entropy,
        _logits,
        backward=True,
        products=_linear_products,
    ),
    Micro("gelu_bias", 16384, _norm(_gelu_bias, False, 1), _all),
    Micro("gelu_bias_dropout", 16384, _norm(_gelu_bias_dropout, False, 1), _all),
    Micro(
        "gelu_bias_dropout_training",
        16384,
        _norm(_gelu_bias_dropout, True, 1),
        _dropout_training,
        backward=True,
    ),
    Micro("transpose_add", 8192, _transposed, _all),
    Micro("sum_rows", 8192, _square(lambda x: x.sum(1), 1), _all),
    Micro("sum_columns", 8192, _square(lambda x: x.sum(0), 1), _all),
    Micro("sum_all", 8192, _square(lambda x: x.sum(), 1), _all),
    Micro("cumsum", 8192, _square(lambda x: x.cumsum(1), 1), _all),
    Micro("embedding_bag", 16384, _embedding_bag, _bag),
    Micro("index_add", 65536, _index_add, _added),
    Micro(
        "matmul_gelu",
        8192,
        _matmul_gelu,
        _nothing,
        products=lambda x, weight, bias: torch.mm(x, weight.t()),
    ),
]


class Timer:
    """Device microseconds of a call: the queue is filled first, the cache is flushed, the median of
    the rounds counts.

    A call that writes much leaves the last of it in the cache, so it finds as much there that is
    still to be written to memory; one that only reads finds a cache with nothing to be written.
    """

    def __init__(self) -> None:
        self.block = torch.zeros(64 << 20, dtype=torch.int32, device="cuda")

    def flush(self, writes: bool) -> None:
        self.block.zero_() if writes else self.block.amax()

    def samples(
        self, calls: dict[str, Callable[[], Any]], writes: bool = True, repeats: int = 1
    ) -> dict[str, float]:
        """Of one call each, or of ``repeats`` in a row, before which nothing is flushed."""
        times: dict[str, list[float]] = {name: [] for name in calls}
        for call in calls.values():
            for _ in range(3):
                call()
        for _ in range(ROUNDS):
            for name, call in calls.items():
                start, end = (
                    torch.cuda.Event(enable_timing=True),
                    torch.cuda.Event(enable_timing=True),
                )
                torch.cuda.synchronize()
                torch.cuda._sleep(2_000_000 * repeats)  # 1 ms for each: the host runs ahead
                if repeats == 1:
                    self.flush(writes)
                start.record()
                for _ in range(repeats):
                    call()
                end.record()
                end.synchronize()
                times[name].append(start.elapsed_time(end) * 1e3 / repeats)
        return {name: statistics.median(values) for name, values in times.items()}


def _training_step(
    call: Callable[..., torch.Tensor], inputs: tuple[torch.Tensor, ...], tangent: torch.Tensor
) -> Any:
    wanted = [value for value in inputs if value.requires_grad]
    return torch.autograd.grad(call(*inputs), wanted, tangent)


def _copies(moved: Sequence[int]) -> Callable[[], None]:
    """Copies that move as many bytes, one after the other."""
    blocks = [
        torch.empty(2, count // 1024 * 512, dtype=torch.int8, device="cuda") for count in moved
    ]

    def call() -> None:
        for block in blocks:
            block[0].copy_(block[1])

    return call


def _step(
    micro: Micro, function: Callable[..., Any], call: Callable[..., Any], inputs: Any
) -> Callable[[], Any]:
    """``call``, which does what ``function`` does, with its backward where that is measured."""
    if not micro.backward:
        return lambda: call(*inputs)
    tangent = torch.ones_like(function(*inputs))
    return lambda: _training_step(call, inputs, tangent)


def _in_cache(micro: Micro, dtype: torch.dtype, timer: Timer, moved: int) -> float | None:
    """Microseconds that ours would take if all rows stayed in the cache; None where too few rows
    fit.
    """
    few = micro.rows * IN_CACHE // max(moved, 1) // 2 // FEWEST_ROWS * FEWEST_ROWS
    if few == 0:
        return None
    steps = {}
    for rows in (few, 2 * few):
        function, inputs = micro.make(dtype, rows)
        if sum(map(_bytes, inputs)) > IN_CACHE:
            return None
        steps[str(rows)] = _step(
            micro, function, torchstrata.compile(function, dynamic=False), inputs
        )
    times = timer.samples(steps, repeats=REPEATS)
    return round((times[str(2 * few)] - times[str(few)]) / few * micro.rows, 1)


def run(micro: Micro, dtype: torch.dtype, timer: Timer, alone: bool) -> dict[str, Any]:
    """One row: share of the speed of copies of as many bytes and of the library's products; times
    over ours.
    """
    torch.manual_seed(0)
    function, inputs = micro.make(dtype, micro.rows)
    calls = {"eager": function, "ours": torchstrata.compile(function)}
    if not alone:
        calls["torch.compile"] = torch.compile(function)
    steps = {name: _step(micro, function, call, inputs) for name, call in calls.items()}
    results = steps["ours"]()
    results = results if isinstance(results, tuple) else (results,)
    moved = micro.moved(inputs, results)
    if moved:
        steps["copies"] = _copies(moved)
    if micro.products is not None:
        detached = [value.detach() for value in inputs]
        steps["products"] = lambda: micro.products(*detached)  # type: ignore[misc]
    times = timer.samples(steps, writes=sum(map(_bytes, results)) > CACHE)
    measurable = not micro.backward and micro.products is None
    in_cache = _in_cache(micro, dtype, timer, sum(moved)) if measurable else None
    return {
        "kernel": micro.name,
        "dtype": str(dtype).removeprefix("torch."),
        "us": round(times["ours"], 1),
        "copies_us": round(times.get("copies", 0.0), 1),
        "in_cache_us": in_cache if in_cache is not None and 0 < in_cache < times["ours"] else None,
        "of_copy": round(
            (times.get("copies", 0.0) + times.get("products", 0.0)) / times["ours"], 2
        ),
        "over_torch_compile": round(times.get("torch.compile", 0.0) / times["ours"], 2),
        "over_eager": round(times["eager"] / times["ours"], 2),
    }


def _copy_rate(timer: Timer) -> float:
    """TB/s of a long device copy, read and written bytes counted."""
    moved = 2 << 30
    return moved / timer.samples({"copy": _copies([moved])})["copy"] / 1e6


def rows(names: list[str], alone: bool) -> Iterator[dict[str, Any]]:
    """All rows, the named kernels only if any are named."""
    timer = Timer()
    yield {"kernel": "copy", "dtype": "int8", "TB/s": round(_copy_rate(timer), 2)}
    for micro in MICROS:
        for dtype in (torch.bfloat16, torch.float32):
            if names and micro.name not in names:
                continue
            try:
                yield run(micro, dtype, timer, alone)
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
