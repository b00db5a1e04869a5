"""CPU time of importing primops, beyond torch, and of decomposing a 12-layer GPT."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from typing import Any

import primops
import torch

from benchmarks.kernel_counts import functional_graphs
from integration_tests.models.zoo import GPT

IMPORT = (
    "import time, torch; start = time.process_time(); import primops; print(time.process_time() - "
    "start)"
)
ROUNDS = 5


def import_beyond_torch() -> dict[str, Any]:
    """Seconds in a new process, which has compiled the bytecode before."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | {
            "PYTHONPYCACHEPREFIX": cache
        }
        command = [sys.executable, "-c", IMPORT]
        runs = [
            subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
            for _ in range(ROUNDS)
        ]
    return {"s": round(min(float(run.stdout) for run in runs), 3)}


def decompose_gpt() -> dict[str, Any]:
    """Seconds for forward and backward, the fastest of a few rounds."""
    graphs = functional_graphs(GPT(layers=12), (torch.randint(100, (2, 16)),), training=True)
    seconds = []
    for _ in range(ROUNDS):
        started = time.process_time()
        made = [primops.decompose(graph) for graph in graphs]
        seconds.append(time.process_time() - started)
    nodes = {
        name: sum(len(gm.graph.nodes) for gm in each)
        for name, each in (("nodes", graphs), ("prim nodes", made))
    }
    return {**nodes, "s": round(min(seconds), 3)}


CASES = [import_beyond_torch, decompose_gpt]
