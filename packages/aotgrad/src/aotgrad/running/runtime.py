"""Generates the callable of one traced program: prologue, compiled graphs, epilogue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from aotgrad.effect_plan import GUARD_FAILED
from aotgrad.graphs.split import Split
from aotgrad.tracing.joint import Joint
from aotgrad.tracing.view_chains import view_root, view_source

from .autograd_function import SharedContext, WrapBackward, define_function, define_node_functions
from .backward import Compiled, call_compiled, reader_masks, write_backward
from .emit import EpilogueWriter, PythonWriter, tuple_text
from .prologue import Runtime, write_prologue
from .result_hooks import watch_hooks
from .retain_graph import record_versions
from .writeback_protocol import may_be_resized, only_written, save_private, write_backs

MAX_NAMED_INPUTS = 8
"""More inputs than this are passed on as a tuple, which is faster, if none is used by name."""


def build_inference(
    runtime: Runtime, results: Sequence[torch.fx.Node], forward: Compiled
) -> tuple[Callable[..., Any], str]:
    """The callable of a program without differentiable outputs, and its source."""
    out = _new_writer(runtime)
    joint = runtime.joint
    values = _value_texts(joint, results)
    write_prologue(out, runtime)
    in_graph = _written_in_graph(joint, results, forward)
    needs_no_grad = (
        bool(results) and runtime.grad_enabled and any(s.requires_grad for s in joint.inputs)
    )
    if needs_no_grad:
        out.enter(f"with {out.name('no_grad', torch.no_grad)}():")
    call = f"{out.name('forward', forward)}({', '.join(s.name for s in joint.inputs)})"
    names = [f"v{i}" for i in range(len(results))]
    call_compiled(out, "forward", call, names, autocast=runtime.autocast)
    if needs_no_grad:
        out.leave()
        _write_view_resets(out, joint, results, values)
    _write_epilogue(out, runtime, values, in_graph)
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
    out, joint = _new_writer(runtime), runtime.joint
    values = _value_texts(joint, split.results)
    in_graph = _written_in_graph(joint, split.results, forward)
    boxed_results = _boxed_results(joint, split, values, in_graph)
    runtime.split = split
    runtime.has_private_values = (
        split.num_private > 0
        and hasattr(forward, "keeping")
        and hasattr(backward, "taking")
        and not joint.nodes
    )
    if runtime.has_private_values:
        forward, backward = forward.keeping(), backward.taking()  # type: ignore[attr-defined]
    differentiated = [joint.inputs[i].name for i in joint.gradients_of]
    boxed_inputs = [s.name for s in joint.inputs if s.name not in differentiated]
    lead = ["box"] if boxed_inputs or boxed_results else []
    out.enter(f"def function_forward({', '.join(['ctx', *lead, *differentiated])}):")
    if boxed_inputs:
        out(f"{', '.join(boxed_inputs)}, = box")
    sentinels = _write_forward(out, runtime, split, forward, values)
    if boxed_results:
        out(f"box[:] = {tuple_text(boxed_results)}")
    # a gradient that depends on absent tangents only is absent, not zero
    out("ctx.materialize_grads = False")
    returned = [values[i] for i in joint.plan.differentiable]
    out(f"return {returned[0] if len(returned) == 1 else tuple_text(returned)}")
    out.leave()
    out()
    num_sentinels = len(sentinels) + runtime.has_private_values
    write_backward(out, runtime, split, backward, ["None"] * len(lead), num_sentinels)
    if runtime.double is not None:
        runtime.double.num_private = split.num_private if runtime.has_private_values else 0
    arguments = [*lead, *differentiated]
    _write_training_call(
        out, runtime, split, boxed_inputs, arguments, boxed_results, values, in_graph
    )
    call, text = out.load("call")
    if joint.nodes:
        read = _saved_by_nodes(runtime, [*split.saved, *sentinels.values()])
        define_node_functions(call, joint, len(lead), read, wrap_backward)
    else:
        define_function(call, joint.freed_with, wrap_backward)
    return call, text


def _write_forward(
    out: PythonWriter, runtime: Runtime, split: Split, forward: Compiled, values: dict[int, str]
) -> dict[str, torch.fx.Node]:
    """Writes the call of the forward graph and what it saves for backward; returns the sentinels:
    see ``_sentinels``.
    """
    joint, has_private_values = runtime.joint, runtime.has_private_values
    call = f"{out.name('forward', forward)}({', '.join(s.name for s in joint.inputs)})"
    count = len(split.results) - (split.num_private if has_private_values else 0)
    names = [f"v{i}" for i in range(count)] + ["private"] * has_private_values
    call_compiled(out, "forward", call, names, autocast=runtime.autocast)
    _write_view_resets(out, joint, split.results, values)
    texts = _input_names(joint) | {node: f"v{i}" for i, node in enumerate(split.results)}
    saved = [texts[node] + ".data" * bool(node.meta.get("unversioned")) for node in split.saved]
    sentinels = _sentinels(joint, split, values, saved)
    private = []
    if has_private_values:
        saved[-split.num_private :] = []
        private = [f"*{out.name('save_private', save_private)}(ctx, private)"]
    _write_saved_versions(out, joint, split, saved, sentinels, values)
    to_save = [*saved, *sentinels, *private]
    if to_save:
        out(f"ctx.to_save = {tuple_text(to_save)}")  # what save_for_backward does
    if split.sizes:
        out(f"ctx.sizes = {tuple_text(texts[node] for node in split.sizes)}")
    if runtime.double is not None:
        out(f"ctx.primals = {runtime.double.saved_inputs_text()}")
    return sentinels


def _saved_by_nodes(runtime: Runtime, roots: Sequence[torch.fx.Node]) -> list[list[int]]:
    """For each autograd node, which of the saved tensors it keeps.

    ``roots`` are the joint nodes of those tensors. A backward that is computed as a whole, with
    zeros for the results of other nodes, reads all of them.
    """
    if runtime.partial is None:
        return [[*range(len(roots))] for _ in runtime.joint.nodes]
    masks = (sum(1 << k for k in results) for results, _ in runtime.joint.nodes)
    names = [runtime.partial.reads(mask) for mask in masks]
    return [[i for i, root in enumerate(roots) if root.name in read] for read in names]


def _write_training_call(
    out: PythonWriter,
    runtime: Runtime,
    split: Split,
    boxed_inputs: list[str],
    arguments: list[str],
    boxed_results: list[str],
    values: dict[int, str],
    in_graph: frozenset[int],
) -> None:
    """Writes ``def call``, which applies the autograd functions."""
    plan = runtime.joint.plan
    write_prologue(out, runtime, split.saved)
    if not runtime.grad_enabled:
        out.enter(f"with {out.name('enable_grad', torch.enable_grad)}():")
    if arguments[0] == "box":
        out(f"box = [{', '.join(boxed_inputs)}]")
    returned = [f"y{i}" for i in plan.differentiable]
    if runtime.joint.nodes:
        _write_node_calls(out, runtime, returned, arguments)
    else:
        out(f"{', '.join(returned)} = apply({', '.join(arguments)})")
    if len(returned) > 1:
        out(f"{out.name('watch_hooks', watch_hooks)}({tuple_text(returned)})")
    unboxed = {text: f"b{i}" for i, text in enumerate(boxed_results)}
    if boxed_results:
        out(f"{', '.join(unboxed.values())}, = box")
    texts = {i: unboxed.get(text, text) for i, text in values.items()}
    texts |= {i: f"y{i}" for i in plan.differentiable}
    _write_epilogue(out, runtime, texts, in_graph)
    if not runtime.grad_enabled:
        out.leave()


def _write_node_calls(
    out: PythonWriter, runtime: Runtime, returned: list[str], arguments: list[str]
) -> None:
    """Writes one forward pass without grad, then ``apply`` of each autograd node."""
    out(f"shared = {out.name('SharedContext', SharedContext)}()")
    out.enter(f"with {out.name('no_grad', torch.no_grad)}():")
    out(f"{', '.join(returned)} = function_forward(shared, {', '.join(arguments)})")
    out(f"shared.detach_results(({', '.join(returned)}))")
    out.leave()
    differentiated = arguments[arguments[0] == "box" :]
    for i, (results, inputs) in enumerate(runtime.joint.nodes):
        own = "".join(f"{returned[k]}, " for k in results)
        out(f"{own}= apply_{i}([shared, {own}], {', '.join(differentiated[k] for k in inputs)})")


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
        check = (
            out.name("wait_for", wait_for)
            if assertion.synchronous
            else out.name("assert_async", torch._assert_async)
        )
        message = "" if assertion.message is None else f", {assertion.message!r}"
        out(f"{check}({values[assertion.slot.index]}{message})")
    _write_size_checks(out, runtime, writer, in_graph)
    writer.mutations(in_graph)
    out(f"return {tuple_text(writer.outputs())}")
    out.leave()


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
    arguments = ", ".join(s.name for s in runtime.parameters)
    out.enter(f"if {' or '.join(resized)}:")
    out.enter(f"with {set_grad_enabled}({runtime.grad_enabled}):")
    out(f"return {out.name('resized', runtime.eager)}({arguments})")
    out.leave()
    out.leave()


def wait_for(value: torch.Tensor, message: str = GUARD_FAILED) -> None:
    """Raises RuntimeError unless the tensor is true."""
    if not value:
        raise RuntimeError(message)


def _input_names(joint: Joint) -> dict[torch.fx.Node, str]:
    placeholders = joint.gm.graph.find_nodes(op="placeholder")
    return {node: spec.name for node, spec in zip(placeholders, joint.inputs)}


def _value_texts(joint: Joint, results: Sequence[torch.fx.Node]) -> dict[int, str]:
    """The text of each forward value, once the compiled graph has run."""
    texts = _input_names(joint) | {node: f"v{i}" for i, node in enumerate(results)}
    return {i: texts.get(node) or repr(node) for i, node in enumerate(joint.values)}


def _boxed_results(
    joint: Joint, split: Split, values: dict[int, str], in_graph: frozenset[int]
) -> list[str]:
    """Results that bypass autograd: the function returns them in the box."""
    pairs = [pair for pair in write_backs(joint, split.results) if pair[0] in in_graph]
    unread = {f"v{i}" for i in only_written(joint, pairs, split.results)} if in_graph else set()
    boxed = (
        values[i]
        for i, node in enumerate(joint.values)
        if i not in joint.plan.differentiable and node in split.results
    )
    return [text for text in dict.fromkeys(boxed) if text not in unread]


def _sentinels(
    joint: Joint, split: Split, values: dict[int, str], saved: list[str]
) -> dict[str, torch.fx.Node]:
    """Outputs that share memory with a saved value. They are saved too, so that autograd notices a
    write to them.
    """
    roots = {n for n in split.saved if n.op != "placeholder"}
    found: dict[str, torch.fx.Node] = {}
    for i, node in enumerate(joint.values):
        if isinstance(node, torch.fx.Node) and node not in roots and values[i] not in saved:
            root = view_root(node, unsafe=True)
            if root in roots:
                found[values[i]] = root
    return found


def _write_saved_versions(
    out: PythonWriter,
    joint: Joint,
    split: Split,
    saved: list[str],
    sentinels: dict[str, torch.fx.Node],
    values: dict[int, str],
) -> None:
    """Records versions if some saved tensors are needed by some of the tangents only."""
    if not (masks := reader_masks(joint, split)) or not (saved or sentinels):
        return
    roots = [*split.saved[: len(saved)], *sentinels.values()]
    results = {values[i] for i in joint.plan.differentiable}
    tensors = [f"{text}.detach()" if text in results else text for text in (*saved, *sentinels)]
    record = out.name("record_versions", record_versions)
    readers = tuple(masks[root.name] for root in roots)
    out(f"ctx.saved_versions = {record}({readers}, {tuple_text(tensors)})")


def _write_view_resets(
    out: PythonWriter, joint: Joint, results: Sequence[torch.fx.Node], values: dict[int, str]
) -> None:
    """A view made under no_grad refuses in-place ops later; its ``.data`` is an ordinary tensor."""
    for i, node in enumerate(joint.values):
        if isinstance(node, torch.fx.Node) and node in results and view_source(node) is not None:
            line = f"{values[i]} = {values[i]}.data"
            if out.lines[-1].strip() != line:
                out(line)
