"""Host time per call of graphs of 1, 10 and 50 own kernels, beyond what guards and the call cost; of BERT-base with its parts.

usage: python -m benchmarks.gpu_launch [--alone]     a row per graph, writes results/gpu_launch.json
(with --alone: not next to torch.compile)
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import inductor_triton
import torch
import torchstrata
from inductor_triton.replay import Recording

from benchmarks.measure import print_rows

CALLS, ROUNDS = 20, 40


def chain(kernels: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function whose kernels can't be fused: sums along rows and columns in turn."""

    def function(x: torch.Tensor) -> torch.Tensor:
        for number in range(kernels):
            x = x - x.amax(number % 2, keepdim=True)
        return x

    return function


def host_us(call: Callable[[], object], calls: int = CALLS) -> float:
    """Median microseconds until a call returns, the device's queue being short."""
    for _ in range(10):
        call()
    samples = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(calls):
            call()
        samples.append((time.perf_counter() - started) / calls * 1e6)
    torch.cuda.synchronize()
    return round(statistics.median(samples), 1)


def _guards_only(function: Callable[..., Any], *inputs: torch.Tensor, calls: int = CALLS) -> float:
    """What a call costs when the compiled graph does nothing."""
    compiled = torchstrata.compile(function, backend=_nothing)
    return host_us(lambda: compiled(*inputs), calls)


def _nothing(graph: torch.fx.GraphModule, examples: object) -> Callable[..., Any]:
    values = [node.meta["val"] for node in graph.graph.output_node().args[0]]  # type: ignore[union-attr]
    results = [torch.empty(tuple(value.shape), dtype=value.dtype, device="cuda") for value in values]
    return lambda *arguments: results


def _parts(call: Callable[[], object]) -> dict[str, float]:
    """Microseconds of what a replayed call does: comparing addresses, the driver's launch, making results."""
    found: list[tuple[Recording, Any]] = []
    replay = Recording.replay

    def spied(self: Recording, arguments: Any) -> list[object]:
        found.append((self, arguments))
        return replay(self, arguments)

    with mock.patch.object(Recording, "replay", spied):
        call()
    if not found:
        return {}
    recording, arguments = found[0]
    parts = {
        "addresses": lambda: recording.fits(arguments, None),
        "graph": recording.graph.replay,
        "results": lambda: recording.results.make(arguments),
    }
    return {f"{name}_us": host_us(part, 1) for name, part in parts.items()}


def _row(name: str, function: Callable[..., Any], inputs: tuple[torch.Tensor, ...], alone: bool) -> dict[str, Any]:
    torchstrata.reset()
    guards = _guards_only(function, *inputs)
    torchstrata.reset()
    compiled = torchstrata.compile(function)
    expected = function(*inputs)
    for _ in range(6):
        torch.testing.assert_close(compiled(*inputs), expected)
    launches = inductor_triton.launch_counts()
    total = host_us(lambda: compiled(*inputs))
    row: dict[str, Any] = {"graph": name, "host_us": total, "guards_us": guards, "over_guards_us": round(total - guards, 1)}
    row["eager_us"] = host_us(lambda: function(*inputs))
    if not alone:
        incumbent = torch.compile(function)
        row["torch_compile_us"] = host_us(lambda: incumbent(*inputs))
    after = inductor_triton.launch_counts()
    row["launches"] = " ".join(f"{key}={after[key] - launches[key]}" for key in after)
    row["kernels"] = torchstrata.counters["generated_kernels"]
    return row


def _bert(alone: bool) -> dict[str, Any]:
    import transformers

    torchstrata.reset()
    inductor_triton.counters.clear()
    with torch.device("cuda"):
        model = transformers.BertModel(transformers.BertConfig()).eval().to(torch.bfloat16)
        tokens = torch.randint(30000, (1, 128))
    with torch.no_grad():
        guards = _guards_only(model, tokens, calls=1)
    torchstrata.reset()
    calls = {"ours": torchstrata.compile(model)} | ({} if alone else {"torch.compile": torch.compile(model)})
    row: dict[str, Any] = {"graph": "bert-base forward", "guards_us": guards}
    with torch.no_grad():
        for name, compiled in calls.items():
            row[f"{name}_host_us"] = host_us(lambda compiled=compiled: compiled(tokens), 1)
        row |= _parts(lambda: calls["ours"](tokens))
        replay = {key: inductor_triton.counters[key] for key in ("recorded", "replayed", "ran", "held")}
        row["eager_us"] = host_us(lambda: model(tokens), 1)
    return {**row, "counts": " ".join(f"{key}={value}" for key, value in replay.items())}


def rows(alone: bool) -> Iterator[dict[str, Any]]:
    """All rows."""
    x = torch.randn(64, 64, device="cuda")
    with torch.no_grad():
        yield _row("x + 1", lambda x: x + 1, (x,), alone)
        for kernels in (10, 50):
            yield _row(f"{kernels} kernels", chain(kernels), (x,), alone)
    yield _bert(alone)


if __name__ == "__main__":
    alone = "--alone" in sys.argv
    labelled = (row | {"run": "alone" if alone else "next to torch.compile"} for row in rows(alone))
    print_rows("gpu_launch", labelled, ("graph", "run"), save=True)
