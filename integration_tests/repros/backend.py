"""Functions through the whole back end without capture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import aotgrad
import inductor_cpp
import loopir
import torch


def compiled(
    function: Callable[..., Any], inputs: tuple[torch.Tensor, ...], directory: Path
) -> Callable[..., tuple]:
    """``function`` of tensors, compiled for the CPU; returns its results as a flat tuple."""
    graph = torch.fx.Graph()
    placeholders = tuple(graph.placeholder(f"x{i}") for i in range(len(inputs)))
    graph.output((graph.call_function(function, placeholders),))
    store = loopir.ArtifactStore(directory)
    backend = aotgrad.aot_backend(
        lambda gm, examples: inductor_cpp.compile_graph(gm, examples, store=store)
    )
    return backend(torch.fx.GraphModule(torch.nn.Module(), graph), list(inputs))
