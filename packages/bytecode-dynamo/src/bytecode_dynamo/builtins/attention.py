"""``flex_attention`` on devices with a kernel for it: one operator, whose functions of scores and
positions are part of its arguments.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from bytecode_dynamo.attention.operator import ATTENTION
from bytecode_dynamo.attention.tracing import ELEMENT, Refused, trace_function, trace_gradient
from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.function_table import evaluates_call
from bytecode_dynamo.graph.builder import is_in_place
from bytecode_dynamo.polyfills import control_flow
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.protocol import constant_of
from bytecode_dynamo.state.tracker import VariableTracker
from bytecode_dynamo.variables.constant import ConstantVariable
from bytecode_dynamo.variables.tensor import TensorVariable
from symshapes import FakeTensor
from symshapes.text.functions import format_functions
from symshapes.text.values import Unwritable

from . import graph_calls
from .subgraph import Subgraph, capture_subgraph, without_effects

DENSE_DEVICES = {"cpu"}
"""Devices on which a matrix of all scores is computed instead; loops are fused there."""
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


@evaluates_call(control_flow.one_operator)
def one_operator(
    ctx: Context, query: VariableTracker, key: VariableTracker, value: VariableTracker,
    score_mod: VariableTracker, mask_mod: VariableTracker, blocks: VariableTracker,
    block_size: VariableTracker, scale: VariableTracker,
) -> VariableTracker:  # fmt: skip
    """The operator's result. None where attention has to be computed from all scores: the
    functions are not elementwise, or what they read needs a gradient.
    """
    operands = [query, key, value]
    given = [] if blocks.is_none else blocks.unpack(ctx)
    if not _fits(ctx, operands, given):
        return ConstantVariable(None)
    try:
        graphs = {
            name: _captured(ctx, function, scored)
            for name, function, scored in (("score", score_mod, True), ("mask", mask_mod, False))
            if not function.is_none
        }
        read = list(dict.fromkeys(node for graph in graphs.values() for node in graph.lifted))
        captured = [_as_tensor(ctx, node, query) for node in read]
        text = _functions(graphs, read, [node.meta["val"] for node in captured])
    except (Refused, GraphBreak, Unwritable):
        return ConstantVariable(None)
    size = constant_of(ctx, block_size, "the block size of a BlockMask")
    nodes = [arg.as_proxy(ctx) for arg in operands]
    arguments = [
        *nodes, captured, [arg.as_proxy(ctx) for arg in given], list(size), text,
        constant_of(ctx, scale, "scale of flex_attention"),
    ]  # fmt: skip
    fakes = torch.fx.map_arg(arguments, lambda node: node.meta["val"])
    result = graph_calls.evaluate(ctx, ATTENTION, fakes)
    node = ctx.graph.add_call(ATTENTION, tuple(arguments), {}, result)
    return graph_calls.wrap_result(ctx, node, result)


def _fits(
    ctx: Context, operands: Sequence[VariableTracker], blocks: Sequence[VariableTracker]
) -> bool:
    if ctx.graph.in_batch or not all(
        isinstance(arg, TensorVariable) for arg in (*operands, *blocks)
    ):
        return False
    fakes = [arg.as_fake(ctx) for arg in operands]
    return (
        all(type(fake) is FakeTensor for fake in fakes)
        and fakes[0].device.type not in DENSE_DEVICES
        and fakes[0].dtype in DTYPES
        and len({(fake.dtype, fake.device) for fake in fakes}) == 1
    )


def _captured(ctx: Context, function: VariableTracker, scored: bool) -> Subgraph:
    """The function of one element. Raises GraphBreak, and Refused for an effect."""
    with ctx.mode:
        kinds = [torch.float32] * scored + [torch.int32] * 4
        fakes = [torch.empty(ELEMENT, dtype=kind, device="cpu") for kind in kinds]
    what = "a function of flex_attention"
    with without_effects(ctx, what):
        graph = capture_subgraph(ctx, function, [ConstantVariable(None)] * len(fakes), fakes, {})
    if any(map(is_in_place, graph.module.graph.nodes)):
        raise Refused(f"{what} writes to a tensor in place")
    return graph


def _as_tensor(ctx: Context, node: Any, query: VariableTracker) -> Any:
    """A captured tensor, or a size as one."""
    value = node.meta["val"]
    if isinstance(value, torch.SymInt):
        options = {"dtype": torch.int64, "device": query.as_fake(ctx).device}
        with ctx.mode:
            made = torch.full((), 0, **options)
        return ctx.graph.add_call(torch.full, ((), node), options, made)
    if type(value) is not FakeTensor or (value.requires_grad and torch.is_grad_enabled()):
        raise Refused("it reads a tensor that needs a gradient, or that is no plain one")
    return node


def _functions(graphs: dict[str, Subgraph], read: list[Any], captured: list[Any]) -> str:
    def bound(graph: Subgraph) -> Any:
        places = [read.index(node) for node in graph.lifted]

        def run(*args: Any) -> Any:
            count = len(args) - len(read)
            return graph.bind([args[count + place] for place in places])(*args[:count])

        return run

    made = {}
    if "score" in graphs:
        function = bound(graphs["score"])
        made["score"] = trace_function(function, True, captured)
        gradient = trace_gradient(function, captured)
        if gradient is not None:
            made["score_gradient"] = gradient
    if "mask" in graphs:
        made["mask"] = trace_function(bound(graphs["mask"]), False, captured)
    return format_functions(made)
