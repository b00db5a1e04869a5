"""The scheduler's pipeline: groups, fusion, order, kernels, memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from symshapes.choices import within

from loopir.backend import CodeGenerator, OffersTemplates, SelectsKernels
from loopir.ir.kernel import Kernel
from loopir.ir.nest import map_leaves
from loopir.ir.node import Block, ExternNode, LoweredGraph, Node, View, is_ordered
from loopir.ir.program import (
    Decision,
    ExternCall,
    Launch,
    MakeView,
    Program,
    Step,
    check_program,
)
from loopir.ir.simplify import ZERO
from loopir.ir.template import Template, format_any, kernels_of
from loopir.ir.verify import check_kernel
from loopir.options import Options

from .blocks import blocks_in, expanded
from .build import build_kernel
from .dag import Dag
from .fusion import Fusion
from .group import Group
from .memory import plan_memory, uses_of
from .peak import order_steps
from .selection import Selection
from .small import join_small
from .start import move_starts
from .template import build_template
from .updates import updated_inputs


def schedule(
    graph: LoweredGraph,
    options: Options | None = None,
    codegens: Mapping[str, CodeGenerator] | None = None,
) -> Program:
    """Fuses and orders the nodes of a lowered graph and plans their memory.

    ``codegens`` by device type are asked for templates, and what they support. ``options``: those
    with which the graph was lowered. Raises ScheduleError for a defect of this package.
    """
    options = options or Options()
    scheduler = _Scheduler(options, codegens or {})
    known = {block: scheduler.run_block(block) for block in blocks_in(graph)}
    graph = replace(graph, buffers=dict(graph.buffers))
    return plan(graph, scheduler, scheduler.run(graph), known)


def plan(
    graph: LoweredGraph,
    scheduler: _Scheduler,
    steps: Sequence[Step],
    known: Mapping[Block, Sequence[Step]],
) -> Program:
    """The program of all steps, with those of blocks, and its memory."""
    options, given = scheduler.options, {*graph.inputs, *graph.constants}
    if known:
        steps = [*expanded(steps, graph, known)]
    updates: dict[str, str] = {}
    if options.reuse:
        steps, updates = updated_inputs(steps, graph, scheduler.kernels)
    if known and options.fuse:
        steps = join_small(steps, scheduler.kernels, given, graph.facts, scheduler.add_supported)
    kernels, steps = _launched(scheduler.kernels, steps)
    steps = _with_views(steps, graph)
    named = given.union(*map(uses_of, steps))
    program = Program(
        inputs=tuple(graph.inputs),
        buffers={name: buffer for name, buffer in graph.buffers.items() if name in named},
        constants=dict(graph.constants),
        kernels=tuple(kernels),
        steps=tuple(plan_memory(steps, graph, kernels, options.reuse, updates)),
        outputs=tuple(graph.outputs),
        decisions=tuple(scheduler.decisions),
        hints=dict(graph.facts.hints),
        numbers=frozenset(graph.numbers),
        required=tuple(graph.required),
    )
    if options.check:
        check_program(program)
    return program


class _Scheduler:
    """Orders the steps of graphs that share their kernels; kernels with the same text are one."""

    def __init__(self, options: Options, codegens: Mapping[str, CodeGenerator]) -> None:
        self.options = options
        generators = codegens.items()
        offering = generators if options.templates else ()
        self.templates = {d: g for d, g in offering if isinstance(g, OffersTemplates)}
        self.selective = {d: g for d, g in generators if isinstance(g, SelectsKernels)}
        self.kernels: list[Kernel | Template] = []
        self.decisions: list[Decision] = []
        self._numbers: dict[str, int] = {}

    def run_block(self, block: Block) -> list[Step]:
        """``run`` for the graph of a block, whose buffers have names of their own."""
        with within(block.name):
            return self.run(block.graph)

    def run(self, graph: LoweredGraph) -> list[Step]:
        """The launches and calls of a graph, in order."""
        graph = replace(graph, nodes=_live_nodes(graph))
        dag = Dag(graph)
        selection = Selection(graph, dag, self.selective, self.options)
        fusion = Fusion(graph, self.options, dag, self.templates, selection)
        if self.options.fuse:
            fusion.run()
        self.decisions += fusion.decisions
        found = (self._step(group, graph, dag) for group in order_steps(dag, graph))
        return [step for step in found if step is not None]

    def _step(self, group: Group, graph: LoweredGraph, dag: Dag) -> Step | None:
        """A group as a step; None if nothing needs what it computes."""
        if group.extern is not None and group.is_call:
            return ExternCall(group.extern)
        external = dag.external(group, {group.name}, graph.output_buffers)
        built = (
            build_kernel(group, graph, external, options=self.options)
            if group.extern is None
            else build_template(group, graph, external)
        )
        assert built is not None
        kernel, buffers = built
        if isinstance(kernel, Template):
            return Launch(self._add(kernel), buffers)
        if not kernel.bodies:
            return None
        kernel, starts = move_starts(kernel)
        return Launch(self._add(kernel), buffers, starts)

    def add_supported(self, kernel: Kernel) -> int | None:
        """The number of a kernel, which is added; None if its code generator does not take it."""
        selective = self.selective.get(kernel.device)
        return None if selective and not selective.supports(kernel) else self._add(kernel)

    def _add(self, kernel: Kernel | Template) -> int:
        text = format_any(replace(kernel, origins=()))
        if text not in self._numbers:
            named = replace(kernel, name=f"kernel{len(self.kernels)}")
            for each in kernels_of(named) if self.options.check else ():
                check_kernel(each)
            self._numbers[text] = len(self.kernels)
            self.kernels.append(named)
        return self._numbers[text]


def _launched(
    kernels: Sequence[Kernel | Template], steps: Sequence[Step]
) -> tuple[list[Kernel | Template], Sequence[Step]]:
    """The kernels that steps launch, and the steps with their numbers."""
    used = sorted({step.kernel for step in steps if isinstance(step, Launch)})
    if len(used) == len(kernels):
        return [*kernels], steps
    numbers = {old: new for new, old in enumerate(used)}
    return [replace(kernels[old], name=f"kernel{new}") for old, new in numbers.items()], [
        replace(step, kernel=numbers[step.kernel]) if isinstance(step, Launch) else step
        for step in steps
    ]


def _with_views(steps: Sequence[Step], graph: LoweredGraph) -> list[Step]:
    """The steps, with a view made before the first call that takes it."""
    views: dict[View, str] = {}
    placed: list[Step] = []
    for step in steps:
        placed += _extern_steps(step.node, graph, views) if isinstance(step, ExternCall) else [step]
    return placed


def _extern_steps(node: ExternNode, graph: LoweredGraph, views: dict[View, str]) -> list[Step]:
    """The call, preceded by views for arguments that are not whole buffers and not in ``views``."""
    steps: list[Step] = []

    def named(argument: object) -> object:
        if not isinstance(argument, View) or argument.is_whole(graph.buffers[argument.buffer]):
            return argument
        if argument not in views:
            views[argument] = f"view{len(views)}"
            steps.append(MakeView(views[argument], argument))
        return View(views[argument], argument.shape, argument.stride, ZERO)

    args, kwargs = map_leaves(named, (node.args, dict(node.kwargs)))
    return [*steps, ExternCall(replace(node, args=args, kwargs=tuple(kwargs.items())))]


def _live_nodes(graph: LoweredGraph) -> list[Node]:
    """Nodes that an output needs, and extern calls that have effects or bind sizes."""
    wanted, live = graph.output_buffers, []
    for node in reversed(graph.nodes):
        if isinstance(node, ExternNode):
            results = node.result_names
            is_unread = bool(results) and wanted.isdisjoint(results)
            if is_unread and not node.binds and not is_ordered(node):
                continue
        elif node.buffer not in wanted:
            continue
        wanted |= node.read_names
        live.append(node)
    return live[::-1]
