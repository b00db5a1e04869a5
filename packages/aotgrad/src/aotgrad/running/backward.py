"""Generates the backward function of one traced program, around the compiled backward graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from symshapes import as_jagged, expr_of, inner_tensors, is_jagged, is_wrapper

from aotgrad.graphs.donation import SOLE_REFERENCE, copied, reference_counts
from aotgrad.graphs.partial_backward import readers, tangent_masks, unsafe_zero_masks
from aotgrad.graphs.tangent_views import tangent_view_gradients
from aotgrad.tracing.tangent_layout import ZerosCache, like_wrapper, restride, restride_saved
from aotgrad.tracing.view_chains import view_chain

from .batched import write_batches
from .emit import EpilogueWriter
from .python_text import PythonWriter, tuple_text
from .retain_graph import read_saved
from .text_functions import mask_absent, nested_zeros, wrapped_zeros, wrong_arity, zeros_are_unsafe
from .writeback_protocol import keeps_graph, take_private

if TYPE_CHECKING:
    from aotgrad.graphs.split import Split
    from aotgrad.tracing.joint import Joint

    from .prologue import Runtime

Compiled = Callable[..., Sequence[Any]]
aten = torch.ops.aten
_RESHAPES = {aten.view.default: aten.reshape.default}  # a tangent comes with any strides
_MIXED_CLASSES = (
    "backward through some results only, where a plain input has gradients of a wrapper subclass "
    "from others: call backward on all of them together"
)


@dataclass(slots=True)
class BackwardWriter:
    """Writes ``function_backward``.

    Attributes:
        out: receives the text.
        runtime: what the call needs.
        split: the forward and backward graphs.
        backward: the compiled backward graph.
        lead: texts of the leading gradients, which belong to no input.
        num_sentinels: how many saved tensors autograd only checks for writes; all private values
            (B7) count as one.
        joint: the traced program.
        sizes: writes the sizes that backward reads from ``ctx.sizes``.
        names: names of the tangents.
        num_private: how many saved values only backward sees.
    """

    out: PythonWriter
    runtime: Runtime
    split: Split
    backward: Compiled
    lead: list[str]
    num_sentinels: int
    joint: Joint = field(init=False)
    sizes: EpilogueWriter = field(init=False)
    names: list[str] = field(init=False)
    num_private: int = field(init=False)

    def __post_init__(self) -> None:
        self.joint = self.runtime.joint
        self.sizes = EpilogueWriter(self.out, self.joint, {})
        self.sizes.symbols = {expr_of(n.meta["val"]): n.name for n in self.split.sizes}
        self.names = [t.name for t in self.joint.tangents]
        self.num_private = self.split.num_private if self.runtime.has_private_values else 0

    def write(self) -> None:
        """Writes the whole function."""
        out, joint, partial = self.out, self.joint, self.runtime.partial
        with out.block(f"def function_backward(ctx, {', '.join(self.names)}):"):
            # autograd starts with the result that was created last
            for name, error in reversed([*zip(self.names, joint.backward_errors)]):
                if error:
                    with out.block(f"if {name} is not None:"):
                        out(f"raise {error}")
            if passes_tangents(joint):
                self.unpack_sizes()
                self.write_view_gradients()
                out(f"return {tuple_text([*self.lead, *self.gradient_texts()])}")
            else:
                write_batches(out, self.names)
                self.write_early_exits()
                self.unpack_saved()
                self.write_saved_layouts()
                self.write_tangents()
                self.write_view_gradients()
                if partial is not None:
                    self.write_partial_call()
                if partial is None or not joint.nodes:
                    self.write_whole_call()
        out()

    def write_early_exits(self) -> None:
        """Writes the returns for ``create_graph=True``, and for absent tangents only."""
        out, double = self.out, self.runtime.double
        if double is not None:
            with out.block(f"if {out.name('grad_enabled', torch.is_grad_enabled)}():"):
                call = f"{out.name('double_backward', double)}(ctx, {tuple_text(self.names)})"
                out(f"return {tuple_text([*self.lead, '*' + call])}")
        with out.block(f"if {' is '.join([*self.names, 'None'])}:"):
            out(f"return {tuple_text([*self.lead, *['None'] * len(self.joint.gradients_of)])}")

    def unpack_saved(self) -> None:
        out, double, has_private = self.out, self.runtime.double, self.num_private > 0
        unpacked = [n.name for n in self.autograd_saved]
        unpacked += ["_"] * (self.num_sentinels - has_private)
        if unpacked or has_private:
            saved = "ctx.saved_tensors"
            if reader_masks(self.joint, self.split):
                saved = f"{out.name('read_saved', read_saved)}(ctx, {tuple_text(self.names)})"
            if has_private:  # Python has at most 255 targets before a starred one
                out(f"saved = {saved}")
                out(f"hooked = saved[{len(unpacked)}:]")
                saved = f"saved[:{len(unpacked)}]"
            if unpacked:
                out(f"{', '.join(unpacked)}, = {saved}")
            if double is not None and double.saves_tensors:
                with out.block(f"if not {out.name('keeps_graph', keeps_graph)}():"):
                    out("ctx.primals = None")  # freed like the saved tensors
        if has_private:
            out(f"private = {out.name('take_private', take_private)}(ctx, hooked)")
        elif not self.joint.nodes:  # the partial graphs of several nodes overwrite nothing
            self.write_donation()
        self.unpack_sizes()

    @property
    def autograd_saved(self) -> tuple[torch.fx.Node, ...]:
        """The saved nodes that autograd saves one by one."""
        return self.split.saved[: -self.num_private or None]

    def unpack_sizes(self) -> None:
        if self.split.sizes:
            self.out(f"{', '.join(n.name for n in self.split.sizes)}, = ctx.sizes")

    def write_donation(self) -> None:
        """Frees the saved values. A donated value that something else references, such as a graph
        retained for a second backward, is copied.
        """
        out, split = self.out, self.split
        if split.donated:
            out("ctx.maybe_clear_saved_tensors()")
        if not getattr(self.backward, "overwrites_donated", True):
            return
        for name in (n.name for n in split.saved if n in split.donated):
            counts = f"{out.name('reference_counts', reference_counts)}({name})"
            with out.block(f"if {counts} != {out.name('SOLE_REFERENCE', SOLE_REFERENCE)}:"):
                out(f"{name} = {out.name('copied', copied)}({name})")

    def write_saved_layouts(self) -> None:
        """Restores the layout of saved inputs whose ``.data`` was replaced since: autograd saves
        the caller's tensor itself.

        Parameters are left out: there are many, and new data usually has the same layout.
        """
        out = self.out
        inputs = {s.name for s in self.joint.inputs if s.is_tensor and not s.static}
        for node in self.autograd_saved:
            name, value = node.name, node.meta["val"]
            if name not in inputs or node.op != "placeholder":
                continue
            numbers = (*value.shape, *value.stride())
            if is_wrapper(value) or not value.dim() or not all(map(self.is_known, numbers)):
                continue
            sizes = tuple_text(map(self.sizes.size, value.shape))
            strides = tuple_text(map(self.sizes.size, value.stride()))
            is_present = f"{name} is not None and " if self.joint.nodes else ""
            with out.block(
                f"if {is_present}({name}.stride() != {strides} or {name}.shape != {sizes}):"
            ):
                restrided = out.name("restride_saved", restride_saved)
                out(f"{name} = {restrided}({name}, {sizes}, {strides})")

    def is_known(self, size: Any) -> bool:
        return expr_of(size).free_symbols <= self.sizes.symbols.keys()

    # -- tangents ----------------------------------------------------------------------------------

    def write_tangents(self) -> None:
        """Writes zeros for absent tangents. Tangents that are lazy, or have other strides than the
        graph was compiled for, are copied.
        """
        out = self.out
        used = {n.name for n in self.split.backward.graph.find_nodes(op="placeholder") if n.users}
        used |= {g.name for g in self.joint.gradients if isinstance(g, torch.fx.Node)}
        if len(self.names) > 1:
            self.fill_absent_tangents()
        for name, value in ((t.name, t.meta["val"]) for t in self.joint.tangents if t.name in used):
            if is_wrapper(value):
                converted = out.name("like_wrapper", like_wrapper)
                out(f"{name} = {converted}({name}, {out.name('like', value)})")
                continue
            strides = tuple_text(map(self.sizes.size, value.stride()))
            tests = [f"{name}.stride() != {strides}"] if value.dim() else []
            tests += [f"type({name}) is not {out.name('Tensor', torch.Tensor)}", f"{name}.is_neg()"]
            tests += [f"{name}.is_conj()"] if value.is_complex() else []
            with out.block(f"if {' or '.join(tests)}:"):
                out(f"{name} = {out.name('restride', restride)}({name}, {strides})")

    def fill_absent_tangents(self) -> None:
        """Writes zeros for tangents that are None. ``given`` is 0 if none is; otherwise it has a
        bit for each tangent that is there, and one above them.
        """
        out, names = self.out, self.names
        out("given = 0")
        with out.block(f"if {' or '.join(f'{name} is None' for name in names)}:"):
            bits = [f"({name} is not None) << {i}" for i, name in enumerate(names)]
            out(f"given = {' | '.join([*bits, str(1 << len(names))])}")
            cache = out.name("zeros", ZerosCache())
            for i, (name, value) in enumerate(zip(names, self.tangent_values())):
                inner = inner_tensors(value) if is_wrapper(value) else (value,)
                if is_jagged(value):
                    inner = (value._values,)  # type: ignore[attr-defined]
                sizes = tuple_text(self.sizes.size(s) for t in inner for s in t.shape)
                if is_jagged(value):
                    like = out.name("like", value)
                    zeros = f"{out.name('nested_zeros', nested_zeros)}"
                    zeros += f"({like}, {sizes}, ctx.offsets[{i}])"
                elif is_wrapper(value):
                    like = out.name("like", value)
                    zeros = f"{out.name('wrapped_zeros', wrapped_zeros)}({like}, {sizes})"
                else:
                    dtype = out.name(str(value.dtype), value.dtype)
                    device = out.name(str(value.device), value.device)
                    zeros = f"{cache}({sizes}, dtype={dtype}, device={device})"
                out(f"{name} = {zeros} if {name} is None else {name}")

    def tangent_values(self) -> list[Any]:
        """The fakes of the tangents."""
        return [as_jagged(t.meta["val"]) for t in self.joint.tangents]

    # -- the calls ---------------------------------------------------------------------------------

    def write_partial_call(self) -> None:
        """Writes the path for absent tangents that zeros can't replace."""
        out, split, condition = self.out, self.split, ""
        if not self.joint.nodes:  # none of several nodes gets all tangents
            masks = unsafe_zero_masks(split.backward, len(self.names))
            unsafe = out.name("zeros_are_unsafe", zeros_are_unsafe)
            condition = f"if given and {unsafe}(given, {masks}):"
        partial = out.name("partial_backward", self.runtime.partial)
        results = "".join(f"d{i}, " for i in range(len(split.gradients)))
        with out.block(condition):
            out(f"{results}= {partial}(given, {tuple_text(self.backward_arguments())})")
            self.return_masked()

    def write_whole_call(self) -> None:
        """Writes the call of the backward graph, with zeros for absent tangents."""
        out, split = self.out, self.split
        results = [f"d{i}" for i in range(len(split.gradients))]
        call_compiled(out, "backward", self.backward_call(), results, autocast="unknown")
        if len(self.names) > 1:
            with out.block("if given:"):
                self.refuse_mixed_classes()
                self.return_masked()
        out(f"return {tuple_text([*self.lead, *self.gradient_texts()])}")

    def refuse_mixed_classes(self) -> None:
        """Refuses calls where zeros for absent tangents would decide the class of a gradient."""
        out, masks = self.out, self.gradient_masks()
        tangents = self.joint.tangents
        wrapped = sum(1 << i for i, t in enumerate(tangents) if is_wrapper(t.meta["val"]))
        gradients = zip(masks, self.joint.gradients, self.joint.gradients_of)
        for bits in sorted({m for m, g, i in gradients if m & wrapped and self.is_mixed(g, i)}):
            with out.block(f"if given & {bits} and not given & {bits & wrapped}:"):
                out(f"raise RuntimeError({_MIXED_CLASSES!r})")

    def is_mixed(self, gradient: Any, index: int) -> bool:
        """Whether the gradient of a plain input is of a wrapper subclass."""
        value = gradient.meta["val"] if isinstance(gradient, torch.fx.Node) else None
        return is_wrapper(value) and not is_wrapper(self.joint.inputs[index].value)

    def return_masked(self) -> None:
        gradients = tuple_text(self.gradient_texts())
        mask = self.out.name("mask", mask_absent)
        masked = f"{mask}({self.gradient_masks()}, given, {gradients})"
        self.out(f"return {tuple_text(self.lead)} + {masked}")

    def gradient_masks(self) -> tuple[int, ...]:
        """For each gradient, the bits of the tangents that it depends on."""
        nodes = self.joint.gm.graph.nodes
        masks = tangent_masks(nodes, self.joint.tangents, through_sizes=True)
        return tuple(masks.get(g, 0) for g in self.joint.gradients)

    def backward_arguments(self) -> list[str]:
        split = self.split
        saved = [n.name for n in split.saved if n not in split.sizes]
        if self.num_private:
            saved[-self.num_private :] = ["private"]
        return [*(n.name for n in split.sizes), *saved, *self.names]

    def backward_call(self) -> str:
        """Text of the compiled graph's call. If it takes a list, drop our references first."""
        out, arguments = self.out, self.backward_arguments()
        function = out.name("backward", self.backward)
        if not getattr(self.backward, "takes_list", False):
            return f"{function}({', '.join(arguments)})"
        returned = {g.name for g in self.joint.gradients if isinstance(g, torch.fx.Node)}
        out(f"arguments = [{', '.join(arguments)}]")
        out("".join(f"{name} = " for name in arguments if name not in returned) + "None")
        return f"{function}(arguments)"

    # -- gradients ---------------------------------------------------------------------------------

    def gradient_texts(self) -> list[str]:
        names = {g: f"d{i}" for i, g in enumerate(self.split.gradients)}
        names |= {g: f"gradient_view_{g.name}" for g in tangent_view_gradients(self.joint)}
        texts = [names.get(g, str(g)) for g in self.joint.gradients]
        for k in self.joint.shared_gradients:
            texts[k] = f"None if {texts[k]} is None else {texts[k]}[...]"
        return texts

    def write_view_gradients(self) -> None:
        """Writes the gradients that are views of tangents; None for an absent tangent."""
        writer = self.sizes
        views = tangent_view_gradients(self.joint)
        for gradient in dict.fromkeys(g for g in self.joint.gradients if g in views):
            root, steps = view_chain(gradient)
            text = root.name
            for step in steps:
                arguments = [text, *map(writer.size, step.args)]
                text = writer.call(_RESHAPES.get(step.target, step.target), arguments, step.kwargs)
                text += f"[{step.item}]" if step.item is not None else ""
            self.out(f"gradient_view_{gradient.name} = None if {root.name} is None else {text}")


