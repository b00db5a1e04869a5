"""``flex_attention`` on devices with a kernel for it: one operator, whose functions of scores and
positions are part of its arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from symshapes import FakeTensor
from symshapes.text.functions import format_functions
from symshapes.text.values import Unwritable

from bytecode_dynamo.attention.operator import ATTENTION
from bytecode_dynamo.attention.tracing import ELEMENT, Refused, trace_function, trace_gradient
from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.function_table import evaluates_call
from bytecode_dynamo.graph.builder import is_in_place
from bytecode_dynamo.polyfills import control_flow
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.protocol import call_torch, constant_of, decide
from bytecode_dynamo.state.tracker import VariableTracker
from bytecode_dynamo.variables.constant import ConstantVariable
from bytecode_dynamo.variables.sequence import new_tuple
from bytecode_dynamo.variables.tensor import TensorVariable

from . import graph_calls
from .subgraph import Subgraph, capture_subgraph, without_effects

aten = torch.ops.aten
DENSE_DEVICES = {"cpu"}
"""Devices on which a matrix of all scores is computed instead; loops are fused there."""
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


@evaluates_call(control_flow.one_operator)
def one_operator(
    ctx: Context, query: VariableTracker, key: VariableTracker, value: VariableTracker,
    score_mod: VariableTracker, mask_mod: VariableTracker, blocks: VariableTracker,
    block_size: VariableTracker, scale: VariableTracker, wants_sums: VariableTracker,
) -> VariableTracker:  # fmt: skip
    """The operator's result. None where attention has to be computed from all scores: the
    functions are not elementwise, or what they read needs a gradient. Plain and causal attention
    are SDPA, whose libraries are faster.
    """
    operands = [query, key, value]
    given = [] if blocks.is_none else blocks.unpack(ctx)
    if not _fits(ctx, operands, given):
        return ConstantVariable(None)
    device = query.as_fake(ctx).device
    try:
        graphs = {
            name: _captured(ctx, function, scored, device)
            for name, function, scored in (("score", score_mod, True), ("mask", mask_mod, False))
            if not function.is_none
        }
        read = list(dict.fromkeys(node for graph in graphs.values() for node in graph.lifted))
        captured = [_as_tensor(ctx, node, device) for node in read]
        values = [node.meta["val"] for node in captured]
        functions = _functions(graphs, read, values)
        text = format_functions(functions)
    except (Refused, GraphBreak, Unwritable):
        return ConstantVariable(None)
    is_plain = not functions and not given
    if not wants_sums.truth(ctx) and (is_plain or _is_causal(ctx, functions, operands)):
        return _by_library(ctx, operands, scale, not is_plain)
    size = constant_of(ctx, block_size, "the block size of a BlockMask")
    nodes = [arg.as_proxy(ctx) for arg in operands]
    arguments = [
        *nodes, captured, [arg.as_proxy(ctx) for arg in given], *size, text,
        constant_of(ctx, scale, "scale of flex_attention"),
    ]  # fmt: skip
    fakes = torch.fx.map_arg(arguments, lambda node: node.meta["val"])
    result = graph_calls.evaluate(ctx, ATTENTION, fakes)
    node = ctx.graph.add_call(ATTENTION, tuple(arguments), {}, result)
    return graph_calls.wrap_result(ctx, node, result)


def _is_causal(
    ctx: Context, functions: dict[str, torch.fx.GraphModule], operands: Sequence[VariableTracker]
) -> bool:
    """Whether a query sees the keys up to its own position, and there are as many of both."""
    if list(functions) != ["mask"]:
        return False
    calls = [node for node in functions["mask"].graph.nodes if node.op == "call_function"]
    names = [(node.target, *(str(arg) for arg in node.args)) for node in calls]
    if names not in ([(aten.ge.Tensor, "q", "k")], [(aten.le.Tensor, "k", "q")]):
        return False
    query, key = (arg.as_fake(ctx) for arg in operands[:2])
    return decide(ctx, lambda: bool(query.shape[2] == key.shape[2]), "a size")


def _by_library(
    ctx: Context, operands: Sequence[VariableTracker], scale: VariableTracker, is_causal: bool
) -> VariableTracker:
    query, key = (arg.as_fake(ctx) for arg in operands[:2])
    options = {
        "is_causal": ConstantVariable(is_causal),
        "scale": scale,
        "enable_gqa": ConstantVariable(query.shape[1] != key.shape[1]),
    }
    out = call_torch(ctx, F.scaled_dot_product_attention, list(operands), options)
    return new_tuple([out, ConstantVariable(None)])


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


def _captured(
    ctx: Context, function: VariableTracker, scored: bool, device: torch.device
) -> Subgraph:
    """The function of one element. Raises GraphBreak, and Refused for an effect."""
    with ctx.mode:
        kinds = [torch.float32] * scored + [torch.int32] * 4
        fakes = [torch.empty(ELEMENT, dtype=kind, device=device) for kind in kinds]
    what = "a function of flex_attention"
    with without_effects(ctx, what):
        graph = capture_subgraph(ctx, function, [ConstantVariable(None)] * len(fakes), fakes, {})
    if any(map(is_in_place, graph.module.graph.nodes)):
        raise Refused(f"{what} writes to a tensor in place")
    return graph


def _as_tensor(ctx: Context, node: Any, device: torch.device) -> Any:
    """A captured tensor, or a size as one."""
    value = node.meta["val"]
    if isinstance(value, torch.SymInt):
        options = {"dtype": torch.int64, "device": device}
        with ctx.mode:
            made = torch.full((), 0, **options)
        return ctx.graph.add_call(torch.full, ((), node), options, made)
    if type(value) is not FakeTensor or (value.requires_grad and torch.is_grad_enabled()):
        raise Refused("it reads a tensor that needs a gradient, or that is no plain one")
    return node


def _functions(
    graphs: dict[str, Subgraph], read: list[Any], captured: list[Any]
) -> dict[str, torch.fx.GraphModule]:
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
        if all(node.op != "call_function" for node in made["score"].graph.nodes):
            made.clear()  # the score itself
    if "mask" in graphs:
        made["mask"] = trace_function(bound(graphs["mask"]), False, captured)
    return made
