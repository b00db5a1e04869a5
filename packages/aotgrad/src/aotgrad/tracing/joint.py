"""Traces a program forward and backward into one functional graph, with a plan of its effects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch
from symshapes import FakeTensorMode, LazyGraphModule
from symshapes.choices import Choices
from torch.utils import _pytree as pytree

from aotgrad.effect_plan import EffectPlan, ExternalTensor, InputSpec
from aotgrad.errors import Unsupported
from aotgrad.names import unreserved_name

from .accumulation_order import engine_handover_order, record_arrivals
from .aliased_inputs import with_input_views
from .attention_masks import AttentionMasks, lay_out_tangents
from .autograd_history import OuterHistory, freed_with, output_groups, reachable_leaves
from .backward_writes import refuses_writes
from .checkpoint import checkpoints_as_regions
from .effects import TracedProgram, TracedTensor, grad_node, gradient_edge, plan_effects
from .functional import (
    below_functionalisation,
    current_value,
    functionalising,
    is_functional,
    to_functional,
)
from .in_place import InPlaceMode
from .origin import Origins
from .tangent_layout import tangent_like
from .tracer import Tracer

Program = Callable[[Sequence[Any], Tracer, Callable[[torch.Tensor], torch.Tensor]], Any]


@dataclass(slots=True)
class Joint:
    """A joint graph: placeholders are inputs then tangents; outputs are forward values then
    gradients.

    Attributes:
        gm: the graph (C2).
        inputs: one per leading placeholder.
        num_values: how many leading outputs are forward values.
        plan: how the values become the program's results and writes.
        gradients_of: indices of the inputs that the trailing outputs are gradients of, in the order
            in which an autograd node returns them.
        out_spec: pytree of the program's outputs.
        backward_errors: for each tangent, the error that backward from it raises, as in eager, as a
            Python expression, or an empty string.
        outer_histories: histories of inputs that the program's own differentiation may reach.
        reads_offset: indices of the inputs into whose storage the program counts offsets.
        freed_with: for each tangent, the bits of the tangents whose saved values are freed by
            backward from it.
        shared_gradients: indices of gradients that are tangents, possibly behind a view without
            effect.
        nodes: for each autograd node of a call, its results and the inputs that their gradients
            reach, as indices in ``plan.differentiable`` and ``gradients_of``; empty if one node is
            enough. See ``merge_nodes``.
        unbacked: symbols of data-dependent numbers, in the order in which forward created them.
        choices: where choices about this graph are recorded.
    """

    gm: torch.fx.GraphModule
    inputs: tuple[InputSpec, ...]
    num_values: int
    plan: EffectPlan
    gradients_of: tuple[int, ...]
    out_spec: pytree.TreeSpec
    backward_errors: tuple[str, ...] = ()
    outer_histories: tuple[OuterHistory, ...] = ()
    reads_offset: frozenset[int] = frozenset()
    freed_with: tuple[int, ...] = ()
    shared_gradients: tuple[int, ...] = ()
    nodes: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = ()
    unbacked: tuple[sympy.Symbol, ...] = ()
    choices: Choices | None = None

    @property
    def has_backward(self) -> bool:
        """Whether any output is differentiable."""
        return bool(self.plan.differentiable)

    @property
    def input_nodes(self) -> list[torch.fx.Node]:
        """The placeholders of the inputs."""
        return list(self.gm.graph.find_nodes(op="placeholder"))[: len(self.inputs)]

    @property
    def tangents(self) -> list[torch.fx.Node]:
        """The placeholders of the tangents."""
        return list(self.gm.graph.find_nodes(op="placeholder"))[len(self.inputs) :]

    @property
    def values(self) -> tuple[Any, ...]:
        """Nodes (or constants) of the forward values."""
        return self.gm.graph.output_node().args[0][: self.num_values]  # type: ignore[index, return-value]

    def memory_of(self, node: torch.fx.Node) -> torch.fx.Node:
        """The input that holds a value after the call, if it is written there through ``.data``.
        Otherwise the node itself.

        Eager's backward reads that memory, where later writes through ``.data`` show.
        """
        index = node.meta.get("stored_in")
        return node if index is None else self.input_nodes[index]

    @property
    def gradients(self) -> tuple[Any, ...]:
        """Nodes (or None) of the gradients."""
        return self.gm.graph.output_node().args[0][self.num_values :]  # type: ignore[index, return-value]


def trace_joint(
    program: Program, inputs: Sequence[InputSpec], fake_mode: FakeTensorMode, *, grad_enabled: bool
) -> Joint:
    """Runs ``program`` on fakes under autograd and records what happens, backward included.

    Args:
        program: called with (inputs, tracer, wrap_constant).
        inputs: their tensors are fakes of ``fake_mode``, made for this trace only.
        fake_mode: the mode that runs the ops.
        grad_enabled: the grad mode that the program starts in.

    Raises Unsupported for effects that the runtime could not reproduce, and any error that eager
    raises for a wrong program.
    """
    tracer = Tracer(fake_mode)
    made = fake_mode.shape_env.unbacked_order
    made_before = len(made)
    inputs = _with_unreserved_names(inputs)
    for spec in inputs:
        tracer.add_placeholder(spec.name, spec.value, spec.static)
    with fake_mode, tracer, torch.set_grad_enabled(grad_enabled), functionalising():
        traced = _run_forward(program, inputs, tracer)
        unbacked = tuple(made[made_before:])
        inputs = _with_new_leaves(inputs, traced)
        plan, values = plan_effects(traced, tracer)
        wanted, gradients, errors = _trace_gradients(traced, plan, values, inputs, tracer)
        edges = [gradient_edge(values[slot]) for slot in plan.differentiable]
        together = freed_with(edges)
        arrive = {t.target.index: t.edge and t.edge.node for t in traced.tensors}
        ends = [(arrive.get(i), inputs[i].is_leaf) for i in wanted]
        # all of backward needs data-dependent numbers from forward if it is differentiated itself
        nodes = output_groups(edges, together, ends, by_history=not unbacked)
        outputs = tuple(tracer.argument(_fake(v)) for v in [*values, *gradients])
    lay_out_tangents(tracer.graph, fake_mode)
    tracer.graph.output(outputs)
    gm = LazyGraphModule(tracer.root, tracer.graph, "Joint")
    return Joint(
        gm,
        tuple(inputs),
        len(values),
        plan,
        wanted,
        traced.out_spec,
        backward_errors=errors,
        outer_histories=traced.outer_histories,
        reads_offset=traced.reads_offset,
        freed_with=together,
        nodes=nodes,
        unbacked=unbacked,
    )


def _trace_gradients(
    traced: TracedProgram,
    plan: EffectPlan,
    values: list[Any],
    inputs: Sequence[InputSpec],
    tracer: Tracer,
) -> tuple[tuple[int, ...], list[torch.Tensor | None], tuple[str, ...]]:
    """The inputs that get gradients, in the order in which an autograd node returns them; their
    gradients; and the error that backward from each tangent raises.
    """
    wanted: tuple[int, ...] = ()
    if plan.differentiable:
        wanted = tuple(i for i, spec in enumerate(inputs) if spec.requires_grad)
    if plan.differentiable and not wanted:
        raise Unsupported("AG025", "an output requires grad although no input does")
    _check_leaves(traced)
    chosen = set(wanted)
    asked = (t for t in traced.tensors if t.target.index in chosen)
    leaves = {t.target.index: t.wrapper for t in asked if _is_at(t.wrapper, t.edge)}
    with record_arrivals(leaves) as arrived:
        gradients, errors = (
            _run_backward(traced, plan, values, wanted, inputs, tracer) if wanted else ([], ())
        )
    found_for = dict(zip(wanted, gradients))
    # autograd continues to the histories of the other inputs, too
    if not any(errors) and any(g is not None for g in gradients):
        wanted = tuple(i for i in wanted if found_for[i] is not None)
    chosen = set(wanted)
    wanted = engine_handover_order(wanted, [i for i in leaves if i in chosen], arrived)
    return wanted, [found_for[i] for i in wanted], errors


def _with_new_leaves(inputs: Sequence[InputSpec], traced: TracedProgram) -> list[InputSpec]:
    """The inputs, updated for those that the program made require grad."""
    new = {t.target.index for t in traced.tensors if t.is_differentiable_input}
    return [
        replace(s, requires_grad=True, becomes_leaf=True) if i in new and not s.requires_grad else s
        for i, s in enumerate(inputs)
    ]


def _check_leaves(traced: TracedProgram) -> None:
    """Raises Unsupported if gradients of a result accumulate in a leaf that the program created."""
    known = [t.edge.node for t in traced.tensors if t.edge is not None]
    results = [
        t
        for t in (*traced.outputs, *(t.wrapper for t in traced.tensors))
        if is_functional(t) and t.requires_grad
    ]
    if reachable_leaves(map(grad_node, results), known):
        raise Unsupported("AG025", "an output depends on a new leaf that requires grad")


def _is_at(leaf: torch.Tensor, edge: torch.autograd.graph.GradientEdge | None) -> bool:
    """Whether gradients of ``edge`` arrive at this leaf."""
    return (
        edge is not None
        and leaf.is_leaf
        and leaf.requires_grad
        and gradient_edge(leaf).node is edge.node
    )


def _with_unreserved_names(inputs: Sequence[InputSpec]) -> list[InputSpec]:
    """The inputs, renamed to avoid names that the text of a call reserves."""
    taken = {spec.name for spec in inputs}
    found = []
    for spec in inputs:
        taken.discard(spec.name)
        name = unreserved_name(spec.name, taken)
        taken |= {spec.name, name}
        found.append(spec if name == spec.name else replace(spec, name=name))
    return found


def trace_values(
    program: Program, inputs: Sequence[InputSpec], fake_mode: FakeTensorMode
) -> torch.fx.GraphModule:
    """The functional graph of a program without autograd. Its results are the flat outputs, then
    the new values of written inputs.
    """
    tracer = Tracer(fake_mode)
    for spec in inputs:
        tracer.add_placeholder(spec.name, spec.value, spec.static)
    with fake_mode, tracer, torch.no_grad(), functionalising():
        traced = _run_forward(program, inputs, tracer)
        results = [tracer.argument(_fake(o)) for o in traced.outputs]
        for t in traced.tensors:
            node = tracer.node_of(current_value(t.wrapper))
            if node is not tracer.node_of(t.before):
                results.append(node)
    tracer.graph.output(tuple(results))
    return LazyGraphModule(tracer.root, tracer.graph, "Functional")


def _fake(value: Any) -> Any:
    if not is_functional(value):
        return value
    fake = current_value(value)
    if fake.is_conj() == value.is_conj() and fake.is_neg() == value.is_neg():
        return fake
    # written through a lazily conjugated view: eager has resolved that
    with below_functionalisation():
        return fake.clone()


def _run_forward(program: Program, inputs: Sequence[InputSpec], tracer: Tracer) -> TracedProgram:
    tensors: list[TracedTensor] = []
    constants: dict[int, torch.Tensor] = {}

    def wrap(
        fake: torch.Tensor, target: ExternalTensor, requires_grad: bool = False,
        is_leaf: bool = False,
    ) -> torch.Tensor:  # fmt: skip
        wrapper = to_functional(fake, is_leaf=is_leaf)
        edge = gradient_edge(wrapper) if requires_grad else None
        tensors.append(TracedTensor(target, fake, wrapper, wrapper._version, edge, is_leaf))
        return wrapper

    def wrap_constant(real: torch.Tensor) -> torch.Tensor:
        if id(real) not in constants:
            fake = tracer.lift(real)
            constants[id(real)] = wrap(
                fake, ExternalTensor(constant=str(tracer.node_of(fake).target))
            )
        return constants[id(real)]

    def wrap_input(i: int, spec: InputSpec) -> Any:
        if not spec.is_tensor or spec.view_of is not None:
            return spec.value
        return wrap(spec.value, ExternalTensor(i), spec.requires_grad, spec.is_leaf)

    given = [wrap_input(i, s) for i, s in enumerate(inputs)]
    tracer.position = 0
    given = with_input_views(given, inputs)
    for i, (s, view) in enumerate(zip(inputs, given)):
        if s.view_of is not None:
            before = current_value(view).requires_grad_(view.requires_grad)
            target, version = ExternalTensor(i), view._version
            tensors.append(TracedTensor(target, before, view, version, None, is_input_view=True))
    tracer.origins = Origins()
    with (
        InPlaceMode(tensors, tracer) as rules,
        AttentionMasks(tracer),
        checkpoints_as_regions(tracer),
    ):
        result = program(given, tracer, wrap_constant)
    tracer.origins.close()
    placeholders = tracer.graph.find_nodes(op="placeholder")
    for i in rules.unversioned:
        placeholders[i].meta["unversioned"] = True
    outputs, out_spec = pytree.tree_flatten(result)
    tracer.origin = None
    rules.check_gradients()
    tensors = [rules.annotate(t) for t in tensors]
    tensors = [replace(t, edge=gradient_edge(t.wrapper)) if t.became_leaf else t for t in tensors]
    histories, offsets = tuple(rules.outer_histories), frozenset(rules.reads_offset)
    return TracedProgram(tuple(tensors), tuple(outputs), out_spec, histories, offsets)


def _run_backward(
    traced: TracedProgram,
    plan: EffectPlan,
    values: list[Any],
    wanted: tuple[int, ...],
    inputs: Sequence[InputSpec],
    tracer: Tracer,
) -> tuple[list[torch.Tensor | None], tuple[str, ...]]:
    """Gradients of the wanted inputs, given one new tangent placeholder per differentiable value,
    and the error that each tangent raises.
    """
    outs = [values[slot] for slot in plan.differentiable]
    tangents = []
    # do this before nodes are inserted elsewhere, because it may record some
    present = [current_value(out) for out in outs]
    with _after_placeholders(tracer.graph), below_functionalisation():
        for slot, value in zip(plan.differentiable, present):
            fake = tangent_like(value, tracer.fake_mode)
            tracer.add_placeholder(f"tangent_{slot}", fake)
            tangents.append(to_functional(fake))
    edges = {t.target.index: t.edge for t in traced.tensors}
    held = [
        *((t.target.constant or inputs[t.target.index].name, t.wrapper) for t in traced.tensors),
        *(("a result of the program", value) for value in values),
        *(("the gradient of a result", tangent) for tangent in tangents),
    ]
    tracer.in_backward = True

    def differentiate(*ks: int) -> list[torch.Tensor | None]:
        given = [outs[k] for k in ks], [edges[i] for i in wanted], [tangents[k] for k in ks]
        if ks:
            return list(torch.autograd.grad(*given, retain_graph=True, allow_unused=True))
        return [None] * len(wanted)

    with (
        refuses_writes(tracer, held),
        torch._C._DisableAutocast(),
        torch.autograd.set_multithreading_enabled(False),
    ):
        try:
            return differentiate(*range(len(outs))), ("",) * len(outs)
        except RuntimeError as error:
            if not _is_eagers(error):
                raise
        errors = tuple(_error_of(differentiate, k) for k in range(len(outs)))
        return differentiate(*(k for k, error in enumerate(errors) if not error)), errors


def _is_eagers(error: RuntimeError) -> bool:
    """Whether eager mode raises this error in backward, too."""
    said = "modified by an inplace operation", "through the graph a second time", "derivative for "
    return any(text in str(error) for text in said)


def _error_of(differentiate: Callable[[int], Any], k: int) -> str:
    try:
        differentiate(k)
    except RuntimeError as error:
        kind = NotImplementedError if isinstance(error, NotImplementedError) else RuntimeError
        return f"{kind.__name__}({str(error)!r})"
    return ""


def _after_placeholders(graph: torch.fx.Graph) -> Any:
    """A context in which new nodes are inserted after the placeholders, in order."""
    for node in graph.nodes:
        if node.op != "placeholder":
            return graph.inserting_before(node)
    return nullcontext()
