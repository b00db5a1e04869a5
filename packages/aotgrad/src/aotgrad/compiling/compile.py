"""Takes one traced program through passes, partition and compilers to a callable."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn

import torch
from symshapes import unlocked
from symshapes.choices import Choices, using
from symshapes.decisions import may

from aotgrad.errors import AotError, CompilerError, Unsupported
from aotgrad.graphs.autograd_nodes import merge_nodes
from aotgrad.graphs.constants import is_random
from aotgrad.graphs.dead_effects import kept_effects, mark_effects
from aotgrad.graphs.partial_backward import PartialBackward, unsafe_zero_masks
from aotgrad.graphs.partition import Partitioner, partition_default
from aotgrad.graphs.passes import clean, separate_outputs
from aotgrad.graphs.patterns import PATTERNS, apply_patterns
from aotgrad.graphs.recorded_partition import as_recorded
from aotgrad.graphs.seeded_random import restore_random, seed_random
from aotgrad.graphs.split import JointAnalysis, Split, extract_forward, split_joint
from aotgrad.graphs.text import format_functional
from aotgrad.graphs.trace import TraceSpec
from aotgrad.graphs.unit_tangent import with_unit_gradients
from aotgrad.graphs.verify import check_functional
from aotgrad.graphs.wrapper_subclasses import compile_inner, has_wrappers
from aotgrad.names import unreserved_name
from aotgrad.running.backward import passes_tangents
from aotgrad.running.double_backward import DoubleBackward
from aotgrad.running.prologue import Runtime
from aotgrad.running.runtime import build_inference, build_training
from aotgrad.running.writeback_protocol import may_be_resized, only_written, write_backs
from aotgrad.tracing.joint import Joint
from aotgrad.tracing.view_chains import view_root, view_source


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """The arguments of ``aot_backend``, resolved."""

    forward_compiler: Callable[..., Any]
    backward_compiler: Callable[..., Any]
    inference_compiler: Callable[..., Any]
    passes: tuple[Callable[[torch.fx.GraphModule], torch.fx.GraphModule | None], ...]
    partition: Partitioner
    fallback_random: bool
    on_artifact: Callable[[str, str], None] | None
    repeats_random: bool = False
    unit_gradients: bool = False
    wrap_backward: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
    cache: Callable[..., Any] | None = None
    choices: Callable[[str], Choices | None] | None = None

    def report(self, name: str, text: Callable[[], str]) -> None:
        """Passes a text to ``on_artifact``; without a listener the text is not built."""
        if self.on_artifact is not None:
            self.on_artifact(name, text())

    def with_prefix(self, prefix: str) -> CompileOptions:
        """The options, with ``prefix`` before the names of artifacts."""
        listener = self.on_artifact
        if listener is None:
            return self
        return replace(self, on_artifact=lambda name, text: listener(f"{prefix} {name}", text))


def optimise_joint(joint: Joint, options: CompileOptions) -> None:
    """Cleans the joint graph, runs the user's passes, and separates the memory of outputs."""
    if options.choices is not None:
        joint.choices = options.choices(format_functional(joint.gm, strict=False))
    with using(joint.choices):
        _optimise_joint(joint, options)


def _optimise_joint(joint: Joint, options: CompileOptions) -> None:
    _refuse_sparse_arithmetic(joint)
    views = [
        k
        for k, g in enumerate(joint.gradients)
        if isinstance(g, torch.fx.Node) and view_source(g) is not None
    ]
    mark_effects(joint)
    clean(joint.gm, keep_random=options.fallback_random)
    patterns = [] if has_wrappers(joint.gm.graph) else [*PATTERNS.values()]
    counts = apply_patterns(joint.gm, patterns, keep_random=options.fallback_random)
    if counts:
        options.report(
            "patterns", lambda: "".join(f"{name}: {n} matches\n" for name, n in counts.items())
        )
    for rewrite in options.passes:
        if not may("pattern", getattr(rewrite, "__name__", repr(rewrite))):
            continue
        joint.gm = rewrite(joint.gm) or joint.gm
    separate_outputs(joint.gm.graph, _owned_slots(joint))
    gradients = joint.gradients
    joint.shared_gradients = tuple(
        k for k in views if getattr(gradients[k], "op", "") == "placeholder"
    )
    for node in joint.gm.graph.nodes:
        node._rename(unreserved_name(node.name))
    options.report("joint", lambda: format_functional(joint.gm, strict=False))


