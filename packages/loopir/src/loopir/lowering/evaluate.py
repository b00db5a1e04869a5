"""The meaning of a lowered graph: its nodes one by one, each a kernel of its own in new memory.

The scheduler has no part in it, so that it tells a wrong lowering from a wrong schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loopir.ir.evaluate_program import evaluate_program
from loopir.ir.kernel import Body, Kernel, KernelBuffer, accessed
from loopir.ir.node import ExternNode, LoopNode, LoweredGraph
from loopir.ir.program import Allocate, ExternCall, Launch, Program, Step
from loopir.ir.simplify import ZERO


def evaluate_lowered(graph: LoweredGraph, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """The outputs of a lowered graph without blocks, on real inputs."""
    return evaluate_program(plain_program(graph), inputs)


def plain_program(graph: LoweredGraph) -> Program:
    """The nodes in order, a launch or call each; nothing is fused, and no memory used twice."""
    kernels: list[Kernel] = []
    steps: list[Step] = []
    made = {*graph.input_buffers, *graph.constants}
    for node in graph.nodes:
        if isinstance(node, ExternNode):
            steps.append(ExternCall(node))
            made.update(node.result_names)
            continue
        if node.buffer not in made:
            steps.append(Allocate(node.buffer))
            made.add(node.buffer)
        kernel = _kernel(node, graph, f"kernel{len(kernels)}")
        steps.append(Launch(len(kernels), tuple(b.name for b in kernel.buffers)))
        kernels.append(kernel)
    return Program(
        inputs=tuple(graph.inputs),
        buffers=dict(graph.buffers),
        constants=dict(graph.constants),
        kernels=tuple(kernels),
        steps=tuple(steps),
        outputs=tuple(graph.outputs),
        hints=dict(graph.facts.hints),
        numbers=frozenset(graph.numbers),
        required=tuple(graph.required),
    )


def _kernel(node: LoopNode, graph: LoweredGraph, name: str) -> Kernel:
    """The kernel of one node, with the names of the graph's buffers."""
    bodies = [Body(bool(node.reduction), node.program)]
    bodies += [Body(False, node.epilogue)] if node.epilogue else []
    steps = (*node.program, *node.epilogue)
    names = dict.fromkeys([*sorted(accessed(steps) - {node.buffer}), node.buffer])
    buffers = tuple(
        KernelBuffer(each, graph.buffers[each].dtype, "inout", graph.buffers[each].numel)
        for each in names
    )
    loops = {item.symbol for item in (*node.ranges, *node.reduction)}
    exprs = [item.extent for item in (*node.ranges, *node.reduction)]
    exprs += [buffer.numel for buffer in buffers]
    exprs += [expr for step in steps for expr in step.expressions]
    indirect = {step.result for step in steps if step.op == "indirect"}
    sizes = {s for expr in exprs for s in (expr + ZERO).free_symbols} - loops
    own = sorted((s for s in sizes if s.name not in indirect), key=str)  # type: ignore[attr-defined]
    device = graph.buffers[node.buffer].device.type
    return Kernel(name, device, buffers, tuple(own), node.ranges, node.reduction, tuple(bodies))  # type: ignore[arg-type]
