"""Backward of backward: the gradient as a program of its own, compiled on first use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from symshapes import SymbolicError, expr_of, is_symbolic

from aotgrad.effect_plan import InputSpec
from aotgrad.errors import Unsupported
from aotgrad.graphs.dropout_masks import redraw_from
from aotgrad.graphs.passes import is_random, layout_key
from aotgrad.graphs.seeded_random import is_seeded
from aotgrad.graphs.split import Split, ancestors
from aotgrad.graphs.trace import TraceSpec, evaluate_size, unbacked_sizes
from aotgrad.tracing.joint import Joint
from aotgrad.tracing.tangent_layout import restride_like

from .python_text import tuple_text
from .writeback_protocol import saved_values

# for each tangent whether it requires grad (None if it is absent), then sizes if they are static
_Key = tuple[Any, ...]
CompileGradient = Callable[[Joint, TraceSpec], Callable[..., Any]]


@dataclass(frozen=True, slots=True)
class _Gradient:
    """A compiled gradient.

    Attributes:
        call: takes the program's inputs, the tangents, their unbacked sizes, and saved values.
        sources: where those saved values come from: ("saved" or "input", index).
        read: the program's inputs that it reads although they are not saved.
        is_static: whether it is compiled for certain sizes only.
    """

    call: Callable[..., Any]
    sources: list[tuple[str, int]]
    read: set[int]
    is_static: bool


class DoubleBackward:
    """Computes gradients that are differentiable themselves.

    The gradient (``TraceSpec.gradient``) is traced and compiled like any program. It reads what the
    first forward pass has saved instead of computing it: nothing random is drawn again.

    Args:
        joint: the traced program.
        trace_spec: traces it.
        split: what was saved.
        compile: compiles the joint graph of the gradient.
    """

    def __init__(
        self, joint: Joint, trace_spec: TraceSpec, split: Split, compile: CompileGradient
    ) -> None:
        self._joint = joint
        self._trace_spec = trace_spec
        self._compile_joint = compile
        index = {p: i for i, p in enumerate(joint.input_nodes)}
        # inputs with a position stand for values of an earlier trace
        self._num_inputs = sum("position" not in p.meta for p in index)
        # a copy can't take the place of an input: it has no history
        copies = {
            n for n, i in index.items() if n in split.copied and joint.inputs[i].requires_grad
        }
        self._saved_inputs: dict[int, int] = {}
        if not joint.nodes:  # several nodes each save what their own backward reads
            saved = ((n, i) for i, n in enumerate(split.saved) if n in index and n not in copies)
            self._saved_inputs = {index[n]: i for n, i in saved}
        sources = {n: ("input", i) for n, i in index.items()}
        sources |= {n: ("saved", i) for i, n in enumerate(split.saved)}
        self._values = {
            n.meta["position"]: (n, source) for n, source in sources.items() if "position" in n.meta
        }
        seeded = ((n, n.args[0]) for n in joint.gm.graph.nodes if is_seeded(n))
        self._seeds = {
            n.meta["position"]: (n, seed, sources[seed]) for n, seed in seeded if seed in sources
        }
        read = ancestors(split.gradients)
        self._read = {i for p, i in index.items() if p in read}
        self._tangents = [t.meta["val"] for t in joint.tangents]
        self._compiled: dict[_Key, _Gradient] = {}
        self._num_saved = len(split.saved)
        self.num_private = 0  # saved values in one object (B7)

    def saved_inputs_text(self) -> str:
        """Text of the inputs that autograd does not save: those that backward reads, with their
        versions, and those that get gradients.
        """
        texts = []
        for i, spec in enumerate(self._joint.inputs):
            if self._is_stored(i, spec):
                texts.append(spec.name)
                texts += [f"{spec.name}._version"] * self._has_version(i, spec)
        return tuple_text(texts)

    @property
    def saves_tensors(self) -> bool:
        """Whether ``saved_inputs_text`` keeps tensors alive that could be freed."""
        return any(
            spec.is_tensor and not spec.static and self._is_stored(i, spec)
            for i, spec in enumerate(self._joint.inputs)
        )

    def _is_stored(self, i: int, spec: InputSpec) -> bool:
        return i not in self._saved_inputs and (
            spec.requires_grad or i in self._read or not spec.is_tensor
        )

    def _has_version(self, i: int, spec: InputSpec) -> bool:
        return spec.is_tensor and i in self._read

    def __call__(
        self, ctx: Any, tangents: Sequence[torch.Tensor | None]
    ) -> tuple[torch.Tensor | None, ...]:
        """The gradients, differentiable with respect to inputs and tangents."""
        if any(m.differentiable or m.target.index < 0 for m in self._joint.plan.mutations):
            raise _unsupported(
                " for a program that writes to an input that requires grad; run it eagerly"
            )
        key: _Key = tuple(None if t is None else t.requires_grad for t in tangents)
        present = [(t, fake) for t, fake in zip(tangents, self._tangents) if t is not None]
        given = [restride_like(t, fake) for t, fake in present]
        saved = saved_values(ctx, self._num_saved - self.num_private, self.num_private)
        gradient = self._compiled.get(key)
        if gradient is None:
            sizes = self._sizes(self._inputs(ctx, saved, set()))
            static_key = (*key, *sizes.values())
            gradient = self._compiled.get(static_key)
            if gradient is None:
                gradient = self._compile(key, sizes)
                self._compiled[static_key if gradient.is_static else key] = gradient
        inputs = self._inputs(ctx, saved, gradient.read)
        more = [saved[i] if source == "saved" else inputs[i] for source, i in gradient.sources]
        env = self._trace_spec.fake_mode.shape_env
        unbacked = unbacked_sizes([fake for _, fake in present], env)
        sizes = [given[i].shape[dim] for _, i, dim in unbacked]
        return tuple(gradient.call(*inputs[: self._num_inputs], *given, *sizes, *more))

    def _inputs(self, ctx: Any, saved: Sequence[torch.Tensor], read: set[int]) -> list[Any]:
        """The program's inputs. Raises RuntimeError if one of ``read`` was modified since."""
        stored = iter(ctx.primals)
        inputs: list[Any] = []
        for i, spec in enumerate(self._joint.inputs):
            if i in self._saved_inputs:
                inputs.append(saved[self._saved_inputs[i]])
            elif not self._is_stored(i, spec):  # nothing reads it
                inputs.append(torch.empty((), dtype=spec.value.dtype, device=spec.value.device))
            else:
                inputs.append(next(stored))
                if self._has_version(i, spec) and inputs[i]._version != next(stored) and i in read:
                    what = f"input {spec.name}, needed for gradient computation,"
                    raise RuntimeError(f"{what} has been modified by an inplace operation")
        return inputs

    def _sizes(self, inputs: Sequence[Any]) -> dict[Any, Any]:
        """The values of the size symbols in a call."""
        return {
            expr_of(s.value): x for s, x in zip(self._joint.inputs, inputs) if is_symbolic(s.value)
        }

    def _compile(self, key: _Key, sizes: dict[Any, Any]) -> _Gradient:
        """The gradient for all sizes; if that would add guards, for these sizes only."""
        try:
            trace_spec = self._trace_spec.gradient(self._joint, key)
            with trace_spec.fake_mode.shape_env.freeze():
                joint = trace_spec.trace()
            is_static = False
        except SymbolicError:
            static = self._trace_spec.with_sizes(sizes)
            try:
                trace_spec = static.gradient(static.trace(), key)
                joint = trace_spec.trace()
            except SymbolicError as error:
                raise _unsupported(f": the gradient cannot be traced again: {error}") from error
            is_static = True
        sources = self._read_saved_values(joint, sizes if is_static else {})
        call = self._compile_joint(joint, trace_spec)
        inputs = joint.input_nodes[: self._num_inputs]
        read = {i for i, p in enumerate(inputs) if p.users and i not in self._saved_inputs}
        if read.intersection(self._joint.plan.written_inputs):
            raise _unsupported(" needs the value that the program has overwritten in an input")
        return _Gradient(call, sources, read, is_static)

    def _read_saved_values(self, joint: Joint, sizes: dict[Any, Any]) -> list[tuple[str, int]]:
        """Replaces saved values in ``joint`` by new inputs; returns the source of each."""
        first_call = list(joint.gm.graph.nodes)[len(joint.inputs)]
        sources: list[tuple[str, int]] = []

        def add_input(value: torch.fx.Node, source: tuple[str, int]) -> torch.fx.Node:
            with joint.gm.graph.inserting_before(first_call):
                node = joint.gm.graph.placeholder(f"saved_{value.name}")
            position = value.meta.get("position", value.name)
            node.meta = {"val": value.meta["val"], "position": position}
            joint.inputs = (*joint.inputs, InputSpec(node.name, node.meta["val"]))
            sources.append(source)
            return node

        for node in list(joint.gm.graph.nodes):
            position = node.meta.get("position")
            if position in self._values and node.op != "placeholder":
                value, source = self._values[position]
                if _is_same(value.meta["val"], node.meta["val"], sizes):
                    node.replace_all_uses_with(add_input(node, source))
            elif position in self._seeds and is_random(node):
                drawn, seed, source = self._seeds[position]
                redraw_from(node, drawn, add_input(seed, source))
        drawn = [n for n in ancestors([joint.gm.graph.output_node()]) if is_random(n)]
        if drawn:
            raise _unsupported(f" needs random numbers that were not kept ({drawn[0].name})")
        return sources


def _unsupported(reason: str) -> Unsupported:
    return Unsupported("AG030", f"create_graph=True{reason}")


def _is_same(a: Any, b: Any, sizes: dict[Any, Any]) -> bool:
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return False
    return tuple(evaluate_size(k, sizes) for k in layout_key(a)) == layout_key(b)
