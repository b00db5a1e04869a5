"""The stages that are compared: each makes a form from the one before, and both forms can be run.

``functional`` goes from a captured graph (C1) to functional graphs (C2), forward and backward;
``patterns`` and ``prims`` from a functional graph; ``passes`` (the caller's), ``lowering``,
``loops``, ``kernels`` and ``host`` from a prim graph (C3): without and with fusion by the
evaluator, by built kernels, and by the host program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import aotgrad
import loopir
import primops
import torch
from symshapes import SymbolicError
from symshapes.decisions import DecisionLog, counting, may
from torch.fx import GraphModule

from torchstrata.context import Context

from .captured import SEED, compile_eagerly, run_step
from .compare import first_difference
from .evaluate import copy_graph, fresh, run_graph, widened

Run = Callable[[Sequence[Any]], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Stage:
    """One comparison.

    Attributes:
        name: what ``--stage`` calls it.
        layers: whose decisions it contains, in order.
        source: the kind of graph that it takes: "captured", "functional" or "prims".
        make: compiles a graph; what it returns takes the graph's inputs.
        before: the stage from the same kind of graph that comes first.
    """

    name: str
    layers: tuple[str, ...]
    source: str
    make: Callable[[Context, GraphModule], Run]
    before: str = ""


class CountedTable(primops.DecompositionTable):
    """Decompositions that are decisions: an operator whose rule is refused stays a call."""

    @classmethod
    def of(cls, table: primops.DecompositionTable) -> CountedTable:
        """The rules of a table."""
        return cls(table._rules, table._auxiliary)

    def get(self, op: Any) -> Any:
        """The operator's rule, if it may be used."""
        rule = super().get(op)
        allowed = rule is not None and may("decomposition", str(op))
        return rule if allowed else None


def decompose(ctx: Context, graph: GraphModule) -> GraphModule:
    """The prim graph of a functional graph, rule by rule a decision."""
    return ctx.decompose(graph, CountedTable.of(ctx.extensions.table))


def _patterns(ctx: Context, graph: GraphModule) -> Run:
    rewritten = rewrite(ctx, graph)
    return lambda inputs: run_graph(rewritten, inputs)


def rewrite(ctx: Context, graph: GraphModule) -> GraphModule:
    """The functional graph after patterns; ``graph`` is left as it is."""
    return loopir.STAGES[0].run(ctx.pipeline, copy_graph(graph))


def _prims(ctx: Context, graph: GraphModule) -> Run:
    made = decompose(ctx, graph)
    return lambda inputs: primops.evaluate(made, inputs)


def _passes(ctx: Context, graph: GraphModule) -> Run:
    made = with_passes(ctx, graph)
    return lambda inputs: primops.evaluate(made, inputs)


def with_passes(ctx: Context, graph: GraphModule) -> GraphModule:
    """A prim graph after the caller's passes; ``graph`` is left as it is."""
    graph = copy_graph(graph)
    for each in ctx.pipeline.passes:
        if each.level == "prims" and may("pattern", str(each)):
            graph = each(graph)
    return graph


def _lowering(ctx: Context, graph: GraphModule) -> Run:
    lowered = loopir.lower(copy_graph(graph), ctx.pipeline.options)
    return partial(loopir.evaluate_lowered, lowered)


def schedule(ctx: Context, graph: GraphModule) -> loopir.Program:
    """The program of a prim graph, as compiled."""
    options = ctx.pipeline.options
    program = loopir.schedule(loopir.lower(copy_graph(graph), options), options, ctx.codegens)
    for each in ctx.pipeline.passes:
        if each.level == "loops" and may("fusion", str(each)):
            program = each(program)
    return program


def _loops(ctx: Context, graph: GraphModule) -> Run:
    return partial(loopir.evaluate_program, schedule(ctx, graph))


def _kernels(ctx: Context, graph: GraphModule) -> Run:
    return built(ctx, schedule(ctx, graph))


