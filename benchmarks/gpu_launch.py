"""Host time per call of graphs of 1, 10 and 50 own kernels, beyond what guards and the call cost;
of BERT-base with its parts.

usage: python -m benchmarks.gpu_launch [--alone] [--rounds N] [GRAPH...]     a row per graph, writes results/gpu_launch.json
(with --alone: not next to torch.compile)

What is compared takes turns, so that a noisy moment hits all of it; medians. ``reference_us``: one
eager addition, which says how fast this host is just now. The parts of a call are timed inside it,
in turns of their own.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any
from unittest import mock

import inductor_triton
import torch
import torchstrata
from inductor_triton.cuda_graphs.recording import Recording
from inductor_triton.cuda_graphs.replay import Replay
from inductor_triton.cuda_graphs.results import Results

from benchmarks.measure import print_rows

CALLS, ROUNDS, WARM, TURN = 10, 20, 5, 10
Call = Callable[[], object]
PARTS = {
    "replay": (Replay, "__call__"),
    "addresses": (Recording, "fits"),
    "graph": (Recording, "replay"),
    "results": (Results, "make"),
}


def chain(kernels: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function whose kernels can't be fused: sums along rows and columns in turn."""

    def function(x: torch.Tensor) -> torch.Tensor:
        for number in range(kernels):
            x = x - x.amax(number % 2, keepdim=True)
        return x

    return function


def _microseconds(call: Call, calls: int) -> float:
    """Per call until it returns, the device's queue being empty before."""
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - started) / calls * 1e6


def host_us(calls: Mapping[str, Call], rounds: int, each: int) -> dict[str, float]:
    """Median microseconds per call of each, ``each`` calls at a time, the first of a turn not
    counted: caches are those of a loop that calls nothing else.
    """
    x = torch.ones(8, device="cuda")
    calls = {**calls, "reference": lambda: x + 1}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            samples[name] += [_microseconds(call, each) for _ in range(WARM + TURN)][WARM:]
    torch.cuda.synchronize()
    return {f"{name}_us": round(statistics.median(found), 1) for name, found in samples.items()}


def _nothing(graph: torch.fx.GraphModule, examples: object) -> Callable[..., Any]:
    """A backend whose graphs do nothing: calls cost their guards."""
    values = [node.meta["val"] for node in graph.graph.output_node().args[0]]  # type: ignore[union-attr]
    results = [
        torch.empty(tuple(value.shape), dtype=value.dtype, device="cuda") for value in values
    ]
    return lambda *arguments: results


def parts_us(call: Call, rounds: int) -> dict[str, float]:
    """Microseconds of a replayed call: guards and loading of inputs (``before``), comparing
    addresses, the driver's launch, making results, the rest of the replay, the way back
    (``after``).
    """
    stamps: dict[str, list[int]] = defaultdict(list)

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            started = time.perf_counter_ns()
            result = function(*arguments)
            stamps[name] += started, time.perf_counter_ns()
            return result

        return run

    samples: dict[str, list[float]] = defaultdict(list)
    with ExitStack() as stack:
        for name, (owner, method) in PARTS.items():
            stack.enter_context(
                mock.patch.object(owner, method, timed(name, getattr(owner, method)))
            )
        for number in range(rounds * TURN):
            stamps.clear()
            torch.cuda.synchronize()
            started = time.perf_counter_ns()
            call()
            ended = time.perf_counter_ns()
            if number < WARM or any(len(stamps[name]) != 2 for name in PARTS):
                continue
            spent = {name: stamps[name][1] - stamps[name][0] for name in PARTS}
            spent["before"], spent["after"] = (
                stamps["replay"][0] - started,
                ended - stamps["replay"][1],
            )
            spent["replay"] -= spent["addresses"] + spent["graph"]
            spent["graph"] -= spent["results"]
            for name, value in spent.items():
                samples[name].append(value / 1e3)
    return {f"{name}_us": round(statistics.median(found), 1) for name, found in samples.items()}


def _compiled(function: Any, alone: bool) -> dict[str, Any]:
    calls = {
        "ours": torchstrata.compile(function),
        "guards": torchstrata.compile(function, backend=_nothing),
    }
    return {
        **calls,
        **({} if alone else {"torch.compile": torch.compile(function)}),
        "eager": function,
    }


def _row(
    name: str,
    function: Any,
    inputs: tuple[torch.Tensor, ...],
    each: int,
    options: argparse.Namespace,
) -> dict[str, Any]:
    """``each``: calls in a row without waiting for the device."""
    torchstrata.reset()
    inductor_triton.counters.clear()
    compiled = _compiled(function, options.alone)
    expected = function(*inputs)
    for _ in range(8):
        result = compiled["ours"](*inputs)
        if isinstance(expected, torch.Tensor):
            torch.testing.assert_close(result, expected)
        del result
    kernels, launches = torchstrata.counters["generated_kernels"], inductor_triton.launch_counts()
    calls = {name: lambda call=call: call(*inputs) for name, call in compiled.items()}
    row: dict[str, Any] = {
        "graph": name,
        "kernels": kernels,
        **host_us(calls, options.rounds, each),
    }
    row["over_guards_us"] = round(row["ours_us"] - row["guards_us"], 1)
    if inductor_triton.counters["recorded"]:
        row |= parts_us(calls["ours"], options.rounds)
        found = {
            key: inductor_triton.counters[key] for key in ("recorded", "replayed", "ran", "held")
        }
    else:
        after = inductor_triton.launch_counts()
        found = {key: after[key] - launches[key] for key in after}
    return {**row, "counts": " ".join(f"{key}={value}" for key, value in found.items())}


def _bert() -> tuple[Any, tuple[torch.Tensor, ...]]:
    import transformers

    with torch.device("cuda"):
        return transformers.BertModel(transformers.BertConfig()).eval().to(torch.bfloat16), (
            torch.randint(30000, (1, 128)),
        )


def rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """All rows."""
    wanted = set(options.graphs or ("1", "10", "50", "bert"))
    x = torch.randn(64, 64, device="cuda")
    with torch.no_grad():
        if "bert" in wanted:
            yield _row("bert-base forward", *_bert(), 1, options)
        if "1" in wanted:
            yield _row("x + 1", lambda x: x + 1, (x,), CALLS, options)
        for kernels in (10, 50):
            if str(kernels) in wanted:
                yield _row(f"{kernels} kernels", chain(kernels), (x,), CALLS, options)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("graphs", nargs="*", help="of 1, 10, 50, bert; all")
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    labelled = (
        row | {"run": "alone" if options.alone else "next to torch.compile"}
        for row in rows(options)
    )
    print_rows("gpu_launch", labelled, ("graph", "run"), save=True)
