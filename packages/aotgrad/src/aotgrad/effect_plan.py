"""The effects of a traced program on its caller: write-backs, views, identities. Pure data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import torch

GUARD_FAILED = "a value that the graph was made for is another one"


@dataclass(frozen=True, slots=True)
class StridedView:
    """An input as a strided view of input ``base``, or of its ``detach()``."""

    base: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    detached: bool


@dataclass(frozen=True, slots=True)
class ConjugateView:
    """An input as the lazy conjugate or negative of input ``base``."""

    base: int
    conj: bool
    neg: bool


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One input of a traced program.

    Attributes:
        name: a Python identifier.
        value: its fake tensor, SymInt, or Python number.
        static: whether it is a parameter or buffer.
        requires_grad: whether its gradient is wanted.
        is_leaf: whether it is known to be a leaf, which autocast casts only once.
        becomes_leaf: whether the program calls its ``requires_grad_()``.
        view_of: set if the trace replays the input as a view of another one, which gets its
            gradient.
    """

    name: str
    value: Any
    static: bool = False
    requires_grad: bool = False
    is_leaf: bool = False
    becomes_leaf: bool = False
    view_of: StridedView | ConjugateView | None = None

    @property
    def is_tensor(self) -> bool:
        """Whether the input is a tensor."""
        return isinstance(self.value, torch.Tensor)


@dataclass(frozen=True, slots=True)
class ExternalTensor:
    """A tensor from before the call: input ``index``, or attribute ``constant`` of the module."""

    index: int = -1
    constant: str = ""


@dataclass(frozen=True, slots=True)
class Slot:
    """Forward value number ``index``."""

    index: int


@dataclass(frozen=True, slots=True)
class ViewStep:
    """One view op; ``args`` follow the base. Sizes are ints or SymPy expressions.

    ``item`` selects one of several results.
    """

    target: torch._ops.OpOverload
    args: tuple[Any, ...] = ()
    kwargs: tuple[tuple[str, Any], ...] = ()
    item: int | None = None


class ViewMode(Enum):
    """How autograd saw a view being created."""

    UNTRACKED = auto()  # neither the base nor the view requires grad
    RECORDED = auto()
    NO_GRAD = auto()  # created under no_grad: requires grad like its base, but has no history
    DETACHED = auto()  # a view of the detached base
    NOT_A_VIEW = auto()  # detached itself
    MULTI_OUTPUT = auto()  # by an operator like split, whose base is not returned: never written


@dataclass(frozen=True, slots=True)
class View:
    """A view of ``base``, created on every call.

    ``own_version``: a view of ``base.data``, which has its own version counter.
    """

    base: ExternalTensor | Slot
    steps: tuple[ViewStep, ...]
    mode: ViewMode = ViewMode.UNTRACKED
    own_version: bool = False


@dataclass(frozen=True, slots=True)
class SameAs:
    """The same object as an earlier output."""

    output: int


@dataclass(frozen=True, slots=True)
class Constant:
    """A value known when the program was traced."""

    value: Any


Output = ExternalTensor | Slot | View | SameAs | Constant


def output_bases(outputs: Iterable[Output]) -> Iterator[Output]:
    """The outputs, with the base in the place of each view."""
    return (output.base if isinstance(output, View) else output for output in outputs)


@dataclass(frozen=True, slots=True)
class Mutation:
    """What the program did to ``target`` in place.

    Attributes:
        target: the tensor.
        slot: the value to copy into it; None if only metadata changed.
        differentiable: whether autograd records the write.
        version_bumps: the increase of its version counter.
        layout: new (sizes, strides, change of the storage offset), or None; strides of None mean a
            contiguous ``resize_``.
        detached: whether it was detached; nothing else changed then.
    """

    target: ExternalTensor
    slot: Slot | None
    differentiable: bool
    version_bumps: int
    layout: tuple[tuple[Any, ...], tuple[Any, ...] | None, Any] | None = None
    detached: bool = False


@dataclass(frozen=True, slots=True)
class Assertion:
    """Value ``slot`` must be true. Where ``waits``, nothing goes on before that is known, on any
    device.
    """

    slot: Slot
    message: str | None
    synchronous: bool = False


@dataclass(frozen=True, slots=True)
class EffectPlan:
    """What the epilogue of a call does.

    Attributes:
        outputs: one per program output.
        mutations: in any order, at most one per target.
        differentiable: slots of the differentiable values, in tangent order.
        retains_grad_outputs: indices of the outputs that retain their gradient.
        assertions: checked before anything is written.
        inference: slots of outputs created under ``torch.inference_mode()``.
        eager_draws: unused random numbers on a device that the graph does not use, as (operator,
            args, kwargs); drawn so that eager's random sequence is kept.
    """

    outputs: tuple[Output, ...]
    mutations: tuple[Mutation, ...]
    differentiable: tuple[int, ...]
    retains_grad_outputs: tuple[int, ...] = ()
    assertions: tuple[Assertion, ...] = ()
    inference: tuple[int, ...] = ()
    eager_draws: tuple[tuple[torch._ops.OpOverload, tuple[Any, ...], dict[str, Any]], ...] = ()

    @property
    def written_inputs(self) -> list[int]:
        """Indices of the inputs that the program writes to."""
        return [m.target.index for m in self.mutations if m.target.index >= 0]

    @property
    def returned_slots(self) -> set[int]:
        """Forward values that are returned, or whose views are."""
        return {base.index for base in output_bases(self.outputs) if isinstance(base, Slot)}