def _refuse_sparse_arithmetic(joint: Joint) -> None:
    """Sparse gradients may only be returned: their fakes look dense, so kernels can't read them."""
    for node in joint.gm.graph.nodes:
        if node.kwargs.get("layout") in (None, torch.strided) or node.op != "call_function":
            continue
        if any(user.op != "output" for user in node.users):
            raise Unsupported("AG037", "sparse gradients are combined", node=node)


def _owned_slots(joint: Joint) -> list[int]:
    """Slots that need memory of their own: what the caller or autograd references, and write-backs
    that would read what another write-back has overwritten.
    """
    plan, inputs, values = joint.plan, joint.input_nodes, joint.values
    slots = plan.returned_slots | set(plan.differentiable)
    written = {inputs[i] for i in plan.written_inputs}
    for m in plan.mutations:
        if m.slot is not None and view_root(values[m.slot.index], unsafe=True) in written:
            slots.add(m.slot.index)
    return sorted(slots)


def compile_joint(
    runtime: Runtime, trace_spec: TraceSpec, options: CompileOptions
) -> tuple[Callable[..., Any], str]:
    """The callable of ``runtime.joint``, which ``optimise_joint`` has prepared, and its source."""
    joint = runtime.joint
    if not joint.has_backward:
        values = (v for v in joint.values if isinstance(v, torch.fx.Node) and v.op != "placeholder")
        results = tuple(dict.fromkeys([*values, *kept_effects(joint)]))
        graph = extract_forward(joint, results)
        _annotate_write_backs(joint, graph, results, ())
        forward = _compile(graph, "inference", options, bool(results))
        call, text = build_inference(runtime, results, forward)
    else:
        split = _split(joint, options)
        _annotate_write_backs(joint, split.forward, split.results, split.saved)
        # before a compiler may change the graph
        partial_backward = _partial_backward(joint, split, options)
        forward = _compile(split.forward, "forward", options, bool(split.results))
        # several autograd nodes only call their partial backwards
        needed = bool(split.gradients) and (partial_backward is None or not joint.nodes)
        backward = _compile(split.backward, "backward", options, needed)
        if not passes_tangents(joint):
            runtime.double = _double_backward(joint, trace_spec, split, options)
            runtime.partial = partial_backward
        call, text = build_training(runtime, split, forward, backward, options.wrap_backward)
    options.report("runtime", lambda: text)
    return call, text


def _partial_backward(
    joint: Joint, split: Split, options: CompileOptions
) -> PartialBackward | None:
    """Backward from some tangents only; None if zeros can always replace the others."""
    count = len(joint.plan.differentiable)
    if count < 2 or has_wrappers(joint.gm.graph):
        return None
    if not joint.nodes and not unsafe_zero_masks(split.backward, count):
        return None
    options = options.with_prefix("partial")
    return PartialBackward(
        split.backward, count, lambda gm: _compile(gm, "backward", options, True)
    )


def deferred_backward(
    trace_spec: TraceSpec, options: CompileOptions
) -> tuple[DoubleBackward, PartialBackward | None, list[str], int]:
    """Double and partial backward of a cached program, which is traced now.

    Also returns the names of the saved nodes, and how many of them are private.
    """
    joint = trace_spec.trace()
    optimise_joint(joint, options)
    split = _split(joint, options)
    double = _double_backward(joint, trace_spec, split, options)
    partial_backward = _partial_backward(joint, split, options)
    return double, partial_backward, [n.name for n in split.saved], split.num_private