def built(ctx: Context, program: loopir.Program) -> Run:
    """The program with built kernels; those that a search refuses run in the evaluator."""
    sources = loopir.generate(program, ctx.codegens, ctx.deadline)
    allowed = [
        i for i, k in enumerate(program.kernels) if may("code generation", k.name, ops_of(k))
    ]
    launchers: dict[int, Any] = {}
    for device, codegen in ctx.codegens.items():
        own = [i for i in allowed if program.kernels[i].device == device]
        if own:
            made = codegen.build([sources[i] for i in own], ctx.store)
            launchers |= dict(zip(own, made, strict=True))
    evaluated = loopir.evaluate_launch(program)

    def launch(number: int, tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> None:
        if number in launchers:
            launchers[number](*tensors, *sizes)
        else:
            evaluated(number, tensors, sizes)

    return partial(loopir.evaluate_program, program, launch=launch)


def ops_of(kernel: loopir.Kernel | loopir.Template) -> str:
    """What a kernel computes, in a few words."""
    steps = [step for each in loopir.kernels_of(kernel) for step in each.steps]
    names = [step.args[0] if step.op == "reduce" else step.op for step in steps]
    plain = [str(name) for name in names if name not in ("load", "store", "constant")]
    return ", ".join(dict.fromkeys(plain)) or "a copy"


def _host(ctx: Context, graph: GraphModule) -> Run:
    return launched(ctx, schedule(ctx, graph))


def launched(ctx: Context, program: loopir.Program) -> Run:
    """The program as it is called."""
    sources = loopir.generate(program, ctx.codegens, ctx.deadline)
    join = may("launch", "join launches")
    host = loopir.build_host(program, sources, ctx.codegens, ctx.store, ctx.deadline, join=join)
    return lambda inputs: host(*inputs)


def _blocks(ctx: Context, graph: GraphModule) -> Run:
    """All stages of a functional graph whose equal parts are compiled once."""
    pipeline = replace(ctx.pipeline, options=replace(ctx.pipeline.options, blocks=True))
    host = loopir.run_stages(pipeline, copy_graph(graph))
    return lambda inputs: host(*inputs)


def _functional(ctx: Context, graph: GraphModule) -> Run:
    call = compile_eagerly(ctx, graph)
    return lambda inputs: run_step(call, inputs)


STAGES: dict[str, Stage] = {
    stage.name: stage
    for stage in (
        Stage("functional", ("functionalisation", "pattern", "partition"), "captured", _functional),
        Stage("patterns", ("pattern",), "functional", _patterns),
        Stage("prims", ("decomposition",), "functional", _prims),
        Stage("passes", ("pattern",), "prims", _passes),
        Stage("lowering", ("lowering",), "prims", _lowering),
        Stage("loops", ("fusion",), "prims", _loops, "lowering"),
        Stage("kernels", ("code generation",), "prims", _kernels, "loops"),
        Stage("host", ("launch",), "prims", _host, "kernels"),
        Stage("blocks", ("pattern", "fusion"), "functional", _blocks),
    )
}
"""In the order in which they are compared."""


@dataclass(frozen=True, slots=True)
class Reference:
    """What a graph computes: by eager kernels, and in float64 where that can be done."""

    expected: Sequence[Any]
    exact: Sequence[Any] | None
    is_random: bool = False

    def difference(self, actual: Sequence[Any]) -> str:
        """How results differ; empty if they don't."""
        return first_difference(actual, self.expected, self.exact)


def reference(source: str, graph: GraphModule, inputs: Sequence[Any]) -> Reference:
    """The reference results of a graph of a kind. Raises what eager raises."""
    run = _RUNS[source]
    expected, is_random = seeded(lambda: run(graph, fresh(inputs), False))
    if is_random:
        return Reference(expected, None, True)  # other dtypes draw other numbers
    try:
        exact, _ = seeded(lambda: run(graph, [*map(widened, fresh(inputs))], True))
    except Exception:
        exact = None  # not every graph runs in float64
    return Reference(expected, exact)


def seeded(run: Callable[[], Any]) -> tuple[Any, bool]:
    """What ``run`` returns with the random numbers of one seed, and whether it drew any."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        before = torch.random.get_rng_state()
        result = run()
        return result, not torch.equal(before, torch.random.get_rng_state())


def _run_prims(graph: GraphModule, inputs: Sequence[Any], wide: bool) -> Sequence[Any]:
    return primops.evaluate(graph, inputs, promote_to=torch.float64 if wide else None)


def _run_functional(graph: GraphModule, inputs: Sequence[Any], wide: bool) -> Sequence[Any]:
    return run_graph(graph, inputs, wide=wide)


def _run_step(graph: GraphModule, inputs: Sequence[Any], wide: bool) -> Sequence[Any]:
    return run_step(lambda *given: run_graph(graph, given, wide=wide), inputs)


_RUNS: dict[str, Callable[[GraphModule, Sequence[Any], bool], Sequence[Any]]] = {
    "captured": _run_step,
    "functional": _run_functional,
    "prims": _run_prims,
}


def compare(
    ctx: Context,
    stage: Stage,
    graph: GraphModule,
    inputs: Sequence[Any],
    known: Reference | None = None,
    limits: dict[str, int] | None = None,
) -> tuple[str, DecisionLog]:
    """How the stage's result on a graph differs from the graph's own, and the stage's decisions;
    what the stage raises is a difference, too.

    ``known``: the reference results. ``limits``: how many decisions of each layer are made.
    """
    wanted = known or reference(stage.source, graph, inputs)
    with counting(limits) as log, torch._C.DisableTorchFunction():
        try:
            run = stage.make(ctx, graph)
            actual, _ = seeded(lambda: run(fresh(inputs)))
        except (aotgrad.Unsupported, SymbolicError):
            return "", log  # compiled in another way, or not at all
        except Exception as error:
            return f"raises {type(error).__name__}: {error}", log
    return wanted.difference(actual), log
