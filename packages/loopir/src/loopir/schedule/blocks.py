"""Puts the steps of blocks in the place of their calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import sympy

from loopir.ir.nest import map_leaves
from loopir.ir.node import Block, ExternNode, LoweredGraph, View
from loopir.ir.program import ExternCall, Launch, Step
from loopir.ir.simplify import ZERO


def blocks_in(graph: LoweredGraph) -> list[Block]:
    """The blocks that the nodes of a graph call, once each."""
    ops = (node.op for node in graph.nodes if isinstance(node, ExternNode))
    return [*dict.fromkeys(op for op in ops if isinstance(op, Block))]


def expanded(
    steps: Sequence[Step], graph: LoweredGraph, known: Mapping[Block, Sequence[Step]]
) -> Iterator[Step]:
    """The steps with those of the blocks, which are ``known``; adds the buffers that blocks make to
    the graph.
    """
    for number, step in enumerate(steps):
        if isinstance(step, ExternCall) and isinstance(step.node.op, Block):
            yield from _Instance(step.node, number, graph).run(known[step.node.op])
        else:
            yield step


class _Instance:
    """One call of a block. ``places`` maps the block's buffers to those of the graph, and where
    they begin there.
    """

    def __init__(self, call: ExternNode, number: int, graph: LoweredGraph) -> None:
        assert isinstance(call.op, Block)
        self.block, self.number, self.graph = call.op, number, graph
        self.places: dict[str, tuple[str, sympy.Expr]] = {}
        for name, view in zip(self.block.graph.inputs, call.views, strict=True):
            self.places[str(name)] = view.buffer, view.offset
        for name, result in zip(self.block.made, call.result_names, strict=True):
            self.places[name] = result, ZERO

    def place(self, name: str) -> tuple[str, sympy.Expr]:
        """The graph's buffer for one of the block's, which is added if the block alone uses it."""
        if name not in self.places:
            own = f"{name}_{self.number}"
            self.graph.buffers[own] = replace(self.block.graph.buffers[name], name=own)
            self.places[name] = own, ZERO
        return self.places[name]

    def run(self, steps: Sequence[Step]) -> Iterator[Step]:
        """The steps on the buffers of this call."""
        for step in steps:
            yield self._launch(step) if isinstance(step, Launch) else self._extern(step)

    def _launch(self, step: Launch) -> Launch:
        placed = [(*self.place(name), start) for name, start in step.operands]
        starts = tuple(offset + start for _, offset, start in placed)
        return Launch(
            step.kernel, tuple(name for name, *_ in placed), starts if any(starts) else ()
        )

    def _extern(self, step: Step) -> ExternCall:
        assert isinstance(step, ExternCall)
        node = step.node

        def moved(argument: object) -> object:
            if not isinstance(argument, View):
                return argument
            name, offset = self.place(argument.buffer)
            return View(
                name, argument.shape, argument.stride, sympy.expand(argument.offset + offset)
            )

        args, kwargs = map_leaves(moved, (node.args, dict(node.kwargs)))
        results = tuple(None if name is None else self.place(name)[0] for name in node.results)
        return ExternCall(replace(node, args=args, kwargs=tuple(kwargs.items()), results=results))
