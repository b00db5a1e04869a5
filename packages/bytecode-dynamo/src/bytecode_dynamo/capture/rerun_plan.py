"""Plans the state to save before a graph, so that its call can run again when the graph raises."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import torch
from symshapes import FakeTensor, inner_tensors, is_leaf, is_wrapper
from torch.fx import GraphModule, Node

from bytecode_dynamo.builtins.python_random import drawn_from
from bytecode_dynamo.capture.rerun import DEVICES, MAX_SAVED, Rerun
from bytecode_dynamo.errors import GraphBreak, LosesEffects, UnsoundAssumption
from bytecode_dynamo.graph.builder import GraphInput
from bytecode_dynamo.graph.opaque import OpaqueCall
from bytecode_dynamo.guards.tensor_source import ArraySource
from bytecode_dynamo.state.context import Context


def plan_rerun(
    ctx: Context,
    code: CodeType,
    module: GraphModule,
    inputs: Sequence[GraphInput],
    on_error: str | None,
) -> Rerun:
    """The plan for a call whose graph raises.

    ``code`` is the original with every argument positional. Raises UnsoundAssumption or
    LosesEffects when the frame has to be captured again, GraphBreak when that did not help.
    """
    effects = _effects_of(ctx, inputs)
    written, may_refuse = effects.written, "refuse" in ctx.mode.events
    _require_effects_kept(ctx, effects, may_refuse)
    devices = {item.node.meta["val"].fake_device.type for item in _tensors(inputs)} | {"cpu"}
    visible = all(map(_is_counted, written.values()))
    # Copies slow down every call of a network with batch norm, whose writes change no version: only
    # a graph that may refuse its data keeps contents.
    contents = effects.exposed or (may_refuse and not visible)
    sound = (
        _can_run_twice(ctx, module, inputs)
        and not ctx.runs_once
        and len(written) <= MAX_SAVED
        and devices <= set(DEVICES)
        and (visible or contents)
    )
    if ctx.assumed and not sound:
        raise UnsoundAssumption
    restores_random = sound and effects.random and effects.exposed
    return Rerun(
        code,
        sound,
        ctx.modes.entry_grad,
        ctx.has_handlers,
        "custom" in ctx.mode.events,
        on_error,
        tuple(sorted(devices)) if restores_random else (),
        ctx.modes.entered,
        tuple(item.source for item in written.values()) if sound else (),
        contents,
        visible,
        ctx.whole,
        drawn_from(ctx) if sound and may_refuse else (),
    )


@dataclass(slots=True)
class _GraphEffects:
    """What a graph does besides computing, in the order of its operators."""

    written: dict[Any, GraphInput] = field(default_factory=dict)
    random: bool = False
    exposed: bool = False
    """Whether an operator may raise after a write or a random draw."""
    too_late: bool = False
    """Whether an operator may raise after a write to an input's autograd history."""


def _effects_of(ctx: Context, inputs: Sequence[GraphInput]) -> _GraphEffects:
    storages = {item.node.meta["val"].untyped_storage()._cdata: item for item in _tensors(inputs)}
    effects, history = _GraphEffects(), False
    for event in ctx.mode.events:
        if event == "refuse":
            effects.exposed = effects.exposed or effects.random or bool(effects.written)
            effects.too_late = history
        elif event == "history":
            history = True
        elif event == "random":
            effects.random = True
        elif event in storages:
            effects.written[event] = storages[event]
    if effects.exposed and not effects.too_late:
        effects.too_late = any(_shares_history(ctx, item) for item in effects.written.values())
    return effects


def _require_effects_kept(ctx: Context, effects: _GraphEffects, may_refuse: bool) -> None:
    """Raise where effects on Python objects would be lost and the call can't run again."""
    pending = ctx.has_handlers or any(ctx.effects.changed())
    runs_once = (pending or effects.written) and ctx.runs_once and may_refuse
    if ctx.whole or not ((pending and effects.too_late) or runs_once):
        return
    if ctx.careful:
        what = "a write to a shared history, in a frame that loses effects when an operator refuses"
        raise GraphBreak("BD020", what)
    raise LosesEffects


def _can_run_twice(ctx: Context, module: GraphModule, inputs: Sequence[GraphInput]) -> bool:
    """Whether no operator is the program's own, and none writes inside of a wrapper subclass."""
    inner = {
        tensor.untyped_storage()._cdata
        for item in inputs
        if is_wrapper(item.node.meta["val"])
        for tensor in inner_tensors(item.node.meta["val"])
    }
    return all(map(_is_known, module.graph.nodes)) and not inner & {*ctx.mode.events}


def _shares_history(ctx: Context, item: GraphInput) -> bool:
    """Whether an input is a view, has a view among the inputs, or has hooks on its history: nothing
    undoes a write to that.
    """
    example = item.example
    if not item.node.meta["val"].requires_grad or not isinstance(example, torch.Tensor):
        return False
    if not is_leaf(example) and (example._backward_hooks or example.retains_grad):
        return True
    return example._is_view() or any(
        view._is_view() and view._base is example for view in ctx.examples.values()
    )


def _is_counted(item: GraphInput) -> bool:
    """Whether a write changes the input's version; NumPy's writes do not."""
    fake = item.node.meta["val"]
    return not (isinstance(item.source, ArraySource) or fake.is_inference()) and fake._version > 0


def _tensors(inputs: Sequence[GraphInput]) -> Iterator[GraphInput]:
    return (item for item in inputs if isinstance(item.node.meta["val"], FakeTensor))


def _is_known(node: Node) -> bool:
    """Whether the node's target may be called twice: it is not a function of the program."""
    target: Any = node.target
    graphs = getattr(target, "graphs", ())
    if graphs:
        return all(_is_known(inner) for module in graphs for inner in module.graph.nodes)
    if node.op != "call_function":
        return True
    if isinstance(target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        # collectives: other processes take part
        return not str(target).startswith("_c10d_functional")
    function = target.function if isinstance(target, OpaqueCall) else target
    home = getattr(function, "__module__", None) or type(function).__module__
    return home.partition(".")[0] in _KNOWN_HOMES and not home.startswith("torch.distributed")


_KNOWN_HOMES = frozenset({"torch", "bytecode_dynamo", "_operator", "builtins", "math"})
