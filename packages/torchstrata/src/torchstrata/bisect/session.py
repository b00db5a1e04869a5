"""What a search observes in the process that runs a program: results of compiled calls, and the
stages of their graphs.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import bytecode_dynamo
import torch
from symshapes.decisions import DecisionLog, count_in_process, stop_counting_in_process
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from torchstrata.context import Context
from torchstrata.errors import CompileError

from .call_check import check_call
from .capture_repro import keep_call
from .compare import first_difference
from .cuts import Part
from .evaluate import copy_graph
from .forms import Stage
from .locate import Finding, locate
from .repro import read_rows, write_rows

REPRO = "repro.strata"
FOUND = 77
"""The exit status of a process that has found a stage that goes wrong."""
CHECKED_CALLS = 3
"""So many calls of each graph are checked."""
MAX_CALLS = 500


class Found(BaseException):
    """Ends a check in this process: a stage goes wrong."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding


@dataclass
class Session:
    """One run of a program.

    Attributes:
        mode: "eager": nothing is compiled; "stages": graphs are compiled, and their stages
            compared; "capture": graphs run as captured.
        directory: where results, findings and repros go.
        limit: how many instructions are captured.
        call: the number of a call of which a repro is written.
        in_child: whether the process belongs to the search, which ends it when something is found.
        seconds: for making a repro smaller.
    """

    mode: str
    directory: Path
    limit: int | None = None
    call: int | None = None
    in_child: bool = True
    seconds: float = 90.0
    results: list[list[Any]] = field(default_factory=list)
    tensors: list[torch.Tensor] = field(default_factory=list)
    log: DecisionLog | None = None
    _stance: bytecode_dynamo.set_stance | None = None

    def begin(self) -> None:
        """Sets the process up."""
        if self.mode == "eager":
            self._stance = bytecode_dynamo.set_stance("force_eager")
        if self.mode == "capture":
            limits = {} if self.limit is None else {"capture": self.limit}
            self.log = count_in_process(limits)
        if self.in_child:
            atexit.register(self.finish)

    def end(self) -> None:
        """Sets the process back."""
        if self._stance is not None:
            self._stance.__exit__()
        if self.log is not None:
            stop_counting_in_process()

    # -- results of calls ------------------------------------------------------------------------

    def observed(self, compiled: Any) -> Any:
        """The compiled function or module, whose calls are noted."""
        if isinstance(compiled, type):
            return compiled
        if isinstance(compiled, torch.nn.Module):
            call: Any = compiled._bytecode_dynamo_call
            object.__setattr__(compiled, "_bytecode_dynamo_call", self._noted(call, compiled))
            return compiled
        return functools.wraps(compiled)(self._noted(compiled, None))

    def _noted(self, call: Callable[..., Any], module: Any) -> Callable[..., Any]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            if bytecode_dynamo.is_compiling():
                return call(*args, **kwargs)
            if len(self.results) == self.call:
                self._keep(call, args, kwargs)
            result = call(*args, **kwargs)
            self._note(result, (args, kwargs), module)
            return result

        return noted

    @bytecode_dynamo.disable
    def _keep(self, call: Any, args: Any, kwargs: Any) -> None:
        keep_call(getattr(call, "original", call), args, kwargs, self.directory / REPRO)

    @bytecode_dynamo.disable
    def _note(self, result: Any, arguments: Any, module: Any) -> None:
        if len(self.results) >= MAX_CALLS:
            return
        given = [x for x in pytree.tree_leaves(arguments) if isinstance(x, torch.Tensor)]
        if module is not None:
            given += module.parameters()
        known = set(map(id, self.tensors))
        self.tensors += [x for x in given if id(x) not in known and x.requires_grad]
        leaves = [*pytree.tree_leaves(result), *given[:64]]
        self.results.append(
            [_plain(x) for x in leaves if isinstance(x, (torch.Tensor, int, float))]
        )

    def finish(self) -> None:
        """Writes the results: those of each call, and then the gradients."""
        gradients = [_plain(x.grad) for x in self.tensors if x.grad is not None]
        rows = [("call", str(i), x) for i, call in enumerate(self.results) for x in call]
        rows += [("gradient", "", x) for x in gradients]
        write_rows(self.directory / f"{self.mode}.jsonl", rows)
        if self.log is not None:
            last = self.log.last("capture")
            facts = {"count": self.log.counts["capture"], "last": last and asdict(last)}
            (self.directory / "capture.json").write_text(json.dumps(facts))

    # -- stages of graphs ------------------------------------------------------------------------

    def checked(
        self, ctx: Context, graph: GraphModule, compile: Callable[[], Callable[..., Any]]
    ) -> Callable[..., Any]:
        """What a captured graph is compiled to, with its first calls checked."""
        own, calls = copy_graph(graph), 0
        if self.mode != "stages":
            return lambda *inputs: own(*inputs)
        try:
            compiled = compile()
        except CompileError:
            compiled = own  # the check at the first call says why

        def call(*inputs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls <= CHECKED_CALLS:
                self._check(ctx, own, inputs)
            return compiled(*inputs)

        return call

    def _check(self, ctx: Context, graph: GraphModule, inputs: Sequence[Any]) -> None:
        wrong = check_call(ctx, graph, inputs, self._progress)
        if wrong is None:
            return
        path = self.directory / REPRO
        try:
            finding = locate(*wrong.facts, path, self.seconds)
        except Exception as error:
            said = f"{wrong.difference}; no repro: {type(error).__name__}: {error}"
            finding = Finding(" or ".join(wrong.stage.layers), wrong.stage.name, said)
        self.report(finding)

    def _progress(self, ctx: Context, stage: Stage, part: Part) -> None:
        if self.in_child:
            (self.directory / "progress").write_text(stage.name)

    def report(self, finding: Finding) -> None:
        """Ends the run with a finding."""
        facts = asdict(finding) | {"repro": str(finding.repro or "")}
        (self.directory / "finding.json").write_text(json.dumps(facts))
        if not self.in_child:
            raise Found(finding)
        sys.stdout.flush()
        os._exit(FOUND)  # handlers of the program must not run: nothing after this is its own


def _plain(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def differing_results(directory: Path, mode: str) -> str:
    """How the results of a run differ from those of the eager run; empty if they don't."""
    try:
        eager, other = ([*read_rows(directory / f"{name}.jsonl")] for name in ("eager", mode))
    except OSError:
        return "the program has left no results"
    for row, wanted in zip(other, eager):
        found = first_difference([row[2]], [wanted[2]])
        if found:
            return f"{wanted[0]} {wanted[1]}: {found}".replace(" result 0:", "")
    return "" if len(eager) == len(other) else f"{len(other)} results instead of {len(eager)}"
