"""Peak memory of the models of ``gpu_models``: eager, ours and torch.compile, each in a process of its own.

usage: python -m benchmarks.gpu_memory [--gpus N] [--jobs N] [--timeout S] [NAME[:inference|:training]...]

Adds to the rows of results/gpu_models.json the most memory that calls after the first ones hold from the device beyond model
and inputs: what the allocator keeps free inside, for its own reasons or a recorded graph's, is counted for everybody.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
from typing import Any

import torch

from benchmarks.gpu_models import MODELS, RESULTS, WARM_STEPS, build, spread, step_of, wake_libraries
from benchmarks.measure import environment

WHO = ("eager", "ours", "torch.compile")


def run(name: str, training: bool, who: str) -> int:
    """MiB."""
    import torchstrata

    net, inputs = build(name, training)
    wake_libraries(net, inputs, training)
    call = {"eager": lambda net: net, "ours": torchstrata.compile, "torch.compile": torch.compile}[who](net)
    base = held()
    for _ in range(WARM_STEPS):
        step_of(call, net, inputs, training)
    held()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(2):
        step_of(call, net, inputs, training)
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_reserved() - base) >> 20


def held() -> int:
    """Bytes held from the device once nothing unused is kept: recorded graphs keep theirs."""
    gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
    rows = [row if ":" in row else f"{row}:{mode}" for row in options.names or MODELS for mode in ("training", "inference")]
    tasks = [["benchmarks.gpu_memory", "--row", row, who] for row, who in itertools.product(dict.fromkeys(rows), reversed(WHO))]
    found: dict[str, dict[str, int]] = {}
    for task, result in spread(tasks, options):
        row, who = task[2:]
        if "failed" in result:
            print(row, who, result["failed"], flush=True)
            continue
        found.setdefault(row, {})[who] = result["mb"]
        if len(found[row]) == len(WHO):
            print(row, found[row], flush=True)
            save(row, found[row])


def save(row: str, mb: dict[str, int]) -> None:
    """Puts the peaks into the saved row."""
    saved = json.loads(RESULTS.read_text())
    entry: dict[str, Any] = next(r for r in saved["rows"] if f"{r['model']}:{r['mode']}" == row)
    entry |= {"peak_mb": mb["ours"], "memory_commit": environment()["commit"]}
    entry |= {
        f"peak_{key}": round(mb["ours"] / max(mb[who], 1), 2) for key, who in (("eager", "eager"), ("tc", "torch.compile"))
    }
    RESULTS.write_text(json.dumps(saved, indent=1) + "\n")


if __name__ == "__main__":
    main()
