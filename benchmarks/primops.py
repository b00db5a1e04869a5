"""CPU time of importing primops, beyond torch, and of decomposing a 12-layer GPT: ``python -m benchmarks.primops``."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time

import aotgrad
import primops
import torch
from torch import nn

from integration_tests.models.zoo import GPTBlock

IMPORT = "import time, torch; start = time.process_time(); import primops; print(time.process_time() - start)"


class GPT(nn.Module):
    """Embeddings, blocks, a head and its loss."""

    def __init__(self, layers: int, width: int = 64, heads: int = 4, words: int = 100) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.Sequential(*(GPTBlock(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.norm(self.blocks(self.words(tokens))))
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def training_graphs(model: nn.Module, *inputs: torch.Tensor) -> list[torch.fx.GraphModule]:
    """The functional forward and backward graphs."""
    graphs: list[torch.fx.GraphModule] = []

    def keep(gm: torch.fx.GraphModule, examples: object) -> object:
        graphs.append(gm)
        return gm

    aotgrad.aot_module(model, forward_compiler=keep)(*inputs).backward()
    return graphs


def main() -> None:
    with tempfile.TemporaryDirectory() as cache:  # of bytecode, which the first run fills
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | {"PYTHONPYCACHEPREFIX": cache}
        command = [sys.executable, "-c", IMPORT]
        runs = [subprocess.run(command, capture_output=True, text=True, check=True, env=environment) for _ in range(5)]
    print(f"import primops, beyond torch: {min(float(run.stdout) for run in runs):.3f} s")
    graphs = training_graphs(GPT(12), torch.randint(100, (2, 16)))
    best = float("inf")
    for _ in range(5):
        start = time.process_time()
        made = [primops.decompose(gm) for gm in graphs]
        best = min(best, time.process_time() - start)
    nodes = sum(len(gm.graph.nodes) for gm in graphs), sum(len(gm.graph.nodes) for gm in made)
    print(f"decompose a 12-layer GPT, forward and backward: {best:.3f} s, {nodes[0]} to {nodes[1]} nodes")


if __name__ == "__main__":
    main()
