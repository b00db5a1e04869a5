"""One traced program through passes, partition and compilers to a callable."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch

from aotgrad.effect_plan import Slot, View
from aotgrad.errors import AotError, CompilerError, Unsupported
from aotgrad.graphs.autograd_nodes import merge_nodes
from aotgrad.graphs.constants import is_random
from aotgrad.graphs.dead_effects import effects_of, find_effects
from aotgrad.graphs.partial_backward import PartialBackward, harmful_mixes
from aotgrad.graphs.partition import Partitioner
from aotgrad.graphs.passes import clean, separate_outputs
from aotgrad.graphs.patterns import PATTERNS, apply_patterns
from aotgrad.graphs.recipe import Recipe
from aotgrad.graphs.seeded_random import restore_random, seed_random
from aotgrad.graphs.show import graph_text
from aotgrad.graphs.split import JointView, Split, extract_forward, split_joint
from aotgrad.graphs.tangent_views import gradient_nodes
from aotgrad.graphs.unit_tangent import with_unit_gradients
from aotgrad.graphs.verify import check_functional
from aotgrad.graphs.wrapper_subclasses import compile_inner, has_wrappers
from aotgrad.names import apart
from aotgrad.running.backward import passes_tangents
from aotgrad.running.double_backward import DoubleBackward
from aotgrad.running.runtime import Runtime, build_inference, build_training
from aotgrad.running.writeback_protocol import may_be_resized, only_written, write_backs
from aotgrad.tracing.joint import Joint
from aotgrad.tracing.view_chains import view_root, view_source


@dataclass(frozen=True, slots=True)
class Options:
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
    around_backward: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
    memory: Callable[..., Any] | None = None

    def report(self, name: str, text: Callable[[], str]) -> None:
        """Hands an artifact to the listener; texts nobody listens to are not made."""
        if self.on_artifact is not None:
            self.on_artifact(name, text())


def optimise_joint(joint: Joint, options: Options) -> None:
    """Cleans the joint graph, runs the user's passes, and gives outputs memory of their own."""
    _refuse_sparse_arithmetic(joint)
    views = [
        k
        for k, g in enumerate(gradient_nodes(joint))
        if isinstance(g, torch.fx.Node) and view_source(g) is not None
    ]
    find_effects(joint)
    clean(joint.gm, keep_random=options.fallback_random)
    patterns = [] if has_wrappers(joint.gm.graph) else [*PATTERNS.values()]
    counts = apply_patterns(joint.gm, patterns, keep_random=options.fallback_random)
    if counts:
        options.report(
            "patterns", lambda: "".join(f"{name}: {n} matches\n" for name, n in counts.items())
        )
    for rewrite in options.passes:
        joint.gm = rewrite(joint.gm) or joint.gm
    separate_outputs(joint.gm.graph, _owned_slots(joint))
    passed = gradient_nodes(joint)
    joint.shared_gradients = tuple(
        k for k in views if isinstance(passed[k], torch.fx.Node) and passed[k].op == "placeholder"
    )
    for node in joint.gm.graph.nodes:
        node._rename(apart(node.name))
    options.report("joint", lambda: graph_text(joint.gm))


def _refuse_sparse_arithmetic(joint: Joint) -> None:
    """Sparse gradients may leave a graph as they are made. Fakes of them look dense, so that
    nothing may compute with them: to kernels they have no memory.
    """
    for node in joint.gm.graph.nodes:
        if node.kwargs.get("layout") in (None, torch.strided) or node.op != "call_function":
            continue
        if any(user.op != "output" for user in node.users):
            raise Unsupported("AG037", "sparse gradients are combined", node=node)


def _owned_slots(joint: Joint) -> list[int]:
    """Values that need memory of their own: what the caller or autograd gets to hold, and
    write-backs of values that other write-backs overwrite.
    """
    plan = joint.plan
    held = {o.index for o in plan.outputs if isinstance(o, Slot)}
    held |= {o.base.index for o in plan.outputs if isinstance(o, View) and isinstance(o.base, Slot)}
    values: tuple[Any, ...] = joint.gm.graph.output_node().args[0]  # type: ignore[assignment]
    placeholders = joint.gm.graph.find_nodes(op="placeholder")
    written = {placeholders[m.target.index] for m in plan.mutations if m.target.index >= 0}
    for m in plan.mutations:
        if m.slot is not None and view_root(values[m.slot.index], unsafe=True) in written:
            held.add(m.slot.index)
    return sorted(held | set(plan.differentiable))


