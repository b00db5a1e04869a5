"""Calls of blocks: equal parts of a graph that are lowered once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy

from loopir.ir.node import Block, Buffer, ExternNode, View

from .context import LoweringContext
from .tensor import Strided, Tensor

ALIGNED = 16


def can_call(block: Block) -> bool:
    """Whether the block is nothing but steps: it computes no sizes, has no constants, and its
    inputs and outputs are tensors.
    """
    graph = block.graph
    binds = any(isinstance(node, ExternNode) and node.binds for node in graph.nodes)
    return (
        not (binds or graph.constants or graph.numbers or graph.required)
        and all(isinstance(given, str) for given in graph.inputs)
        and all(type(output) is View for output in graph.outputs)
    )


def lower_call(ctx: LoweringContext, block: Block, args: Sequence[Tensor]) -> tuple[Any, ...]:
    """Adds a call of the block; returns its outputs. Operands are stored in memory, with the
    strides that the block's inputs have.
    """
    graph = block.graph
    for mine, own in (
        (ctx.facts.lower, graph.facts.lower),
        (ctx.facts.hints, graph.facts.hints),
    ):
        mine.update(own)
    ctx.facts.signed |= graph.facts.signed
    inputs = [graph.buffers[str(name)] for name in graph.inputs]
    given = {own.name: _operand(ctx, arg, own) for arg, own in zip(args, inputs, strict=True)}
    made: dict[str, Strided] = {}
    for name in block.made:
        own = graph.buffers[name]
        made[name] = ctx.whole(ctx.new_buffer(own.dtype, own.device, own.shape, own.stride))
    names = tuple(result.buffer for result in made.values())
    ctx.add_extern(block, tuple(arg.view for arg in given.values()), names, single=False)
    outputs: list[Strided] = []
    for output in graph.outputs:
        assert isinstance(output, View)
        source = (given | made)[output.buffer]
        offset = output.offset
        if output.buffer in given:
            offset = sympy.expand(source.offset + offset)
        outputs.append(
            Strided(source.buffer, source.dtype, source.device, output.shape, output.stride, offset)
        )
    return tuple(outputs)


def _operand(ctx: LoweringContext, arg: Tensor, wanted: Buffer) -> Strided:
    """The operand in memory with the strides of ``wanted``, at an address to which its kernels can
    be moved (``schedule.start``).
    """
    tensor = ctx.lay_out(arg, wanted.stride)
    unit = 1 if wanted.device.type == "cpu" else ALIGNED
    offset = tensor.offset
    if offset.is_Integer and int(offset) * wanted.dtype.itemsize % unit == 0:
        return tensor
    return ctx.lay_out_anew(tensor, wanted.stride)
