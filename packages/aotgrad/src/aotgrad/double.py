"""Backward of backward: when backward itself must be differentiable, the program runs again under autograd."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch

from .emit import Source, tuple_text
from .errors import Unsupported
from .joint import Joint
from .passes import is_random
from .plan import Slot


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
        self._names = [s.name for s in joint.inputs]

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

    def keep_text(self, out: Source, joint: Joint, saved: Sequence[str]) -> str:
        """Text that keeps the inputs: parameters and numbers as they are, other tensors weakly, each with its version."""
        keep = out.name("Kept", Kept)
        texts = []
        for spec in joint.inputs:
            if not spec.is_tensor:
                texts.append(spec.name)
            elif spec.static:
                texts.append(f"{keep}({spec.name}, {spec.name}._version, True)")
            else:
                texts.append(f"{keep}({spec.name}, {spec.name}._version, False)")
        return tuple_text(texts)

    def __call__(self, ctx: Any, tangents: Sequence[torch.Tensor | None]) -> tuple[torch.Tensor | None, ...]:
        """One gradient per input that requires grad, differentiable with respect to inputs and tangents."""
        inputs = [k.read(name) if isinstance(k, Kept) else k for k, name in zip(ctx.primals, self._names)]
        outputs = self._eager(*inputs)
        wanted = [inputs[i] for i in self._joint.gradients_of]
        active = [i for i, needed in enumerate(ctx.needs_input_grad[1:]) if needed]
        pairs = [(outputs[o], t) for o, t in zip(self._outputs, tangents) if t is not None and outputs[o].requires_grad]
        outs, grads = zip(*pairs) if pairs else ((), ())
        found = torch.autograd.grad(outs, [wanted[i] for i in active], grads, create_graph=True, allow_unused=True)
        result: list[torch.Tensor | None] = [None] * len(wanted)
        for i, gradient in zip(active, found):
            result[i] = gradient
        return tuple(result)


class Kept:
    """An input remembered for double backward without keeping its memory alive (parameters excepted)."""

    __slots__ = ("_strong", "_version", "_weak")

    def __init__(self, tensor: torch.Tensor, version: int, strong: bool) -> None:
        self._version = version
        self._strong = tensor if strong else None
        self._weak = None if strong else weakref.ref(tensor)

    def read(self, name: str) -> torch.Tensor:
        """The tensor. Raises when it is gone or was written to since."""
        tensor = self._strong if self._weak is None else self._weak()
        if tensor is None:
            raise Unsupported("AG031", f"create_graph=True needs input {name}, which is no longer alive")
        if tensor._version != self._version:
            raise RuntimeError(f"input {name}, needed for gradient computation, has been modified by an inplace operation")
        return tensor