def compile_joint(
    joint: Joint, run: Runtime, recipe: Recipe, options: Options
) -> tuple[Callable[..., Any], str]:
    """The callable of a joint graph that ``optimise_joint`` has seen, and its source."""
    if not joint.has_backward:
        values: Any = joint.gm.graph.output_node().args[0]
        nodes = dict.fromkeys(
            v for v in values if isinstance(v, torch.fx.Node) and v.op != "placeholder"
        )
        nodes |= dict.fromkeys(effects_of(joint))
        extracted = extract_forward(joint, nodes)
        _say_what_is_written(joint, extracted, tuple(nodes), ())
        forward = _compile(options.inference_compiler, extracted, "inference", options, bool(nodes))
        call, text = build_inference(run, tuple(nodes), forward)
    else:
        split = _partitioned(joint, options)
        _say_what_is_written(joint, split.forward, split.results, split.saved)
        partial = _partial_backward(joint, split, options)  # before a compiler may change the graph
        forward = _compile(
            options.forward_compiler, split.forward, "forward", options, bool(split.results)
        )
        # else each autograd node has a backward of its own
        is_whole = partial is None or not joint.nodes
        backward = _compile(
            options.backward_compiler,
            split.backward,
            "backward",
            options,
            is_whole and bool(split.gradients),
        )
        if not passes_tangents(joint):
            run.double = _double_backward(joint, recipe, split, options)
            run.partial = partial
        call, text = build_training(run, split, forward, backward, options.around_backward)
    options.report("runtime", lambda: text)
    return call, text


def _partial_backward(joint: Joint, split: Split, options: Options) -> PartialBackward | None:
    """What computes gradients from some tangents, where zeros for the others can do harm."""
    count = len(joint.plan.differentiable)
    if count < 2 or has_wrappers(joint.gm.graph):
        return None
    if not joint.nodes and not harmful_mixes(split.backward, count):
        return None
    listener = options.on_artifact
    if listener is not None:
        options = replace(options, on_artifact=lambda name, text: listener(f"partial {name}", text))
    return PartialBackward(
        split.backward,
        count,
        lambda gm: _compile(options.backward_compiler, gm, "backward", options, True),
    )


def late_backward(
    recipe: Recipe, options: Options
) -> tuple[DoubleBackward, PartialBackward | None, list[str], int]:
    """What goes backward in other ways, for a program that was compiled without a trace:
    differentiably, and from some tangents; with the names of the nodes that are saved, and how many
    of them only backward sees.
    """
    joint = recipe.trace()
    optimise_joint(joint, options)
    split = _partitioned(joint, options)
    double, partial = (
        _double_backward(joint, recipe, split, options),
        _partial_backward(joint, split, options),
    )
    return double, partial, [n.name for n in split.saved], split.kept


def _double_backward(
    joint: Joint, recipe: Recipe, split: Split, options: Options
) -> DoubleBackward:
    return DoubleBackward(
        joint,
        recipe,
        split,
        lambda again, its_recipe: _compile_gradient(again, its_recipe, options),
    )


def _partitioned(joint: Joint, options: Options) -> Split:
    """The split that the partitioner chooses; random ops that it repeats draw from a kept seed."""
    may_repeat = (
        [] if options.fallback_random else [n for n in joint.gm.graph.nodes if is_random(n)]
    )
    seeded = seed_random(n for n in may_repeat if options.repeats_random or "recompute" in n.meta)
    view = JointView.of(joint)
    merge_nodes(view)
    partition = options.partition(view)
    if options.unit_gradients and not options.repeats_random:
        view, partition = with_unit_gradients(view, partition)
    options.report("partition", lambda: str(partition))
    restore_random(
        n for n in seeded if n.name not in partition.recomputed and n.args[0] not in partition.saved
    )
    return split_joint(view, partition.saved)


def _say_what_is_written(
    joint: Joint,
    forward: torch.fx.GraphModule,
    results: tuple[torch.fx.Node, ...],
    saved: Sequence[torch.fx.Node],
) -> None:
    """Tells the compiler what it may write back itself (B6), and which results may lie in the
    memory of their inputs.
    """
    pairs = forward.meta["writes"] = write_backs(joint, results)
    unread = forward.meta["unread"] = frozenset(
        i for i in only_written(joint, pairs, results) if results[i] not in saved
    )
    if not may_be_resized(joint) and not has_wrappers(forward.graph):  # whose graph is another one
        inputs = forward.graph.find_nodes(op="placeholder")
        for target, position in pairs:
            if position in unread:
                inputs[target].meta["written"] = position


def _compile_gradient(joint: Joint, recipe: Recipe, options: Options) -> Callable[..., Any]:
    """The callable of a program that is the gradient of another."""
    listener = options.on_artifact
    if listener is not None:
        options = replace(
            options, on_artifact=lambda name, text: listener(f"gradient {name}", text)
        )
    joint.outer_paths, joint.addressed = (), frozenset()  # the first pass has been through here
    optimise_joint(joint, options)
    run = Runtime(joint, (), _never, None, True, True)
    return compile_joint(joint, run, recipe, options)[0]


def _never(*inputs: Any) -> NoReturn:
    raise AssertionError("a gradient writes to nothing")


def _compile(
    compiler: Callable[..., Any],
    gm: torch.fx.GraphModule,
    what: str,
    options: Options,
    wanted: bool,
) -> Any:
    if wanted and has_wrappers(gm.graph):
        return compile_inner(gm, lambda inner: _compile(compiler, inner, what, options, wanted))
    if os.environ.get("STRATA_VERIFY") == "1":
        check_functional(gm)
    options.report(what, lambda: graph_text(gm))
    if not wanted:
        return None
    examples: Sequence[Any] = [n.meta["val"] for n in gm.graph.find_nodes(op="placeholder")]
    name = getattr(compiler, "__name__", repr(compiler))
    try:
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
