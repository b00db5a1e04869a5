"""The ragged size of a nested tensor, a nested int."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from symshapes import is_jagged

from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.state.context import Context

from .base import Variable


@dataclass(frozen=True, slots=True, eq=False)
class RaggedSizeVariable(Variable):
    """A nested int. Graphs read it from a tensor that has it; it has no number."""

    value: torch.SymInt

    def python_type(self) -> type:
        return torch.SymInt

    def describe(self) -> str:
        return "the ragged size of a nested tensor"

    def as_fake(self, ctx: Context) -> Any:
        return self.value

    def truth(self, ctx: Context) -> bool:
        raise GraphBreak("BD004", f"{self.describe()} as a condition")

    def as_proxy(self, ctx: Context) -> Any:
        for x in ctx.tensors.values():
            sizes = x.fake._size if is_jagged(x.fake) and ctx.graph.sees(x.node) else ()
            for dim, size in enumerate(sizes):
                if type(size) is torch.SymInt and size is self.value:
                    return ctx.graph.add_call(torch.ops.aten.sym_size.int, (x.node, dim), {}, size)
        raise GraphBreak(
            "BD004", f"{self.describe()} as a number", "use -1 for it in view() and reshape()"
        )
