"""Assembles the callable of one traced program: compiled graphs inside a generated prologue and
epilogue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from symshapes import is_wrapper
from torch.autograd import forward_ad

from aotgrad.effect_plan import UNEXPECTED, InputSpec, Output, Target, View
from aotgrad.graphs.partial_backward import PartialBackward
from aotgrad.graphs.split import Split
from aotgrad.tracing.autograd_history import leads_to
from aotgrad.tracing.joint import Joint
from aotgrad.tracing.memory_overlap import inner_of, share_elements, share_storage
from aotgrad.tracing.view_chains import view_root, view_source

from .backward import Compiled, call_compiled, reads_apart, write_backward
from .double_backward import DoubleBackward
from .emit import EffectWriter, Source, tuple_text
from .fallback import ADDRESSED, OUTER_HISTORY, TRANSFORMED, Fallback
from .result_hooks import watch_hooks
from .retain_graph import beside, in_parts
from .separate_nodes import Shared, part_of_backward, part_of_forward
from .writeback_protocol import may_be_resized, only_written, save_kept, write_backs

FEW = 8
"""Inputs that a call names; more are handed on as a tuple where they are not used one by one, which
is faster.
"""


@dataclass(slots=True)
class Runtime:
    """What a call needs beside the compiled graphs.

    Attributes:
        joint: the traced program.
        lifted: real tensors of the leading inputs, which the caller does not pass.
        eager: runs the original program on (caller's) inputs.
        other_mode: called instead when the grad mode is not the one that was traced; None when it
            makes no difference.
        grad_enabled: the grad mode that was traced.
        in_autocast: whether the trace ran under autocast.
        double: makes backward differentiable.
        overlapping: called instead when inputs that are written share memory with others; None when
            they are known not to.
        split: of a program that has been built with a backward.
        keeps: whether its compiled graphs keep what only backward sees (B7).
    """

    joint: Joint
    lifted: tuple[torch.Tensor, ...]
    eager: Callable[..., Sequence[Any]]
    other_mode: Callable[..., Sequence[Any]] | None
    grad_enabled: bool
    in_autocast: bool
    double: DoubleBackward | None = None
    partial: PartialBackward | None = None
    overlapping: Callable[..., Any] | None = None
    split: Split | None = None
    keeps: bool = False

    @property
    def parameters(self) -> tuple[InputSpec, ...]:
        """The inputs that the caller passes."""
        return self.joint.inputs[len(self.lifted) :]


def build_inference(
    run: Runtime, results: Sequence[torch.fx.Node], forward: Compiled
) -> tuple[Callable[..., Any], str]:
    """The callable of a program without differentiable outputs, and its source."""
    out = _start(run)
    values = _value_texts(run.joint, results, {})
    _open_call(out, run)
    done = _done(run.joint, results, forward)
    needs_guard = (
        bool(results) and run.grad_enabled and any(s.requires_grad for s in run.joint.inputs)
    )
    if needs_guard:
        out.enter(f"with {out.name('no_grad', torch.no_grad)}():")
    call = f"{out.name('forward', forward)}({', '.join(s.name for s in run.joint.inputs)})"
    call_compiled(
        out,
        "forward",
        call,
        [f"v{i}" for i in range(len(results))],
        autocast="on" if run.in_autocast else "off",
    )
    if needs_guard:
        out.leave()
        _drop_view_tracking(out, run.joint, results, values)
    _finish_call(out, run, values, done)
    if len(run.parameters) > FEW:
        out.pass_together([s.name for s in run.parameters])
    return out.load("call")


def build_training(
    run: Runtime,
    split: Split,
    forward: Compiled,
    backward: Compiled,
    around_backward: Callable[..., Any] | None,
) -> tuple[Callable[..., Any], str]:
    """The callable of a program with differentiable outputs, as a torch.autograd.Function, and its
    source.
    """
    out = _start(run)
    joint, plan = run.joint, run.joint.plan
    taken = [joint.inputs[i].name for i in joint.gradients_of]
    boxed = [s.name for s in joint.inputs if s.name not in taken]
    values = _value_texts(joint, split.results, {})
    done = _done(joint, split.results, forward)
    carried = _carried(joint, split, values)
    count = len(split.results)
    if done:
        pairs = [pair for pair in write_backs(joint, split.results) if pair[0] in done]
        unread = only_written(joint, pairs, split.results)
        carried = [text for text in carried if text not in {f"v{i}" for i in unread}]
    keeps = (
        split.kept > 0
        and hasattr(forward, "keeping")
        and hasattr(backward, "taking")
        and not joint.nodes
    )
    run.split, run.keeps = split, keeps
    if keeps:
        forward, backward, count = forward.keeping(), backward.taking(), count - split.kept  # type: ignore[attr-defined]

    lead = ["box"] if boxed or carried else []  # what travels past autograd
    out.enter(f"def function_forward({', '.join(['ctx', *lead, *taken])}):")
    if boxed:
        out(f"{', '.join(boxed)}, = box")
    call = f"{out.name('forward', forward)}({', '.join(s.name for s in joint.inputs)})"
    names = [f"v{i}" for i in range(count)] + ["kept"] * keeps
    call_compiled(out, "forward", call, names, autocast="on" if run.in_autocast else "off")
    _drop_view_tracking(out, joint, split.results, values)
    texts = _node_texts(joint, split)
    saved = [texts[node] + ".data" * bool(node.meta.get("unversioned")) for node in split.saved]
    sentinels = [*(watched := _sentinels(joint, split, values, saved))]
    if keeps:
        saved[-split.kept :] = []
        sentinels.append(f"*{out.name('save_kept', save_kept)}(ctx, kept)")
    _write_beside(out, joint, split, saved, watched, values)
    if saved or sentinels:
        out(f"ctx.to_save = {tuple_text([*saved, *sentinels])}")  # what save_for_backward does
    sizes = [texts[node] for node in split.sizes]
    if sizes:
        out(f"ctx.sizes = {tuple_text(sizes)}")
    if run.double is not None:
        out(f"ctx.primals = {run.double.keep_text()}")
    if carried:
        out(f"box[:] = {tuple_text(carried)}")
    # a gradient that depends on absent ones only is absent, not zero
    out("ctx.materialize_grads = False")
    returned = [values[i] for i in plan.differentiable]
    out(f"return {returned[0] if len(returned) == 1 else tuple_text(returned)}")
    out.leave()
    out()
    write_backward(
        out,
        joint,
        split,
        backward,
        run.double,
        run.partial,
        ["None"] * len(lead),
        len(sentinels),
        keeps,
    )
    if run.double is not None:
        run.double.kept = split.kept if keeps else 0
    _write_training_call(out, run, split, boxed, taken, carried, values, done)
    call, text = out.load("call")
    if joint.nodes:
        roots = [*split.saved, *watched.values()]
        as_functions(call, joint, len(lead), _read_by_nodes(run, roots), around_backward)
    else:
        as_function(call, joint.freed_together, around_backward)
    return call, text


def as_function(
    call: Callable[..., Any],
    freed_together: Sequence[int],
    around_backward: Callable[..., Any] | None,
) -> None:
    """Makes an autograd function of those that surround ``call`` in its text."""
    functions: dict[str, Any] = call.__globals__  # type: ignore[attr-defined]
    function_backward = functions["function_backward"]
    if len(set(freed_together)) > 1:
        function_backward = in_parts(function_backward, freed_together)
    if around_backward is not None:
        function_backward = around_backward(function_backward)
    functions["apply"] = _function_apply(functions["function_forward"], function_backward)


def as_functions(
    call: Callable[..., Any], joint: Joint, lead: int, read: Sequence[Sequence[int]],
    around_backward: Callable[..., Any] | None,
) -> None:  # fmt: skip
    """Makes an autograd function for each of the nodes that a call needs; each computes its part of
    backward.

    ``read``: for each node the places of the saved tensors that its backward reads.
    """
    functions: dict[str, Any] = call.__globals__  # type: ignore[attr-defined]
    for i, (results, inputs) in enumerate(joint.nodes):
        places = [lead + k for k in inputs]
        backward = part_of_backward(
            functions["function_backward"], results, places, len(joint.plan.differentiable)
        )
        backward = around_backward(backward) if around_backward else backward
        functions[f"apply_{i}"] = _function_apply(part_of_forward(read[i]), backward)


def _read_by_nodes(run: Runtime, roots: Sequence[torch.fx.Node]) -> list[list[int]]:
    """For each autograd node the places of what it keeps; ``roots``: the saved nodes that the saved
    tensors belong to.

    A backward that is computed as a whole, with zeros for the results of other nodes, reads
    everything.
    """
    if run.partial is None:
        return [[*range(len(roots))] for _ in run.joint.nodes]
    names = [run.partial.reads(sum(1 << k for k in results)) for results, _ in run.joint.nodes]
    return [[place for place, root in enumerate(roots) if root.name in read] for read in names]


def _function_apply(
    forward: Callable[..., Any], backward: Callable[..., Any]
) -> Callable[..., Any]:
    """``apply`` of an autograd function, less what a compiled graph does not need of it."""
    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    function: Any = type("CompiledGraph", (torch.autograd.Function,), members)
    # a slot costs a third of an attribute, and the inherited ``apply`` looks the backward function
    # up on every call
    node = {"__slots__": ("beside", "primals", "sizes", "kept", "parts"), "apply": backward}
    function._backward_cls = type("CompiledGraphBackward", (function._backward_cls,), node)
    # Function.apply adds checks for functorch; the C entry point below it is all that a compiled
    # graph needs
    return super(torch.autograd.Function, function).apply  # type: ignore[misc]


def _write_training_call(
    out: Source, run: Runtime, split: Split, boxed: list[str], taken: list[str], carried: list[str],
    values: dict[int, str],
    done: frozenset[int],
) -> None:  # fmt: skip
    _open_call(out, run, split.saved)
    if not run.grad_enabled:
        out.enter(f"with {out.name('enable_grad', torch.enable_grad)}():")
    if boxed or carried:
        out(f"box = [{', '.join(boxed)}]")
        taken = ["box", *taken]
    returned = [f"y{i}" for i in run.joint.plan.differentiable]
    if run.joint.nodes:
        _write_several_nodes(out, run, returned, taken, bool(boxed or carried))
    else:
        out(f"{', '.join(returned)} = apply({', '.join(taken)})")
    if len(returned) > 1:
        out(f"{out.name('watch_hooks', watch_hooks)}({tuple_text(returned)})")
    texts = {i: f"y{i}" for i in run.joint.plan.differentiable}
    if carried:
        out(f"{', '.join(f'b{i}' for i in range(len(carried)))}, = box")
        names = {text: f"b{i}" for i, text in enumerate(carried)}
        texts |= {i: names[text] for i, text in values.items() if i not in texts and text in names}
    texts = {i: texts.get(i, text) for i, text in values.items()}
    _finish_call(out, run, texts, done)
    if not run.grad_enabled:
        out.leave()


def _write_several_nodes(
    out: Source, run: Runtime, returned: list[str], taken: list[str], has_box: bool
) -> None:
    out(f"shared = {out.name('Shared', Shared)}()")
    out.enter(f"with {out.name('no_grad', torch.no_grad)}():")
    out(f"{', '.join(returned)} = function_forward(shared, {', '.join(taken)})")
    out(f"shared.hold(({', '.join(returned)}))")
    out.leave()
    for i, (results, inputs) in enumerate(run.joint.nodes):
        mine = "".join(f"{returned[k]}, " for k in results)
        out(f"{mine}= apply_{i}([shared, {mine}], {', '.join(taken[has_box + k] for k in inputs)})")


def _start(run: Runtime) -> Source:
    out = Source()
    out.namespace["torch"] = torch
    out.taken = {s.name for s in run.joint.inputs} | {n.name for n in run.joint.gm.graph.nodes}
    for spec, real in zip(run.joint.inputs, run.lifted):
        out.namespace[spec.name] = real
    return out


def _open_call(out: Source, run: Runtime, saved: Sequence[torch.fx.Node] = ()) -> None:
    arguments = ", ".join(s.name for s in run.parameters)
    out.enter(f"def call({arguments}):")
    transforms = out.name("transforms", torch._C._are_functorch_transforms_active)  # type: ignore[attr-defined]
    out.enter(f"if {transforms}() or {out.name('forward_ad', forward_ad)}._current_level >= 0:")
    out(f"return {out.name('transformed', Fallback(run.eager, TRANSFORMED))}({arguments})")
    out.leave()
    if run.other_mode is not None:
        negate = "not " if run.grad_enabled else ""
        out.enter(f"if {negate}{out.name('grad_enabled', torch.is_grad_enabled)}():")
        out(f"return {out.name('other_mode', run.other_mode)}({arguments})")
        out.leave()
    _check_histories(out, run, arguments)
    _check_addresses(out, run, arguments)
    _check_sharing(out, run, arguments, saved)
    for spec in run.joint.inputs:
        if spec.becomes_leaf:
            out(f"{spec.name}.requires_grad_()")


def _check_histories(out: Source, run: Runtime, arguments: str) -> None:
    """Writes the test whether differentiation inside would have passed through what an input was
    computed from.
    """
    names = [s.name for s in run.joint.inputs]
    for paths in run.joint.outer_paths:
        texts = (
            tuple_text(names[i] for i in sorted(some)) for some in (paths.through, paths.targets)
        )
        out.enter(f"if {out.name('leads_to', leads_to)}({', '.join(texts)}):")
        fallback = Fallback(run.eager, OUTER_HISTORY, paths.line)
        out(f"return {out.name('outer_history', fallback)}({arguments})")
        out.leave()


def _check_addresses(out: Source, run: Runtime, arguments: str) -> None:
    """Writes the test whether memory that is written, and addressed from the storage's beginning,
    begins there: what is written to takes the place of the input, and begins where it begins
    itself.
    """
    written = {m.target.index for m in run.joint.plan.mutations}
    for i in sorted(i for i in run.joint.addressed & written if i >= 0):
        out.enter(f"if {run.joint.inputs[i].name}.storage_offset():")
        out(f"return {out.name('addressed', Fallback(run.eager, ADDRESSED))}({arguments})")
        out.leave()


def _check_sharing(
    out: Source, run: Runtime, arguments: str, saved: Sequence[torch.fx.Node]
) -> None:
    """Writes what to do when a tensor that will be written lies in one storage with another:
    nothing if they are apart.

    Tensors of one storage count versions together. What is saved must not take the write for one to
    itself.
    """
    written = [
        run.joint.inputs[m.target.index].name
        for m in run.joint.plan.mutations
        if m.target.index >= 0
    ]
    others = [
        s for s in run.joint.inputs if s.is_tensor and s.name not in written and s.place is None
    ]
    if run.overlapping is None or not written or len(written) + len(others) < 2:
        return
    returned = {
        run.joint.inputs[t.index].name for t in _targets(run.joint.plan.outputs) if t.index >= 0
    }
    names = {n.name for n in saved}
    strict = [s.name for s in others if s.name in names and (s.requires_grad or s.name in returned)]
    apart = [s.name for s in others if s.name in names and s.name not in strict]
    held = (
        out.name("inner_of", inner_of) if any(is_wrapper(s.value) for s in run.joint.inputs) else ""
    )
    texts = held + tuple_text(written), held + tuple_text(s.name for s in others)
    out.enter(f"if {out.name('share_storage', share_storage)}({', '.join(texts)}):")
    tests = [f"{out.name('share_elements', share_elements)}({', '.join(texts)})"]
    if strict:
        tests.append(f"share_storage({texts[0]}, {held + tuple_text(strict)})")
    out.enter(f"if {' or '.join(tests)}:")
    out(f"return {out.name('overlapping', run.overlapping)}({arguments})")
    out.leave()
    for name in apart:
        out(f"{name} = {name}.data")
    out.leave()


def _targets(outputs: Iterable[Output]) -> Iterator[Target]:
    for output in outputs:
        base = output.base if isinstance(output, View) else output
        if isinstance(base, Target):
            yield base


def _done(joint: Joint, results: Sequence[torch.fx.Node], forward: Compiled) -> frozenset[int]:
    """The inputs that the compiled graph writes back itself."""
    done = getattr(forward, "writes_back", False)
    offered = frozenset(i for i, _ in write_backs(joint, results))
    return offered if done is True else offered & (done or frozenset())


def _finish_call(out: Source, run: Runtime, values: dict[int, str], done: frozenset[int]) -> None:
    writer = EffectWriter(
        out, run.joint, values, grad_enabled=run.grad_enabled or run.joint.has_backward
    )
    for operator, args, kwargs in run.joint.plan.drawn:
        texts = [
            *map(writer.size, args),
            *(f"{name}={writer.size(value)}" for name, value in kwargs.items()),
        ]
        out(f"{out.name(str(operator), operator)}({', '.join(texts)})")
    for found in run.joint.plan.assertions:
        check = (
            out.name("wait_for", wait_for)
            if found.waits
            else out.name("assert_async", torch._assert_async)
        )
        message = "" if found.message is None else f", {found.message!r}"
        out(f"{check}({values[found.slot.index]}{message})")
    _check_sizes(out, run, writer, done)
    writer.mutations(done)
    out(f"return {tuple_text(writer.outputs())}")
    out.leave()


def _check_sizes(out: Source, run: Runtime, writer: EffectWriter, done: frozenset[int]) -> None:
    """Writes the test whether an operator gave what it writes another size; nothing is written back
    yet, so the program can still run anew.
    """
    resized = [
        f"{writer.values[m.slot.index]}.shape != {writer.target(m.target)}.shape"
        for m in may_be_resized(run.joint)
        if m.slot is not None and m.target.index not in done
    ]
    if not resized:
        return
    out.enter(f"if {' or '.join(resized)}:")
    out.enter(f"with {out.name('set_grad_enabled', torch.set_grad_enabled)}({run.grad_enabled}):")
    out(f"return {out.name('resized', run.eager)}({', '.join(s.name for s in run.parameters)})")
    out.leave()
    out.leave()


def wait_for(value: torch.Tensor, message: str = UNEXPECTED) -> None:
    """Raises RuntimeError unless the tensor is true."""
    if not value:
        raise RuntimeError(message)


def _value_nodes(joint: Joint) -> tuple[Any, ...]:
    return joint.gm.graph.output_node().args[0][: joint.num_values]  # type: ignore[index, return-value]


def _value_texts(
    joint: Joint, results: Sequence[torch.fx.Node], known: dict[int, str]
) -> dict[int, str]:
    position = {node: f"v{i}" for i, node in enumerate(results)}
    texts = dict(known)
    placeholders = joint.gm.graph.find_nodes(op="placeholder")
    names = {p: spec.name for p, spec in zip(placeholders, joint.inputs)}
    for i, node in enumerate(_value_nodes(joint)):
        texts[i] = position.get(node) or names.get(node) or repr(node)
    return texts


def _node_texts(joint: Joint, split: Split) -> dict[torch.fx.Node, str]:
    """How forward names its inputs and its results."""
    placeholders = joint.gm.graph.find_nodes(op="placeholder")
    names = {node: spec.name for node, spec in zip(placeholders, joint.inputs)}
    return names | {node: f"v{i}" for i, node in enumerate(split.results)}


def _carried(joint: Joint, split: Split, values: dict[int, str]) -> list[str]:
    """Values that leave the autograd function through the box: autograd need not see them."""
    nodes = _value_nodes(joint)
    carried = [
        values[i]
        for i in range(joint.num_values)
        if i not in joint.plan.differentiable
        and isinstance(nodes[i], torch.fx.Node)
        and nodes[i] in split.results
    ]
    return list(dict.fromkeys(carried))


def _sentinels(
    joint: Joint, split: Split, values: dict[int, str], saved: list[str]
) -> dict[str, torch.fx.Node]:
    """Outputs that share memory with a saved value: keeping them lets autograd notice when the
    caller writes to them.
    """
    roots = {n for n in split.saved if n.op != "placeholder"}
    found: dict[str, torch.fx.Node] = {}
    for i, node in enumerate(_value_nodes(joint)):
        if isinstance(node, torch.fx.Node) and node not in roots and values[i] not in saved:
            root = view_root(node, unsafe=True)
            if root in roots:
                found[values[i]] = root
    return found


def _write_beside(
    out: Source,
    joint: Joint,
    split: Split,
    saved: list[str],
    watched: dict[str, torch.fx.Node],
    values: dict[int, str],
) -> None:
    """Writes what is kept of saved tensors that not all of the tangents need."""
    if not (read_by := reads_apart(joint, split)) or not (saved or watched):
        return
    roots = [*split.saved[: len(saved)], *watched.values()]
    results = {values[i] for i in joint.plan.differentiable}
    held = [f"{text}.detach()" if text in results else text for text in (*saved, *watched)]
    out(
        f"ctx.beside = {out.name('beside', beside)}({tuple(read_by[root.name] for root in roots)}, "
        f"{tuple_text(held)})"
    )


def _drop_view_tracking(
    out: Source, joint: Joint, results: Sequence[torch.fx.Node], values: dict[int, str]
) -> None:
    """A view made under no_grad refuses in-place ops later on; ``.data`` of it is an ordinary
    tensor.
    """
    for i, node in enumerate(_value_nodes(joint)):
        if isinstance(node, torch.fx.Node) and node in results and view_source(node) is not None:
            line = f"{values[i]} = {values[i]}.data"
            if out.lines[-1].strip() != line:
                out(line)
