"""Cuts a joint graph in two at a set of saved nodes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from symshapes import LazyGraphModule, PlainGraph, expr_of, is_symbolic

from aotgrad.tracing.joint import Joint
from aotgrad.tracing.view_chains import view_root, view_source

from .cost import Recompute, recompute_class
from .dead_effects import kept_effects
from .passes import is_collective, is_random, reads_inputs, size_symbols
from .private_values import donatable, private_saved
from .rematerialise import add_substitutes
from .tangent_views import tangent_view_gradients
from .wrapper_subclasses import has_wrappers

aten = torch.ops.aten


@dataclass(slots=True)
class JointAnalysis:
    """Sets of nodes of a joint graph, computed once.

    Attributes:
        joint: the graph.
        values: nodes (or constants) of the forward values.
        gradients: nodes of the gradients that are computed.
        from_tangent: nodes that depend on a tangent; these run in backward.
        needed: ancestors of a gradient, the gradients included.
        written: placeholders that the epilogue overwrites.
        static: placeholders that callers seldom write to: parameters, buffers, leaves that require
            grad.
        saved_in_eager: memory that eager's backward reads.
        exposed: nodes whose memory the caller gets to hold.
        substitutes: for some nodes a cheaper way to compute them again in backward.
        interior: values inside a checkpoint, which must be computed again (P1).
        fixed: forward values that must not be computed again: callers may write to their operands
            unnoticed, through ``.data``, where eager has saved the value. Parameters are left out:
            much is computed again from them, and callers do not write to them in this way.
    """

    joint: Joint
    values: tuple[Any, ...]
    gradients: tuple[Any, ...]
    from_tangent: set[torch.fx.Node]
    needed: set[torch.fx.Node]
    written: set[torch.fx.Node]
    static: set[torch.fx.Node]
    exposed: set[torch.fx.Node]
    substitutes: dict[torch.fx.Node, torch.fx.Node] = field(default_factory=dict)
    interior: set[torch.fx.Node] = field(default_factory=set)
    saved_in_eager: dict[torch.fx.Node, None] = field(default_factory=dict)
    fixed: set[torch.fx.Node] = field(default_factory=set)

    @staticmethod
    def of(joint: Joint | JointAnalysis) -> JointAnalysis:
        """Analyses a joint graph, unless it is analysed already."""
        if isinstance(joint, JointAnalysis):
            return joint
        graph, inputs, values = joint.gm.graph, joint.input_nodes, joint.values
        shown = tangent_view_gradients(joint)
        gradients = tuple(g for g in joint.gradients if g not in shown)
        needed = ancestors(g for g in gradients if isinstance(g, torch.fx.Node))
        static = {
            node
            for node, spec in zip(inputs, joint.inputs)
            if spec.static or (spec.requires_grad and spec.is_leaf)
        }
        view = JointAnalysis(
            joint,
            values,
            gradients,
            from_tangent=descendants(graph, joint.tangents),
            needed=needed,
            written={inputs[i] for i in joint.plan.written_inputs},
            static=static,
            exposed={view_root(v, unsafe=True) for v in values if isinstance(v, torch.fx.Node)},
            interior=checkpoint_interior(graph, values),
        )
        view.saved_in_eager.update(dict.fromkeys(saved_by_eager(view)))
        view.fixed = {
            n for n in needed if view.is_forward(n) and reads_inputs(n) and not view.reads_copies(n)
        }
        return view

    def reads_copies(self, node: torch.fx.Node) -> bool:
        """Whether backward, computing the value again, reads copies of all inputs that callers may
        write to.
        """
        roots = (
            view_root(a, unsafe=True)
            for a in node.all_input_nodes
            if isinstance(a.meta["val"], torch.Tensor)
        )
        return all(
            root.meta.get("static") or (self.must_copy(root) and "stored_in" not in root.meta)
            for root in roots
        )

    def is_forward(self, node: torch.fx.Node) -> bool:
        """Whether the program computes a value, rather than its derivative."""
        return (
            node.op == "call_function"
            and node not in self.from_tangent
            and not node.meta.get("is_backward")
        )

    def add_substitutes(self) -> None:
        """Lets backward compute normalisations again from their statistics."""
        # each of several autograd nodes may read another part of the memory
        if has_wrappers(self.joint.gm.graph) or self.joint.nodes:
            return
        found = add_substitutes(self.joint.gm.graph, self.exposed)
        self.substitutes = {
            n: s for n, s in found.items() if self.fixed.isdisjoint([n, *n.all_input_nodes])
        }
        self.needed |= ancestors(s for node, s in self.substitutes.items() if node in self.needed)

    def recompute_inputs(self, node: torch.fx.Node) -> list[torch.fx.Node]:
        """What is needed to compute a node in backward."""
        substitute = self.substitutes.get(node)
        return node.all_input_nodes if substitute is None else [substitute]

    def is_size(self, node: torch.fx.Node) -> bool:
        """Whether a node is a number: always recomputed from the symbols."""
        return not isinstance(node.meta["val"], (torch.Tensor, list, tuple))

    def must_copy(self, node: torch.fx.Node) -> bool:
        """Whether backward needs a copy of an input: the program overwrites it, or eager's backward
        does not read it, so that the caller may write to it.
        """
        return node.op == "placeholder" and (
            node in self.written or node not in self.saved_in_eager
        )

    def can_save(self, node: torch.fx.Node) -> bool:
        """Whether a node stands for memory of its own that can be handed to backward."""
        is_tensor = isinstance(node.meta["val"], torch.Tensor) and node.op != "get_attr"
        if not is_tensor or node.meta.get("is_substitute") or node in self.interior:
            return False
        return view_source(node, unsafe=True) is None


def saved_by_eager(
    view: JointAnalysis, reached: set[torch.fx.Node] | None = None
) -> list[torch.fx.Node]:
    """Memory that eager's backward reads: what its nodes use, traced through views and checkpoints
    to the owner.

    ``reached``: of the nodes that depend on a tangent those that take part; all by default.
    """
    in_backward = {n for n in view.needed if n in view.from_tangent or n.meta.get("is_backward")}
    if reached is not None:
        in_backward = (in_backward & ancestors(in_backward & reached)) - (
            view.from_tangent - reached
        )
    found: dict[torch.fx.Node, None] = {}
    stack = [a for n in in_backward for a in n.all_input_nodes if a not in in_backward]
    stack += [g for g in view.gradients if isinstance(g, torch.fx.Node) and g not in in_backward]
    seen: set[torch.fx.Node] = set()
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if view.can_save(node):
            found[node] = None
        elif not view.is_size(node):
            stack.extend(a for a in node.all_input_nodes if a not in in_backward)
    return list(found)


def checkpoint_interior(graph: torch.fx.Graph, values: Iterable[Any]) -> set[torch.fx.Node]:
    """Nodes tagged with a region that only their own region and backward read, and that can be
    computed again.
    """
    held = {v for v in values if isinstance(v, torch.fx.Node)}
    found: set[torch.fx.Node] = set()
    for node in reversed(graph.nodes):
        region = node.meta.get("recompute")
        if region is None or node in held or recompute_class(node) is Recompute.NEVER:
            continue
        readers = [u for u in node.users if not u.meta.get("is_backward")]
        outside = [u for u in readers if u.meta.get("recompute") != region and u.op != "output"]
        # a view made in the region and read outside keeps the memory behind it
        exported = any(view_source(u, unsafe=True) is not None and u not in found for u in readers)
        if not outside and not exported:
            found.add(node)
    for node in graph.nodes:  # keeping what backward alone computes from them would be a way around
        if node.meta.get("is_backward") and any(a in found for a in node.all_input_nodes):
            found.add(node)
    return found


def ancestors(nodes: Iterable[torch.fx.Node]) -> set[torch.fx.Node]:
    """The nodes and everything that they are computed from."""
    found: set[torch.fx.Node] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(node.all_input_nodes)
    return found


def descendants(graph: torch.fx.Graph, nodes: Iterable[torch.fx.Node]) -> set[torch.fx.Node]:
    """The nodes and all calls that depend on them."""
    found = set(nodes)
    for node in graph.nodes:
        if node.op == "call_function" and not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return found


@dataclass(slots=True)
class Split:
    """Forward and backward graphs, and how values travel between them.

    Attributes:
        forward: placeholders are the inputs; outputs are the nodes of ``results``.
        results: joint nodes that the forward graph returns, each once. An input is never among
            them.
        backward: placeholders are ``sizes``, ``saved``, then tangents; outputs are the nodes of
            ``gradients``.
        gradients: joint nodes that the backward graph returns, each once.
        saved: joint tensor nodes that backward reads.
        copied: those of ``saved`` that are inputs of which backward needs a copy: the forward graph
            returns it.
        sizes: joint nodes of the sizes that backward reads.
        donated: those of ``saved`` whose memory backward may use for something else.
        num_private: how many of ``saved`` only backward sees; they come last in ``saved`` and in
            ``results``.
    """

    forward: torch.fx.GraphModule
    results: tuple[torch.fx.Node, ...]
    backward: torch.fx.GraphModule
    gradients: tuple[torch.fx.Node, ...]
    saved: tuple[torch.fx.Node, ...]
    copied: frozenset[torch.fx.Node]
    sizes: tuple[torch.fx.Node, ...]
    donated: frozenset[torch.fx.Node] = frozenset()
    num_private: int = 0


def split_joint(view: JointAnalysis, saved: Iterable[torch.fx.Node]) -> Split:
    """Builds both graphs; ``saved`` must cut every path from forward to the gradients."""
    order = {node: i for i, node in enumerate(view.joint.gm.graph.nodes)}
    saved = tuple(sorted(set(saved), key=order.__getitem__))
    body, used = _backward_body(view, set(saved), order)
    own = private_saved(used, view.exposed)
    saved = tuple(sorted((s for s in saved if s in used), key=own.__contains__))
    sizes = _sizes_read(view, body, saved, order)
    copied = frozenset(s for s in saved if view.must_copy(s))
    wanted = [*view.values, *kept_effects(view.joint), *sizes, *saved]
    results = tuple(
        dict.fromkeys(
            n
            for n in wanted
            if isinstance(n, torch.fx.Node) and (n.op != "placeholder" or n in copied)
        )
    )
    forward = extract_forward(view.joint, results, copied)
    gradients = tuple(
        dict.fromkeys(
            g
            for g in view.gradients
            if isinstance(g, torch.fx.Node) and g.op != "placeholder" and g in body
        )
    )
    donated = donatable(own)
    backward = _extract_backward(view, body, saved, sizes, gradients)
    for placeholder, node in zip(
        backward.graph.find_nodes(op="placeholder"), dict.fromkeys((*sizes, *saved))
    ):
        if node in donated:
            placeholder.meta["donated"] = True
    backward.meta["private_inputs"] = (len(sizes) + len(saved) - len(own), len(sizes) + len(saved))
    forward.meta["private_results"] = len(own)
    return Split(forward, results, backward, gradients, saved, copied, sizes, donated, len(own))


def _backward_body(
    view: JointAnalysis, saved: set[torch.fx.Node], order: dict[torch.fx.Node, int]
) -> tuple[dict[torch.fx.Node, None], set[torch.fx.Node]]:
    """What backward computes, each recomputed node right before its first use; and which saved
    nodes it reads.
    """
    body: dict[torch.fx.Node, None] = {}
    used: set[torch.fx.Node] = set()

    def is_given(node: torch.fx.Node) -> bool:
        return node.op == "placeholder" or (_is_binder(node) and node not in view.from_tangent)

    def emit(node: torch.fx.Node) -> None:
        stack = [node]
        while stack:
            top = stack[-1]
            if top in saved or top in body or is_given(top):
                if top in saved:
                    used.add(top)
                stack.pop()
                continue
            missing = [
                a
                for a in view.recompute_inputs(top)
                if not (a in body or a in saved or is_given(a))
            ]
            if missing:
                stack.extend(sorted(missing, key=order.__getitem__, reverse=True))
                continue
            used.update(a for a in view.recompute_inputs(top) if a in saved)
            body[top] = None
            stack.pop()

    for node in view.joint.gm.graph.nodes:
        if node in view.from_tangent and (
            node in view.needed or (_is_binder(node) and node.args[0] in view.needed)
        ):
            emit(node)
    for gradient in view.gradients:
        if isinstance(gradient, torch.fx.Node):
            emit(gradient)
    return body, used


def _sizes_read(
    view: JointAnalysis,
    body: Iterable[torch.fx.Node],
    saved: Iterable[torch.fx.Node],
    order: dict[torch.fx.Node, int],
) -> tuple[torch.fx.Node, ...]:
    body = list(body)
    tensors = (*body, *saved, *view.joint.tangents)
    symbols: set[Any] = set().union(*map(size_symbols, tensors))
    binders = {expr_of(n.meta["val"]): n for n in view.joint.gm.graph.nodes if _is_binder(n)}
    computed = set(body)
    found = {binders[s] for s in symbols if s in binders and binders[s] not in computed}
    read = {a for n in body for a in n.all_input_nodes if a not in computed and view.is_size(a)}
    found |= {a for a in read if a.op == "placeholder" or _is_binder(a)}
    return tuple(sorted(found, key=order.__getitem__))


def _is_binder(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    if not is_symbolic(value) or not expr_of(value).is_Symbol:
        return False
    return node.op == "placeholder" or isinstance(node.target, torch._ops.OpOverload)


def extract_forward(
    joint: Joint, results: Iterable[torch.fx.Node], copied: frozenset[torch.fx.Node] = frozenset()
) -> torch.fx.GraphModule:
    """The part of a joint graph that computes ``results`` from the inputs."""
    results = tuple(results)
    tangents = set(joint.tangents)
    unused = [n for n in joint.gm.graph.nodes if not n.users]
    draws = (n for n in unused if is_random(n))  # there for eager's random sequence
    shared = (n for n in unused if is_collective(n) and not ancestors([n]) & tangents)
    needed = ancestors((*results, *draws, *shared))
    graph, env = PlainGraph(), {}
    binders = {
        n for n in joint.gm.graph.nodes if n.target is aten.sym_size.int and n.args[0] in needed
    }
    for node in joint.gm.graph.nodes:
        if (node.op == "placeholder" and node not in tangents) or (
            node.op != "output" and (node in needed or node in binders)
        ):
            env[node] = graph.node_copy(node, env.__getitem__)
    outputs = []
    for node in results:
        out = env[node]
        if node in copied:
            out = graph.call_function(aten.clone.default, (out,))
            out.meta["val"] = node.meta["val"]
        outputs.append(out)
    graph.output(tuple(outputs))
    return LazyGraphModule(joint.gm, graph, "Forward")


def _extract_backward(
    view: JointAnalysis,
    body: Iterable[torch.fx.Node],
    saved: tuple[torch.fx.Node, ...],
    sizes: tuple[torch.fx.Node, ...],
    gradients: tuple[torch.fx.Node, ...],
) -> torch.fx.GraphModule:
    graph, env = PlainGraph(), {}
    for node in (*sizes, *saved, *view.joint.tangents):
        if node in env:
            continue
        env[node] = placeholder = graph.placeholder(node.name)
        placeholder.meta["val"] = view.joint.memory_of(node).meta["val"]
    for node in body:
        substitute = view.substitutes.get(node)
        env[node] = (
            graph.node_copy(node, env.__getitem__) if substitute is None else env[substitute]
        )
    graph.output(tuple(env[g] for g in gradients))
    return LazyGraphModule(view.joint.gm, graph, "Backward")
