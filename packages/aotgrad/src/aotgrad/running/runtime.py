"""Generates the callable of one traced program: prologue, compiled graphs, epilogue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from aotgrad.tracing.view_chains import view_root, view_source

from .autograd_function import (
    SharedContext,
    WrapBackward,
    define_function,
    define_node_functions,
    watch_hooks,
)
from .backward import BackwardWriter, Compiled, call_compiled, is_nested_result, reader_masks
from .emit import EpilogueWriter
from .prologue import Runtime, within_new_leaves, write_prologue
from .python_text import PythonWriter, tuple_text
from .retain_graph import record_versions
from .text_functions import beside_values, wait_for
from .writeback_protocol import may_be_resized, only_written, save_private, write_backs

if TYPE_CHECKING:
    from aotgrad.graphs.split import Split
    from aotgrad.tracing.joint import Joint


MAX_NAMED_INPUTS = 8
"""More inputs than this are passed on as a tuple, which is faster, if none is used by name."""


def build_inference(
    runtime: Runtime, results: Sequence[torch.fx.Node], forward: Compiled
) -> tuple[Callable[..., Any], str]:
    """The callable of a program without differentiable outputs, and its source."""
    out, joint = _new_writer(runtime), runtime.joint
    values = _value_texts(joint, results)
    needs_no_grad = (
        bool(results) and runtime.grad_enabled and any(s.requires_grad for s in joint.inputs)
    )
    with out.block(f"def call({runtime.arguments}):"):
        write_prologue(out, runtime)
        with within_new_leaves(out, runtime):
            call = f"{out.name('forward', forward)}({', '.join(s.name for s in joint.inputs)})"
            names = [f"v{i}" for i in range(len(results))]
            with out.within(torch.no_grad if needs_no_grad else None):
                call_compiled(out, "forward", call, names, autocast=runtime.autocast)
            if needs_no_grad:
                _write_view_resets(out, joint, results, values)
            _write_epilogue(out, runtime, values, _written_in_graph(joint, results, forward))
    if len(runtime.parameters) > MAX_NAMED_INPUTS:
        out.pass_as_tuple([s.name for s in runtime.parameters])
    return out.load("call")


def build_training(
    runtime: Runtime,
    split: Split,
    forward: Compiled,
    backward: Compiled,
    wrap_backward: WrapBackward | None,
) -> tuple[Callable[..., Any], str]:
    """The callable of a program with differentiable outputs, and its source.

    Around the compiled graphs it has one ``torch.autograd.Function``, or one per autograd node.
    """
    joint, runtime.split = runtime.joint, split
    runtime.has_private_values = (
        split.num_private > 0
        and hasattr(forward, "keeping")
        and hasattr(backward, "taking")
        and not joint.nodes
    )
    writer = _TrainingWriter(runtime, split, _written_in_graph(joint, split.results, forward))
    if runtime.has_private_values:
        forward, backward = forward.keeping(), backward.taking()  # type: ignore[attr-defined]
    sentinels = writer.write_forward(forward)
    lead = ["None"] * len(writer.lead)
    num_sentinels = len(sentinels) + runtime.has_private_values
    BackwardWriter(writer.out, runtime, split, backward, lead, num_sentinels).write()
    if runtime.double is not None:
        runtime.double.num_private = split.num_private if runtime.has_private_values else 0
    writer.write_call()
    call, text = writer.out.load("call")
    if joint.nodes:
        read = _saved_by_nodes(runtime, [*split.saved, *sentinels.values()])
        define_node_functions(call, joint, len(lead), read, wrap_backward)
    else:
        define_function(call, joint.freed_with, wrap_backward)
    return call, text


class _TrainingWriter:
    """Writes ``function_forward``, and ``call``, which applies the autograd functions.

    Inputs and results that bypass autograd travel in a list, the box.
    """

    def __init__(self, runtime: Runtime, split: Split, in_graph: frozenset[int]) -> None:
        self.out, self.runtime = _new_writer(runtime), runtime
        self.joint, self.split = runtime.joint, split
        self.in_graph = in_graph  # the inputs that the compiled graph writes back
        self.values = _value_texts(self.joint, split.results)
        inputs = self.joint.inputs
        self.differentiated = [inputs[i].name for i in self.joint.gradients_of]
        self.boxed_inputs = [s.name for s in inputs if s.name not in self.differentiated]
        self.boxed_results = self._boxed_results()
        self.lead = ["box"] if self.boxed_inputs or self.boxed_results else []

    def _boxed_results(self) -> list[str]:
        """Results that bypass autograd."""
        joint, results = self.joint, self.split.results
        pairs = [pair for pair in write_backs(joint, results) if pair[0] in self.in_graph]
        unread: set[str] = set()
        if self.in_graph:
            unread = {f"v{i}" for i in only_written(joint, pairs, results)}
        boxed = (
            self.values[i]
            for i, node in enumerate(joint.values)
            if i not in joint.plan.differentiable and node in results
        )
        return [text for text in dict.fromkeys(boxed) if text not in unread]

    def write_forward(self, forward: Compiled) -> dict[str, torch.fx.Node]:
        """Writes ``function_forward``; returns the sentinels."""
        out = self.out
        parameters = ["ctx", *self.lead, *self.differentiated]
        with out.block(f"def function_forward({', '.join(parameters)}):"):
            if self.boxed_inputs:
                out(f"{', '.join(self.boxed_inputs)}, = box")
            sentinels = self._write_forward_graph(forward)
            if self.boxed_results:
                out(f"box[:] = {tuple_text(self.boxed_results)}")
            # a gradient that depends on absent tangents only is absent, not zero
            out("ctx.materialize_grads = False")
            returned = [self.values[i] for i in self.joint.plan.differentiable]
            out(f"return {returned[0] if len(returned) == 1 else tuple_text(returned)}")
        out()
        return sentinels

    def _write_forward_graph(self, forward: Compiled) -> dict[str, torch.fx.Node]:
        """Writes the call of the forward graph and what it saves for backward."""
        out, joint, split, double = self.out, self.joint, self.split, self.runtime.double
        num_private = split.num_private if self.runtime.has_private_values else 0
        call = f"{out.name('forward', forward)}({', '.join(s.name for s in joint.inputs)})"
        names = [f"v{i}" for i in range(len(split.results) - num_private)]
        names += ["private"] * bool(num_private)
        call_compiled(out, "forward", call, names, autocast=self.runtime.autocast)
        _write_view_resets(out, joint, split.results, self.values)
        texts = _node_texts(joint, split.results)
        memory = map(joint.memory_of, split.saved)
        saved = [texts[node] + ".data" * bool(node.meta.get("unversioned")) for node in memory]
        sentinels = self._sentinels(saved)
        private = []
        if num_private:
            saved[-num_private:] = []
            private = [f"*{out.name('save_private', save_private)}(ctx, private)"]
        self._write_saved_versions(saved, sentinels)
        to_save = [*saved, *sentinels, *private]
        if to_save:
            out(f"ctx.to_save = {tuple_text(to_save)}")  # what save_for_backward does
        if split.sizes:
            out(f"ctx.sizes = {tuple_text(texts[node] for node in split.sizes)}")
        if double is not None:
            out(f"ctx.primals = {double.saved_inputs_text()}")
        self._write_offsets()
        return sentinels

    def _write_offsets(self) -> None:
        """Saves what nested results hold beside the values: zeros in their gradients need it."""
        results = [(self.values[i], self.joint.values[i]) for i in self.joint.plan.differentiable]
        if len(results) > 1 and any(map(is_nested_result, (value for _, value in results))):
            texts = (
                f"{self.out.name('beside_values', beside_values)}({text})"
                if is_nested_result(value)
                else "None"
                for text, value in results
            )
            self.out(f"ctx.offsets = {tuple_text(texts)}")

    def _sentinels(self, saved: list[str]) -> dict[str, torch.fx.Node]:
        """Outputs that share memory with a saved value, and that value. They are saved too, so that
        autograd notices a write to them.
        """
        roots = {n for n in self.split.saved if self.joint.memory_of(n).op != "placeholder"}
        sentinels: dict[str, torch.fx.Node] = {}
        for i, node in enumerate(self.joint.values):
            text = self.values[i]
            if isinstance(node, torch.fx.Node) and node not in roots and text not in saved:
                root = view_root(node, unsafe=True)
                if root in roots:
                    sentinels[text] = root
        return sentinels

    def _write_saved_versions(self, saved: list[str], sentinels: dict[str, torch.fx.Node]) -> None:
        """Records versions if some saved tensors are needed by some of the tangents only."""
        masks = reader_masks(self.joint, self.split)
        if not masks or not (saved or sentinels):
            return
        roots = [*self.split.saved[: len(saved)], *sentinels.values()]
        results = {self.values[i] for i in self.joint.plan.differentiable}
        tensors = [f"{text}.detach()" if text in results else text for text in (*saved, *sentinels)]
        record = self.out.name("record_versions", record_versions)
        readers = tuple(masks[root.name] for root in roots)
        self.out(f"ctx.saved_versions = {record}({readers}, {tuple_text(tensors)})")

    def write_call(self) -> None:
        """Writes ``call``."""
        out, runtime, plan = self.out, self.runtime, self.joint.plan
        returned = [f"y{i}" for i in plan.differentiable]
        unboxed = {text: f"b{i}" for i, text in enumerate(self.boxed_results)}
        texts = {i: unboxed.get(text, text) for i, text in self.values.items()}
        texts |= {i: f"y{i}" for i in plan.differentiable}
        with out.block(f"def call({runtime.arguments}):"):
            write_prologue(out, runtime, self.split.saved)
            with (
                within_new_leaves(out, runtime),
                out.within(None if runtime.grad_enabled else torch.enable_grad),
            ):
                if self.lead:
                    out(f"box = [{', '.join(self.boxed_inputs)}]")
                self._write_apply(returned)
                if len(returned) > 1:
                    out(f"{out.name('watch_hooks', watch_hooks)}({tuple_text(returned)})")
                if unboxed:
                    out(f"{', '.join(unboxed.values())}, = box")
                _write_epilogue(out, runtime, texts, self.in_graph)

    def _write_apply(self, returned: list[str]) -> None:
        """Writes ``apply``; with several autograd nodes one forward pass without grad, then
        ``apply`` of each node.
        """
        out, arguments = self.out, ", ".join([*self.lead, *self.differentiated])
        if not self.joint.nodes:
            out(f"{', '.join(returned)} = apply({arguments})")
            return
        out(f"shared = {out.name('SharedContext', SharedContext)}()")
        with out.within(torch.no_grad):
            out(f"{', '.join(returned)} = function_forward(shared, {arguments})")
            out(f"shared.detach_results(({', '.join(returned)}))")
        for i, (results, inputs) in enumerate(self.joint.nodes):
            own = "".join(f"{returned[k]}, " for k in results)
            given = ", ".join(self.differentiated[k] for k in inputs)
            out(f"{own}= apply_{i}([shared, {own}], {given})")


def _saved_by_nodes(runtime: Runtime, roots: Sequence[torch.fx.Node]) -> list[list[int]]:
    """For each autograd node, which of the saved tensors it keeps.

    ``roots`` are the joint nodes of those tensors. A backward that is computed as a whole, with
    zeros for the results of other nodes, reads every saved tensor.
    """
    if runtime.partial is None:
        return [[*range(len(roots))] for _ in runtime.joint.nodes]
    masks = (sum(1 << k for k in results) for results, _ in runtime.joint.nodes)
    names = [runtime.partial.reads(mask) for mask in masks]
    return [[i for i, root in enumerate(roots) if root.name in read] for read in names]


def _new_writer(runtime: Runtime) -> PythonWriter:
    out = PythonWriter()
    joint = runtime.joint
    out.namespace["torch"] = torch
    out.reserved = {s.name for s in joint.inputs} | {n.name for n in joint.gm.graph.nodes}
    for spec, real in zip(joint.inputs, runtime.lifted):
        out.namespace[spec.name] = real
    return out


def _written_in_graph(
    joint: Joint, results: Sequence[torch.fx.Node], forward: Compiled
) -> frozenset[int]:
    """The inputs that the compiled graph writes back itself (B6)."""
    written = getattr(forward, "writes_back", False)
    allowed = frozenset(i for i, _ in write_backs(joint, results))
    return allowed if written is True else allowed & (written or frozenset())


def _write_epilogue(
    out: PythonWriter, runtime: Runtime, values: dict[int, str], in_graph: frozenset[int]
) -> None:
    """Writes what follows the compiled graph: assertions, write-backs, and the outputs."""
    plan = runtime.joint.plan
    records = runtime.grad_enabled or runtime.joint.has_backward
    writer = EpilogueWriter(out, runtime.joint, values, grad_enabled=records)
    for operator, args, kwargs in plan.eager_draws:
        out(writer.call(operator, [*map(writer.size, args)], kwargs.items()))
    for assertion in plan.assertions:
        check = out.name("assert_async", torch._assert_async)
        if assertion.synchronous:
            check = out.name("wait_for", wait_for)
        message = "" if assertion.message is None else f", {assertion.message!r}"
        out(f"{check}({values[assertion.slot.index]}{message})")
    _write_size_checks(out, runtime, writer, in_graph)
    writer.mutations(in_graph)
    out(f"return {tuple_text(writer.outputs())}")


def _write_size_checks(
    out: PythonWriter, runtime: Runtime, writer: EpilogueWriter, in_graph: frozenset[int]
) -> None:
    """Runs eagerly if an operator resized what it wrote: nothing is written back yet."""
    resized = [
        f"{writer.values[m.slot.index]}.shape != {writer.external(m.target)}.shape"
        for m in may_be_resized(runtime.joint)
        if m.slot is not None and m.target.index not in in_graph
    ]
    if not resized:
        return
    set_grad_enabled = out.name("set_grad_enabled", torch.set_grad_enabled)
    mode = f"with {set_grad_enabled}({runtime.grad_enabled}):"
    with out.block(f"if {' or '.join(resized)}:"), out.block(mode):
        out(f"return {out.name('resized', runtime.eager)}({runtime.arguments})")


def _node_texts(joint: Joint, results: Sequence[torch.fx.Node]) -> dict[torch.fx.Node, str]:
    """The text of each input and result, once the compiled graph has run."""
    texts = dict(zip(joint.input_nodes, (spec.name for spec in joint.inputs)))
    return texts | {node: f"v{i}" for i, node in enumerate(results)}


def _value_texts(joint: Joint, results: Sequence[torch.fx.Node]) -> dict[int, str]:
    """The text of each forward value, once the compiled graph has run."""
    texts = _node_texts(joint, results)
    return {i: texts.get(node) or repr(node) for i, node in enumerate(joint.values)}


def _write_view_resets(
    out: PythonWriter, joint: Joint, results: Sequence[torch.fx.Node], values: dict[int, str]
) -> None:
    """A view made under no_grad refuses in-place ops later; its ``.data`` is an ordinary tensor."""
    for i, node in enumerate(joint.values):
        if isinstance(node, torch.fx.Node) and node in results and view_source(node) is not None:
            line = f"{values[i]} = {values[i]}.data"
            if out.lines[-1].strip() != line:
                out(line)
