"""Comparison in production: some calls of compiled graphs are compared, stage by stage."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from symshapes.text.values import Unwritable
from torch.fx import GraphModule

from torchstrata.context import Context
from torchstrata.counters import counters
from torchstrata.errors import WrongResultError, WrongResultWarning

from .call_check import WrongStage, check_call
from .evaluate import fresh
from .forms import Reference, reference
from .repro import Repro

MAX_REPORTS = 1
"""Of one graph: it goes wrong in the same way at each call."""


@dataclass
class Sampled:
    """A compiled graph, some of whose calls are compared.

    Attributes:
        ctx: what it was compiled with.
        graph: the captured graph.
        compiled: the callable.
        rate: the share of calls that are compared, 0 to 1.
        raises: whether a difference is an error; else it is a warning.
    """

    ctx: Context
    graph: GraphModule
    compiled: Callable[..., Sequence[Any]]
    rate: float
    raises: bool
    _source: random.Random = field(default_factory=random.Random)
    _reports: int = 0

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        """The results of the compiled graph."""
        if self._reports >= MAX_REPORTS or self._source.random() >= self.rate:
            return self.compiled(*inputs)
        counters.compiler.update(verified_calls=1)
        given = fresh(inputs)
        results = self.compiled(*inputs)
        with torch.random.fork_rng(devices=[]):
            said = self._compared(given, results)
        if said:
            self._reports += 1
            counters.compiler.update(wrong_calls=1)
            if self.raises:
                raise WrongResultError(said)
            warnings.warn(said, WrongResultWarning, stacklevel=2)
        return results

    def _compared(self, inputs: Sequence[Any], results: Sequence[Any]) -> str:
        wrong = check_call(self.ctx, self.graph, inputs)
        if wrong is not None:
            return _report(wrong)
        try:
            known = reference("captured", self.graph, inputs)
        except Exception:
            return ""  # eager refuses these inputs, as the call has by now
        if known.is_random:
            return ""
        count = len(results)
        exact = None if known.exact is None else known.exact[:count]
        found = Reference(known.expected[:count], exact).difference(results)
        return (
            f"a compiled graph gives a wrong result: {found}; no stage alone does" if found else ""
        )


def _report(wrong: WrongStage) -> str:
    """What to say of a stage that goes wrong; its repro is written beside the cache."""
    layers = " or ".join(wrong.stage.layers)
    said = (
        f"the stage {wrong.stage.name} ({layers}) of a compiled graph gives a wrong result: "
        f"{wrong.difference}"
    )
    path = Path(wrong.ctx.store.root) / "repros" / f"{wrong.stage.name}.strata"
    facts = {"inference": wrong.ctx.inference, "options": wrong.ctx.config.saved()}
    try:
        Repro.of(wrong.stage.name, wrong.stage.source, wrong.part, facts).write(path)
    except (Unwritable, OSError, ValueError):
        return said
    return f"{said}\n  try: python -m torchstrata replay {path} --shrink"


def sampled(
    ctx: Context, graph: GraphModule, compiled: Callable[..., Sequence[Any]]
) -> Callable[..., Sequence[Any]]:
    """``compiled`` with the checks that the setting ``verify`` asks for."""
    verify = ctx.config.verify
    rate = 1.0 if verify is True else float(verify)
    plain = replace(
        ctx, config=ctx.config.with_options({"verify": False}), cache_entry=None, trace=None
    )
    return Sampled(plain, graph, compiled, rate, verify is True)
