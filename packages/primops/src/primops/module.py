"""A ``GraphModule`` that generates its Python code when somebody asks for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx


class LazyGraphModule(fx.GraphModule):
    """Generating code costs several times what building the graph does, and compilers never run it."""

    def __init__(self, root: torch.nn.Module, graph: fx.Graph) -> None:
        """Takes over ``graph``; constants come from ``root``."""
        self.__dict__["_deferred"] = True
        super().__init__(root, graph)

    def recompile(self) -> Any:
        """Generates the code; put off when called by the constructor."""
        if self.__dict__.get("_deferred"):
            self.__dict__["_deferred"] = False
            return None
        return super().recompile()

    @property
    def code(self) -> str:
        """Python text of the graph."""
        if "_code" not in self.__dict__:
            self.recompile()
        return self._code

    def __str__(self) -> str:
        return self.code

    def __repr__(self) -> str:
        return f"<graph of {len(self.graph.nodes)} nodes>"

    def forward(self, *args: Any) -> Any:
        """Runs the graph on real tensors through the prims' references."""
        self.recompile()  # replaces `forward` in this instance's class
        return self.forward(*args)
