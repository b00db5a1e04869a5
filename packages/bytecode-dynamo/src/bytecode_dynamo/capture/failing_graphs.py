"""Compiled graphs that raise where eager mode does not: recompiled plainly, then run uncompiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from symshapes import is_of_handler
from torch.fx import GraphModule

from bytecode_dynamo.counters import counters
from bytecode_dynamo.hook.frame_hook import Activated

from .policy import Captured, Kept

LONGEST_CAUSE = 200
_NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")


def cause_of(error: BaseException) -> str:
    """An exception in a line."""
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}"[:LONGEST_CAUSE]


def lacks_memory(error: BaseException) -> bool:
    """Whether the error is out-of-memory, which the next call may not repeat."""
    known = isinstance(error, (MemoryError, torch.OutOfMemoryError))
    return known or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY)
    )


@dataclass(slots=True, eq=False)
class CompiledGraph:
    """The graph that generated code calls; a failure replaces it for later calls."""

    compiled: Activated
    captured: Callable[[], GraphModule]
    """Gives the captured graph; its code is generated on first use."""
    reports: tuple[Captured | Kept, ...] = ()
    plain: Callable[..., Any] | None = None
    """The backend that compiles without optimisations, until it has been tried (contract B9)."""
    failed: bool = False
    """Whether the captured graph runs as it is, operator by operator."""

    @property
    def module(self) -> GraphModule:
        """The captured graph."""
        return self.captured()

    def replace(self, error: BaseException) -> None:
        """Replace the compiled graph, which alone raises ``error``, from now on."""
        if self.failed or lacks_memory(error):
            return
        self.failed = self.plain is None
        self.compiled.function = self.module.forward if self.failed else self._compile_plainly
        cause = cause_of(error)
        counters["failed_graphs"] += 1
        counters[f"failed_graphs: {cause}"] += 1
        for report in self.reports:
            report.failure = cause

    def _compile_plainly(self, *inputs: Any) -> Any:
        """Compile plainly at the first call after a failure, unless that needs another guard."""
        plain, self.plain = self.plain, None
        assert plain is not None
        self.failed, self.compiled.function = True, self.module.forward
        try:
            with _without_new_guards(self.module):
                compiled = plain(self.module, list(inputs))
        except Exception as error:
            if is_of_handler(error):
                raise
            return self.module.forward(*inputs)
        self.failed, self.compiled.function = False, compiled
        return compiled(*inputs)

    def suspect(self, error: BaseException) -> None:
        """Find out over two calls whether eager mode raises too, which a handler of the program
        hides.

        The next call runs the captured graph, which raises what the data causes. If it does not
        raise, and the compiled graph raises again at the call after that, the compiled graph is
        wrong.
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


@contextmanager
def _without_new_guards(module: GraphModule) -> Iterator[None]:
    sizes = [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")]
    env = next((size.node.shape_env for size in sizes if isinstance(size, torch.SymInt)), None)
    if env is None:
        yield
    else:
        with env.freeze():
            yield
