"""Peak memory of the models of ``gpu_models``: eager, ours and torch.compile, each in a process of
its own.

usage: python -m benchmarks.gpu_memory [--gpus N] [--jobs N] [--timeout S]
[NAME[:inference|:training]...]

Adds to the rows of results/gpu_models.json the most memory that calls after the first ones hold
from the device beyond model and inputs: what the allocator keeps free inside, for its own reasons
or a recorded graph's, is counted for everybody, and so are the workspaces of libraries. Model and
inputs are moved into memory of their own before, so that nobody finds room among them. Also
printed: the most that was in use at once, of which a recorded graph's whole pool is.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
from typing import Any

import torch

from benchmarks.gpu_models import (
    MODELS,
    RESULTS,
    WARM_STEPS,
    build,
    step_of,
    wake_libraries,
)
from benchmarks.measure import environment
from benchmarks.processes import spread

WHO = ("eager", "ours", "torch.compile")


def run(name: str, training: bool, who: str) -> tuple[int, int]:
    """MiB held from the device, and in use, at the peak."""
    import torchstrata

    net, inputs = build(name, training)
    wake_libraries(net, inputs, training)
    inputs = alone(net, inputs)
    call = {"eager": lambda net: net, "ours": torchstrata.compile, "torch.compile": torch.compile}[
        who
    ](net)
    base, used = held(), in_use()
    for _ in range(WARM_STEPS):
        step_of(call, net, inputs, training)
    held()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(2):
        step_of(call, net, inputs, training)
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() + in_use() - torch.cuda.memory_allocated()
    return (torch.cuda.max_memory_reserved() - base) >> 20, (peak - used) >> 20


def alone(net: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Model and inputs in memory that holds nothing else: what is free among what an allocator gave
    is not charged to who uses it.
    """
    net.zero_grad(set_to_none=True)
    net.cpu()
    inputs = {key: value.cpu() for key, value in inputs.items()}
    torch._C._cuda_clearCublasWorkspaces()  # type: ignore[attr-defined]
    held()
    net.cuda()
    return {key: value.cuda() for key, value in inputs.items()}


def in_use() -> int:
    """Bytes in use, all of the pools of recorded graphs."""
    segments = torch.cuda.memory_snapshot()
    return sum(
        s["total_size"] if tuple(s["segment_pool_id"]) != (0, 0) else s["allocated_size"]
        for s in segments
    )


def held() -> int:
    """Bytes held from the device once nothing unused is kept: recorded graphs keep theirs."""
    gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=[])
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--timeout", type=int, default=300)
    parser.add_argument("--row", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        (name, _, mode), who = options.row[0].partition(":"), options.row[1]
        print(json.dumps({"mb": run(name, mode == "training", who)}), flush=True)
        return
    rows = [
        row if ":" in row else f"{row}:{mode}"
        for row in options.names or MODELS
        for mode in ("training", "inference")
    ]
    tasks = [
        ["benchmarks.gpu_memory", "--row", row, who]
        for row, who in itertools.product(dict.fromkeys(rows), reversed(WHO))
    ]
    found: dict[str, dict[str, list[int]]] = {}
    for task, result in spread(tasks, options):
        row, who = task[2:]
        if "failed" in result:
            print(row, who, result["failed"], flush=True)
            continue
        found.setdefault(row, {})[who] = result["mb"]
        if len(found[row]) == len(WHO):
            print(row, found[row], flush=True)
            save(row, found[row])


def save(row: str, mb: dict[str, list[int]]) -> None:
    """Puts the peaks into the saved row."""
    saved = json.loads(RESULTS.read_text())
    entry: dict[str, Any] = next(r for r in saved["rows"] if f"{r['model']}:{r['mode']}" == row)
    entry |= {"peak_mb": mb["ours"][0], "memory_commit": environment()["commit"]}
    for key, who in (("eager", "eager"), ("tc", "torch.compile")):
        entry[f"peak_{key}"] = round(mb["ours"][0] / max(mb[who][0], 1), 2)
    RESULTS.write_text(json.dumps(saved, indent=1) + "\n")


if __name__ == "__main__":
    main()
