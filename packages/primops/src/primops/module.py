"""A ``GraphModule`` that generates its Python code when somebody asks for it."""

from __future__ import annotations

from typing import Any

from torch import fx


class LazyGraphModule(fx.GraphModule):
    """Generating code costs several times what building the graph does, and compilers never run
    it.
    """

    def recompile(self) -> Any:
        """Generates the code; put off when called by the constructor."""
        if "_is_made" not in self.__dict__:
            self._is_made = True
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
