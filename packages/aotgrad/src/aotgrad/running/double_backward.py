"""Backward of backward: the gradient computation as a program of its own, compiled when it is first
asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from symshapes import SymbolicError, expr_of, is_symbolic

from aotgrad.effect_plan import InputSpec
from aotgrad.errors import Unsupported
from aotgrad.graphs.dropout_masks import draw_again
from aotgrad.graphs.passes import is_random, layout_key
from aotgrad.graphs.recipe import Recipe, sizes_in, unknown_sizes
from aotgrad.graphs.seeded_random import is_seeded
from aotgrad.graphs.split import Split, ancestors
from aotgrad.tracing.joint import Joint
from aotgrad.tracing.tangent_layout import lay_out

from .emit import tuple_text
from .writeback_protocol import saved_values

# for each tangent, whether it requires grad, and None when it is absent; then the sizes, where they
# matter
_Kind = tuple[Any, ...]
Rebuild = Callable[[Joint, Recipe], Callable[..., Any]]


@dataclass(frozen=True, slots=True)
class _Gradient:
    """A compiled gradient; where its inputs beyond the program's come from; which inputs of the
    program it reads unsaved; whether it is one of certain sizes only.
    """

    call: Callable[..., Any]
    sources: list[tuple[str, int]]
    read: set[int]
    is_static: bool


class DoubleBackward:
    """Computes a program's gradients so that they have gradients themselves.

    The program's gradient (``Recipe.gradient``) is traced and compiled like any program. Where it
    computes what the first forward pass has saved, it reads that instead: nothing random is drawn
    again.

    Args:
        joint: the traced program.
        recipe: traces it.
        split: what was saved.
        rebuild: compiles the joint graph of the gradient.
    """

    def __init__(self, joint: Joint, recipe: Recipe, split: Split, rebuild: Rebuild) -> None:
        self._joint = joint
        self._recipe = recipe
        self._rebuild = rebuild
        placeholders = joint.gm.graph.find_nodes(op="placeholder")[: len(joint.inputs)]
        # the others stand for values of the trace
        self._own_inputs = sum("position" not in p.meta for p in placeholders)
        place = {p: i for i, p in enumerate(placeholders)}
        # no history
        copies = {
            n for n, i in place.items() if n in split.copied and joint.inputs[i].requires_grad
        }
        saved = (
            {}
            if joint.nodes
            else {place[n]: i for i, n in enumerate(split.saved) if n in place and n not in copies}
        )
        # where there are several nodes, each saves what its own backward reads
        self._saved_inputs = saved
        origin = {n: ("input", i) for n, i in place.items()} | {
            n: ("saved", i) for i, n in enumerate(split.saved)
        }
        self._values = {
            n.meta["position"]: (n, where) for n, where in origin.items() if "position" in n.meta
        }
        seeded = ((n, n.args[0]) for n in joint.gm.graph.nodes if is_seeded(n))
        self._seeds = {
            n.meta["position"]: (n, seed, origin[seed]) for n, seed in seeded if seed in origin
        }
        read = ancestors(n for n in split.gradients)
        self._read = {i for p, i in place.items() if p in read}
        self._tangents = [
            t.meta["val"] for t in joint.gm.graph.find_nodes(op="placeholder")[len(joint.inputs) :]
        ]
        self._compiled: dict[_Kind, _Gradient] = {}
        self._num_saved = len(split.saved)
        self.kept = 0  # how many of them are kept as one (B7)

    def keep_text(self) -> str:
        """Text of the inputs that are not saved: those that backward reads, with their versions,
        and those it leads to.
        """
        texts = []
        for i, spec in enumerate(self._joint.inputs):
            if self._is_kept(i, spec):
                texts.append(spec.name)
                texts += [f"{spec.name}._version"] * self._has_version(i, spec)
        return tuple_text(texts)

    @property
    def keeps_tensors(self) -> bool:
        """Whether ``keep_text`` holds tensors that would be freed without it."""
        return any(
            spec.is_tensor and not spec.static and self._is_kept(i, spec)
            for i, spec in enumerate(self._joint.inputs)
        )

    def _is_kept(self, i: int, spec: InputSpec) -> bool:
        return i not in self._saved_inputs and (
            spec.requires_grad or i in self._read or not spec.is_tensor
        )

    def _has_version(self, i: int, spec: InputSpec) -> bool:
        return spec.is_tensor and i in self._read

    def __call__(
        self, ctx: Any, tangents: Sequence[torch.Tensor | None]
    ) -> tuple[torch.Tensor | None, ...]:
        """One gradient per input that requires grad, differentiable with respect to inputs and
        tangents.
        """
        if any(m.differentiable or m.target.index < 0 for m in self._joint.plan.mutations):
            raise Unsupported(
                "AG030",
                "create_graph=True for a program that writes to an input that requires grad; run "
                "it eagerly",
            )
        kind = tuple(None if t is None else t.requires_grad for t in tangents)
        given = [lay_out(t, like) for t, like in zip(tangents, self._tangents) if t is not None]
        saved = saved_values(ctx, self._num_saved - self.kept, self.kept)
        gradient = self._compiled.get(kind)
        if gradient is None:
            kind = (*kind, *self._sizes(self._inputs(ctx, saved, set())).values())
            gradient = self._compiled.get(kind)
        if gradient is None:
            gradient = self._compile(
                kind[: len(tangents)], self._sizes(self._inputs(ctx, saved, set()))
            )
            self._compiled[kind if gradient.is_static else kind[: len(tangents)]] = gradient
        inputs = self._inputs(ctx, saved, gradient.read)
        more = [saved[i] if place == "saved" else inputs[i] for place, i in gradient.sources]
        likes = [like for t, like in zip(tangents, self._tangents) if t is not None]
        sizes = [
            given[i].shape[dim]
            for _, i, dim in unknown_sizes(likes, self._recipe.fake_mode.shape_env)
        ]
        return tuple(gradient.call(*inputs[: self._own_inputs], *given, *sizes, *more))

    def _inputs(self, ctx: Any, saved: Sequence[torch.Tensor], read: set[int]) -> list[Any]:
        kept = iter(ctx.primals)
        inputs: list[Any] = []
        for i, spec in enumerate(self._joint.inputs):
            if not self._is_kept(i, spec):
                inputs.append(
                    saved[self._saved_inputs[i]]
                    if i in self._saved_inputs
                    else _placeholder_for(spec)
                )
                continue
            inputs.append(next(kept))
            if self._has_version(i, spec) and inputs[-1]._version != next(kept) and i in read:
                what = f"input {spec.name}, needed for gradient computation,"
                raise RuntimeError(f"{what} has been modified by an inplace operation")
        return inputs

    def _sizes(self, inputs: Sequence[Any]) -> dict[Any, Any]:
        """The numbers that size symbols stand for in a call."""
        return {
            expr_of(s.value): x for s, x in zip(self._joint.inputs, inputs) if is_symbolic(s.value)
        }

    def _compile(self, kind: _Kind, sizes: dict[Any, Any]) -> _Gradient:
        """The gradient; of these sizes only where one of all sizes would have to assume something
        about them.
        """
        try:
            recipe = self._recipe.gradient(self._joint, kind)
            with recipe.fake_mode.shape_env.freeze():
                joint = recipe.trace()
            is_static = False
        except SymbolicError:
            static = self._recipe.of_sizes(sizes)
            try:
                recipe = static.gradient(static.trace(), kind)
                joint = recipe.trace()
            except SymbolicError as error:
                raise Unsupported(
                    "AG030", f"create_graph=True: the gradient cannot be traced again: {error}"
                ) from error
            is_static = True
        sources = self._read_saved_values(joint, sizes if is_static else {})
        call = self._rebuild(joint, recipe)
        placeholders = joint.gm.graph.find_nodes(op="placeholder")[: self._own_inputs]
        read = {i for i, p in enumerate(placeholders) if p.users and i not in self._saved_inputs}
        if read & {m.target.index for m in self._joint.plan.mutations}:
            raise Unsupported(
                "AG030",
                "create_graph=True needs the value that the program has overwritten in an input",
            )
        return _Gradient(call, sources, read, is_static)

    def _read_saved_values(self, joint: Joint, sizes: dict[Any, Any]) -> list[tuple[str, int]]:
        """Makes what is saved an input of ``joint`` wherever it is computed there; says where each
        such input comes from.
        """
        following = list(joint.gm.graph.nodes)[len(joint.inputs)]
        sources: list[tuple[str, int]] = []

        def given(value: torch.fx.Node, where: tuple[str, int]) -> torch.fx.Node:
            with joint.gm.graph.inserting_before(following):
                node = joint.gm.graph.placeholder(f"saved_{value.name}")
            node.meta = {
                "val": value.meta["val"],
                "position": value.meta.get("position", value.name),
            }
            joint.inputs = (*joint.inputs, InputSpec(node.name, node.meta["val"]))
            sources.append(where)
            return node

        for node in list(joint.gm.graph.nodes):
            position = node.meta.get("position")
            if position in self._values and node.op != "placeholder":
                value, where = self._values[position]
                if _is_same(value.meta["val"], node.meta["val"], sizes):
                    node.replace_all_uses_with(given(node, where))
            elif position in self._seeds and is_random(node):
                drawn, seed, where = self._seeds[position]
                draw_again(node, drawn, given(seed, where))
        drawn = [n for n in ancestors([joint.gm.graph.output_node()]) if is_random(n)]
        if drawn:
            raise Unsupported(
                "AG030",
                f"create_graph=True needs random numbers that were not kept ({drawn[0].name})",
            )
        return sources


def _is_same(a: Any, b: Any, sizes: dict[Any, Any]) -> bool:
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return False
    return tuple(sizes_in(k, sizes) for k in layout_key(a)) == layout_key(b)


def _placeholder_for(spec: InputSpec) -> torch.Tensor:
    """Stands for an input that nothing reads."""
    value = spec.value
    return torch.empty((), dtype=value.dtype, device=value.device)
