"""Backward of backward: when backward itself must be differentiable, the program runs again under autograd."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import torch

from .emit import Source, tuple_text
from .errors import Unsupported
from .joint import Joint
from .passes import is_random
from .plan import InputSpec, Slot


class DoubleBackward:
    """Computes a program's gradients with autograd recording, from its kept inputs.

    Args:
        joint: the traced program.
        eager: runs the captured program on all inputs and returns its flat outputs.
    """

    def __init__(self, joint: Joint, eager: Callable[..., Sequence[Any]]) -> None:
        self._eager = eager
        self._joint = joint
        outputs = {o.index: i for i, o in enumerate(joint.plan.outputs) if isinstance(o, Slot)}
        self._outputs = [outputs[slot] for slot in joint.plan.differentiable]

    @staticmethod
    def applies_to(joint: Joint) -> bool:
        """Whether running the program again gives the same values: nothing random, nothing written."""
        outputs = {o.index for o in joint.plan.outputs if isinstance(o, Slot)}
        return (
            not joint.plan.mutations
            and all(slot in outputs for slot in joint.plan.differentiable)
            and not any(is_random(n) for n in joint.gm.graph.nodes)
        )

    @staticmethod
    def refuse() -> NoReturn:
        """Raises: this graph has no differentiable backward."""
        reason = "create_graph=True needs a graph without random ops and without writes to its inputs; run this part eagerly"
        raise Unsupported("AG030", reason)

    def keep_text(self, out: Source, joint: Joint) -> str:
        """Text of what is kept: numbers and parameters as they are, other tensors weakly, tensors with their versions."""
        ref = out.name("ref", weakref.ref)
        texts = []
        for spec in joint.inputs:
            texts.append(f"{ref}({spec.name})" if spec.is_tensor and not spec.static else spec.name)
            texts += [f"{spec.name}._version"] * spec.is_tensor
        return tuple_text(texts)

    def __call__(self, ctx: Any, tangents: Sequence[torch.Tensor | None]) -> tuple[torch.Tensor | None, ...]:
        """One gradient per input that requires grad, differentiable with respect to inputs and tangents."""
        kept = iter(ctx.primals)
        inputs = [_read(spec, kept) for spec in self._joint.inputs]
        outputs = self._eager(*inputs)
        wanted = [inputs[i] for i in self._joint.gradients_of]
        active = [i for i, needed in enumerate(ctx.needs_input_grad[-len(wanted) :]) if needed]
        pairs = [(outputs[o], t) for o, t in zip(self._outputs, tangents) if t is not None and outputs[o].requires_grad]
        outs, grads = zip(*pairs) if pairs else ((), ())
        found = torch.autograd.grad(outs, [wanted[i] for i in active], grads, create_graph=True, allow_unused=True)
        result: list[torch.Tensor | None] = [None] * len(wanted)
        for i, gradient in zip(active, found):
            result[i] = gradient
        return tuple(result)


def _read(spec: InputSpec, kept: Iterator[Any]) -> Any:
    """The next kept input. Raises when it is gone or was written to since."""
    value = next(kept)
    if not spec.is_tensor:
        return value
    if not spec.static:
        value = value()
    if value is None:
        raise Unsupported("AG031", f"create_graph=True needs input {spec.name}, which is no longer alive")
    if value._version != next(kept):
        raise RuntimeError(f"input {spec.name}, needed for gradient computation, has been modified by an inplace operation")
    return value
