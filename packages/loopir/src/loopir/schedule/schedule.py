"""The scheduler's pipeline: groups, fusion, order, kernels, memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import sympy

from loopir.backend import CodeGenerator, OffersTemplates
from loopir.ir.kernel import Kernel
from loopir.ir.node import ExternNode, LoweredGraph, Node, View
from loopir.ir.program import ExternCall, Launch, MakeView, Program, Step, check_program
from loopir.ir.template import Template, format_any, kernels_of
from loopir.ir.verify import check_kernel
from loopir.options import Options

from .build import build_kernel
from .dag import Dag, is_ordered
from .fusion import Fusion
from .memory import plan_memory
from .peak import order_steps
from .start import move_starts
from .template import build_template


def schedule(
    graph: LoweredGraph,
    options: Options | None = None,
    codegens: Mapping[str, CodeGenerator] | None = None,
) -> Program:
    """Fuses, orders and places the nodes of a lowered graph. ``codegens`` by device type are asked
    for templates.

    ``options``: those that the graph was lowered with. Raises ScheduleError for a defect of this
    package.
    """
    options = options or Options()
    graph = replace(
        graph, nodes=_live_nodes(graph.nodes, graph.outputs), buffers=dict(graph.buffers)
    )
    dag = Dag(graph)
    templates = {
        device: codegen
        for device, codegen in (codegens or {}).items()
        if isinstance(codegen, OffersTemplates)
    }
    fusion = Fusion(graph, options, dag, templates)
    if options.fuse:
        fusion.run()
    outputs = {view.buffer for view in graph.outputs if isinstance(view, View)}
    kernels = _Kernels(options.check)
    steps: list[Step] = []
    views: dict[View, str] = {}
    for group in order_steps(dag, graph):
        if group.extern is not None and group.is_call:
            steps += _extern_steps(group.extern, graph, views)
            continue
        external = dag.external(group, {group.name}, outputs)
        built = (
            build_kernel(group, graph, external)
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
    program = Program(
        inputs=tuple(graph.inputs),
        buffers=dict(graph.buffers),
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
    """Kernels that print alike are one."""

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
    """The call, after views for arguments that are not whole buffers and not among the ``views``
    made before.
    """
    steps: list[Step] = []

    def name(argument: object) -> object:
        if isinstance(argument, View):
            buffer = graph.buffers[argument.buffer]
            if (
                argument.offset == 0
                and argument.shape == buffer.shape
                and argument.stride == buffer.stride
            ):
                return argument
            if argument not in views:
                views[argument] = f"view{len(views)}"
                steps.append(MakeView(views[argument], argument))
            return View(views[argument], argument.shape, argument.stride, sympy.Integer(0))
        if isinstance(argument, tuple | list):
            return type(argument)(name(item) for item in argument)
        if isinstance(argument, dict):
            return {key: name(item) for key, item in argument.items()}
        return argument

    args = tuple(name(argument) for argument in node.args)
    kwargs = tuple((key, name(argument)) for key, argument in node.kwargs)
    return [*steps, ExternCall(replace(node, args=args, kwargs=kwargs))]


def _live_nodes(nodes: list[Node], outputs: list[object]) -> list[Node]:
    """Nodes that an output needs, and extern calls that are made for their effect or bind sizes."""
    wanted = {view.buffer for view in outputs if isinstance(view, View)}
    live = []
    for node in reversed(nodes):
        if isinstance(node, ExternNode):
            results = {name for name in node.results if name}
            if results and not results & wanted and not node.binds and not is_ordered(node):
                continue
        elif node.buffer not in wanted:
            continue
        wanted |= node.read_names
        live.append(node)
    return live[::-1]
