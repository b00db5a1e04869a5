"""Captured graphs (C1) on real inputs, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aotgrad
import loopir
import torch
from symshapes import unlocked
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from torchstrata.context import Context

from .evaluate import copy_graph, run_graph

SEED = 0
FunctionalCall = tuple[str, GraphModule, list[Any]]


@dataclass(frozen=True, slots=True)
class JointGraph:
    """A joint graph as the partitioner saw it; ``gradients_of`` are the inputs that its outputs
    after the first ``num_values`` are gradients of.
    """

    graph: GraphModule
    num_values: int
    gradients_of: tuple[int, ...]


@dataclass
class Calls:
    """The functional graphs of a captured one, with the inputs of their first calls, and the joint
    graph that they come from.
    """

    made: list[FunctionalCall] = field(default_factory=list)
    joint: JointGraph | None = None

    def partition(self, name: str) -> Callable[[aotgrad.JointAnalysis], aotgrad.Partition]:
        """The partitioner of a name, which keeps the joint graph."""
        chosen = {"min_cut": aotgrad.partition_min_cut, "default": aotgrad.partition_default}[name]

        def partition(analysis: aotgrad.JointAnalysis) -> aotgrad.Partition:
            joint = analysis.joint
            own = copy_graph(joint.gm)
            self.joint = self.joint or JointGraph(own, joint.num_values, joint.gradients_of)
            return chosen(analysis)

        partition.__name__ = name
        return partition

    def compiler(self, direction: str) -> Callable[..., Any]:
        """Runs functional graphs node by node, and keeps their inputs."""

        def compile(graph: GraphModule, _: object) -> Callable[..., Any]:
            own = copy_graph(graph)
            seen: list[bool] = []

            def run(*inputs: Any) -> Any:
                if not seen:
                    seen.append(True)
                    kept = [
                        x.detach().clone() if isinstance(x, torch.Tensor) else x for x in inputs
                    ]
                    self.made.append((direction, own, kept))
                return run_graph(own, inputs)

            return run

        return compile


def aot_options(ctx: Context) -> dict[str, Any]:
    """The settings of the autograd stage."""
    config = ctx.config
    passes = [loopir.lay_out_images] * (config.patterns and config.layouts)
    passes += [aotgrad.redraw_masks] * (not config.fallback_random)
    return dict(
        passes=passes,
        partition=config.partition,
        activation_memory_budget=config.activation_memory_budget,
        fallback_random=config.fallback_random,
        unit_gradients=config.numerics == "fast",
    )


def compile_eagerly(
    ctx: Context, graph: GraphModule, calls: Calls | None = None
) -> Callable[..., Sequence[Any]]:
    """A captured graph through autograd, functionalisation and partition; the functional graphs run
    with eager kernels. ``calls`` keeps these.
    """
    kept, options = calls or Calls(), aot_options(ctx)
    if options["activation_memory_budget"] == 1:
        options["partition"] = kept.partition(options["partition"])
    backend = aotgrad.aot_backend(
        kept.compiler("forward"),
        kept.compiler("backward"),
        inference_compiler=kept.compiler("inference"),
        **options,
    )
    own = copy_graph(graph)
    examples = [node.meta.get("val") for node in own.graph.find_nodes(op="placeholder")]
    return backend(own, examples)


def run_step(call: Callable[..., Sequence[Any]], inputs: Sequence[Any]) -> list[Any]:
    """The outputs of a call, the inputs after it, and the gradients of the inputs that require
    them, for tangents that depend on nothing but their position.
    """
    before = [x._version if isinstance(x, torch.Tensor) else 0 for x in inputs]
    leaves = [x for x in inputs if isinstance(x, torch.Tensor) and x.requires_grad and x.is_leaf]
    outputs = [*call(*inputs)]
    flat = pytree.tree_leaves(outputs)
    changed = [
        x.detach().clone()
        for x, version in zip(inputs, before)
        if isinstance(x, torch.Tensor) and x._version != version
    ]
    results = [x.detach().clone() if isinstance(x, torch.Tensor) else x for x in flat]
    grown = {id(x): x for x in flat if isinstance(x, torch.Tensor) and x.grad_fn is not None}
    if not leaves or not grown or not torch.is_grad_enabled():
        return [*results, *changed]
    tangents = [_tangent(i, x) for i, x in enumerate(grown.values())]
    with unlocked():
        gradients = torch.autograd.grad(
            [*grown.values()], leaves, tangents, allow_unused=True, materialize_grads=True
        )
    return [*results, *changed, *gradients]


def _tangent(position: int, output: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(SEED + position)
    real = torch.empty(output.shape, dtype=torch.float32).uniform_(-1, 1, generator=generator)
    return real.to(output.dtype).to(output.device)