def passes_tangents(joint: Joint) -> bool:
    """Whether each gradient is a tangent, a view of one, or absent: backward computes nothing."""
    passed = {None, *joint.tangents, *tangent_view_gradients(joint)}
    return all(g in passed for g in joint.gradients)


def reader_masks(joint: Joint, split: Split) -> dict[str, int]:
    """For each saved value, the bits of the tangents whose gradients need it; empty if all need all
    of them.
    """
    count = len(joint.tangents)
    if count < 2:
        return {}
    masks = readers(split.backward, count)
    return masks if any(masks[n.name] != (1 << count) - 1 for n in split.saved) else {}


def call_compiled(
    out: PythonWriter, what: str, call: str, results: list[str], *, autocast: str
) -> None:
    """Writes a call of a compiled graph, with autocast off: its casts are inside.

    ``autocast``: "on", "off", or "unknown" until the call.
    """
    if not results:
        return
    line = f"results = {call}"
    if autocast == "unknown":
        autocast_enabled = out.name("autocast_enabled", torch._C._is_any_autocast_enabled)
        with out.block(f"if {autocast_enabled}():"), out.within(torch._C._DisableAutocast):
            out(line)
        with out.block("else:"):
            out(line)
    else:
        with out.within(torch._C._DisableAutocast if autocast == "on" else None):
            out(line)
    with out.block("try:"):
        out(f"{', '.join(results)}, = results")
    with out.block("except (TypeError, ValueError):"):
        error = f"{out.name('wrong_arity', wrong_arity)}({what!r}, {len(results)}, results)"
        out(f"raise {error} from None")


def is_nested_result(value: Any) -> bool:
    """Whether a forward value is a nested tensor with jagged layout."""
    return isinstance(value, torch.fx.Node) and is_jagged(as_jagged(value.meta["val"]))
