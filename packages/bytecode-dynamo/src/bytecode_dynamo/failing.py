"""Compiled graphs that raise where eager mode does not: from then on the captured graph runs as it is, operator by operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule

from .counters import counters
from .hook import Activated
from .policy import Captured

LONGEST_CAUSE = 200
_NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")


def cause_of(error: BaseException) -> str:
    """An exception in a line."""
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}"[:LONGEST_CAUSE]


def lacks_memory(error: BaseException) -> bool:
    """Whether memory was short, which it need not be at the next call."""
    known = isinstance(error, (MemoryError, torch.OutOfMemoryError))
    return known or (isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY))


@dataclass(slots=True, eq=False)
class CompiledGraph:
    """What generated code calls, which later calls find replaced once it has failed."""

    compiled: Activated
    module: GraphModule
    """The captured graph; its code is generated when it is first asked for."""
    report: Captured | None = None
    failed: bool = False

    def replace(self, error: BaseException) -> None:
        """Run the captured graph from now on: only what was compiled raises ``error``."""
        if self.failed or lacks_memory(error):
            return
        self.failed, self.compiled.function = True, self.module.forward
        cause = cause_of(error)
        counters["failed_graphs"] += 1
        counters[f"failed_graphs: {cause}"] += 1
        if self.report is not None:
            self.report.failure = cause

    def suspect(self, error: BaseException) -> None:
        """A handler of the program hides whether eager mode raises, too: let the next two calls find out.

        The captured graph raises what the data is to blame for. Where it does not, and what was compiled raises at the call
        after that again, that is to blame.
        """
        if self.failed or lacks_memory(error):
            return
        before = self.compiled.function

        def as_captured(*inputs: Any) -> Any:
            self.compiled.function = before
            outputs = self.module.forward(*inputs)
            self.compiled.function = as_compiled
            return outputs

        def as_compiled(*inputs: Any) -> Any:
            self.compiled.function = before
            try:
                return before(*inputs)
            except Exception as again:
                self.replace(again)
                raise

        self.compiled.function = as_captured