def _double_backward(
    joint: Joint, trace_spec: TraceSpec, split: Split, options: CompileOptions
) -> DoubleBackward:
    return DoubleBackward(joint, trace_spec, split, partial(_compile_gradient, options))


def _split(joint: Joint, options: CompileOptions) -> Split:
    """Splits as the partitioner chooses; recomputed random ops draw from a saved seed."""
    with using(joint.choices):
        split = _split_as_chosen(joint, options)
    if joint.choices is not None:
        joint.choices.finish()
    return split


def _split_as_chosen(joint: Joint, options: CompileOptions) -> Split:
    draws = [] if options.fallback_random else [n for n in joint.gm.graph.nodes if is_random(n)]
    seeded = seed_random(n for n in draws if options.repeats_random or "recompute" in n.meta)
    analysis = JointAnalysis.of(joint)
    merge_nodes(analysis)
    chosen = may("partition", getattr(options.partition, "__name__", "partition"))
    partition = (options.partition if chosen else partition_default)(analysis)
    partition = as_recorded(analysis, partition)
    scales = options.unit_gradients and not options.repeats_random
    if scales and may("partition", "with_unit_gradients"):
        analysis, partition = with_unit_gradients(analysis, partition)
    options.report("partition", lambda: str(partition))
    restore_random(
        n for n in seeded if n.name not in partition.recomputed and n.args[0] not in partition.saved
    )
    return split_joint(analysis, partition.saved)


def _annotate_write_backs(
    joint: Joint,
    forward: torch.fx.GraphModule,
    results: tuple[torch.fx.Node, ...],
    saved: Sequence[torch.fx.Node],
) -> None:
    """Tells the compiler what it may write back itself (B6), and which results may reuse the
    memory of an input.
    """
    pairs = forward.meta["writes"] = write_backs(joint, results)
    kept = set(saved)
    unread = forward.meta["unread"] = frozenset(
        i for i in only_written(joint, pairs, results) if results[i] not in kept
    )
    # wrappers are compiled from another graph
    if not may_be_resized(joint) and not has_wrappers(forward.graph):
        inputs = forward.graph.find_nodes(op="placeholder")
        for target, result in pairs:
            if result in unread:
                inputs[target].meta["written"] = result


def _compile_gradient(
    options: CompileOptions, joint: Joint, trace_spec: TraceSpec
) -> Callable[..., Any]:
    """The callable of a program that is the gradient of another."""
    options = options.with_prefix("gradient")
    joint.outer_histories, joint.reads_offset = (), frozenset()  # checked by the first pass
    optimise_joint(joint, options)
    runtime = Runtime(joint, (), _unreachable, None, grad_enabled=True, in_autocast=True)
    return compile_joint(runtime, trace_spec, options)[0]


def _unreachable(*inputs: Any) -> NoReturn:
    raise AssertionError("a gradient writes to nothing")


def _compile(gm: torch.fx.GraphModule, what: str, options: CompileOptions, needed: bool) -> Any:
    """Calls the compiler for ``what``: "inference", "forward" or "backward"."""
    if needed and has_wrappers(gm.graph):
        return compile_inner(gm, lambda inner: _compile(inner, what, options, needed))
    if os.environ.get("STRATA_VERIFY") == "1":
        check_functional(gm)
    options.report(what, lambda: format_functional(gm, strict=False))
    if not needed:
        return None
    compiler = getattr(options, f"{what}_compiler")
    examples: Sequence[Any] = [n.meta["val"] for n in gm.graph.find_nodes(op="placeholder")]
    name = getattr(compiler, "__name__", repr(compiler))
    try:
        with unlocked():  # it may wait for other threads
            compiled = compiler(gm, examples)
    except AotError:
        raise
    except Exception as error:
        raise CompilerError(
            f"B4: the {what} compiler {name} raised {type(error).__name__}: {error}"
        ) from error
    if not callable(compiled):
        raise CompilerError(
            f"B4: the {what} compiler {name} returned {compiled!r}, which cannot be called"
        )
    return compiled
