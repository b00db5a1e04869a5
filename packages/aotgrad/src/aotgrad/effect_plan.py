"""What a traced program owes its caller beyond plain values: write-backs, views, identities. Pure
data.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import torch

UNEXPECTED = "a value that the graph was made for is another one"


@dataclass(frozen=True, slots=True)
class Place:
    """Where an input lies in the memory of input ``base``, in elements. ``detached``: outside of
    that one's history.
    """

    base: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    detached: bool


@dataclass(frozen=True, slots=True)
class Lazy:
    """An input that is input ``base``, conjugated or negated when it is read."""

    base: int
    conj: bool
    neg: bool


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One input of a traced program.

    Attributes:
        name: a Python identifier.
        value: its fake tensor, SymInt, or Python number.
        static: a parameter or buffer.
        requires_grad: whether gradients with respect to it are wanted.
        is_leaf: whether it is known to be a leaf: autocast casts those once.
        becomes_leaf: the program calls its ``requires_grad_()``; ``requires_grad`` is True then.
        place: of an input that the trace takes as a view of another one; gradients are those of the
            other one.
    """

    name: str
    value: Any
    static: bool = False
    requires_grad: bool = False
    is_leaf: bool = False
    becomes_leaf: bool = False
    place: Place | Lazy | None = None

    @property
    def is_tensor(self) -> bool:
        """Whether the input is a tensor."""
        return isinstance(self.value, torch.Tensor)


@dataclass(frozen=True, slots=True)
class Target:
    """A tensor that outlives the call: input ``index``, or constant ``name`` of the traced
    module.
    """

    index: int = -1
    constant: str = ""


@dataclass(frozen=True, slots=True)
class Slot:
    """Value number ``index`` of the forward graph."""

    index: int


@dataclass(frozen=True, slots=True)
class ViewStep:
    """One view op; ``args`` follow the base. Sizes are ints or SymPy expressions. ``item`` picks
    from several results.
    """

    target: torch._ops.OpOverload
    args: tuple[Any, ...] = ()
    kwargs: tuple[tuple[str, Any], ...] = ()
    item: int | None = None


class ViewMode(Enum):
    """How autograd saw a view being made."""

    ANY = auto()  # neither the base nor the view requires grad
    RECORDED = auto()
    NO_GRAD = auto()  # under no_grad: it requires grad as its base does, but has no history
    DETACHED = auto()  # of the detached base
    SEVERED = auto()  # detached itself: for autograd it is no view
    # of a base that nobody sees, by an operator like split: autograd refuses to write to it
    ONE_OF_SEVERAL = auto()


@dataclass(frozen=True, slots=True)
class View:
    """A real view of ``base``, made anew on every call; ``apart``: of its ``.data``, which counts
    writes for itself.
    """

    base: Target | Slot
    steps: tuple[ViewStep, ...]
    mode: ViewMode = ViewMode.ANY
    apart: bool = False


@dataclass(frozen=True, slots=True)
class SameAs:
    """The same object as an earlier output."""

    output: int


@dataclass(frozen=True, slots=True)
class Constant:
    """A value known when the program was traced."""

    value: Any


Output = Target | Slot | View | SameAs | Constant


@dataclass(frozen=True, slots=True)
class Mutation:
    """What the program did to ``target`` in place.

    Attributes:
        target: the tensor.
        slot: value to copy into it, None when only its metadata changed.
        differentiable: autograd sees the write (the target gets a new history).
        bumps: by how much its version counter grew.
        layout: new (sizes, strides, change of the storage offset), None when unchanged; resized to
            contiguous ones where the strides are None.
        detached: it no longer requires grad; nothing else has changed then.
    """

    target: Target
    slot: Slot | None
    differentiable: bool
    bumps: int
    layout: tuple[tuple[Any, ...], tuple[Any, ...] | None, Any] | None = None
    detached: bool = False


@dataclass(frozen=True, slots=True)
class Assertion:
    """Value ``slot`` must be true. Where ``waits``, nothing goes on before that is known, on any
    device.
    """

    slot: Slot
    message: str | None
    waits: bool = False


@dataclass(frozen=True, slots=True)
class EffectPlan:
    """Everything the epilogue of a call does.

    Attributes:
        outputs: one per program output.
        mutations: in any order; no two have one target.
        differentiable: slots that autograd must see, in tangent order.
        retaining: the outputs that retain their gradient.
        assertions: what is looked at before anything is written.
        inference: slots of outputs that the program made under ``torch.inference_mode()``.
        drawn: random numbers that nobody reads, of a device that the graph does not use: (operator,
            args, kwargs).
    """

    outputs: tuple[Output, ...]
    mutations: tuple[Mutation, ...]
    differentiable: tuple[int, ...]
    retaining: tuple[int, ...] = ()
    assertions: tuple[Assertion, ...] = ()
    inference: tuple[int, ...] = ()
    drawn: tuple[tuple[torch._ops.OpOverload, tuple[Any, ...], dict[str, Any]], ...] = ()
