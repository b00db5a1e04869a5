"""The scheduler's pipeline: groups, fusion, order, kernels, memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from loopir.backend import CodeGenerator, OffersTemplates, SelectsKernels
from loopir.ir.kernel import Kernel
from loopir.ir.nest import map_leaves
from loopir.ir.node import ExternNode, LoweredGraph, Node, View
from loopir.ir.program import ExternCall, Launch, MakeView, Program, Step, check_program
from loopir.ir.simplify import ZERO
from loopir.ir.template import Template, format_any, kernels_of
from loopir.ir.verify import check_kernel
from loopir.options import Options

from .build import build_kernel
from .dag import Dag, is_ordered
from .fusion import Fusion
from .memory import plan_memory, uses_of
from .peak import order_steps
from .selection import Selection
from .start import move_starts
from .template import build_template


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
    graph = replace(graph, nodes=_live_nodes(graph), buffers=dict(graph.buffers))
    dag = Dag(graph)
    generators = (codegens or {}).items()
    offering = generators if options.templates else ()
    templates = {d: g for d, g in offering if isinstance(g, OffersTemplates)}
    selective = {d: g for d, g in generators if isinstance(g, SelectsKernels)}
    fusion = Fusion(graph, options, dag, templates, Selection(graph, dag, selective, options))
    if options.fuse:
        fusion.run()
    outputs = graph.output_buffers
    kernels = _Kernels(options.check)
    steps: list[Step] = []
    views: dict[View, str] = {}
    for group in order_steps(dag, graph):
        if group.extern is not None and group.is_call:
            steps += _extern_steps(group.extern, graph, views)
            continue
        external = dag.external(group, {group.name}, outputs)
        built = (
            build_kernel(group, graph, external, options=options)
            if group.extern is None
            else build_template(group, graph, external)
        )
        assert built is not None
        kernel, buffers = built
        if isinstance(kernel, Template):
            steps.append(Launch(kernels.add(kernel), buffers))
        elif kernel.bodies:
            kernel, starts = move_starts(kernel)
            steps.append(Launch(kernels.add(kernel), buffers, starts))
    named = {*graph.inputs, *graph.constants}.union(*map(uses_of, steps))
    program = Program(
        inputs=tuple(graph.inputs),
        buffers={name: buffer for name, buffer in graph.buffers.items() if name in named},
        constants=dict(graph.constants),
        kernels=tuple(kernels.kernels),
        steps=tuple(plan_memory(steps, graph, kernels.kernels, options.reuse)),
        outputs=tuple(graph.outputs),
        decisions=tuple(fusion.decisions),
        hints=dict(graph.facts.hints),
        numbers=frozenset(graph.numbers),
        required=tuple(graph.required),
    )
    if options.check:
        check_program(program)
    return program


class _Kernels:
    """The kernels of a program; kernels with the same text are one."""

    def __init__(self, check: bool) -> None:
        self.check = check
        self.kernels: list[Kernel | Template] = []
        self._numbers: dict[str, int] = {}

    def add(self, kernel: Kernel | Template) -> int:
        text = format_any(replace(kernel, origins=()))
        if text not in self._numbers:
            named = replace(kernel, name=f"kernel{len(self.kernels)}")
            for each in kernels_of(named) if self.check else ():
                check_kernel(each)
            self._numbers[text] = len(self.kernels)
            self.kernels.append(named)
        return self._numbers[text]


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
