"""What a code generator is (contract G): ``CodeGenerator``, and optional protocols.

A generator supports more than kernels by having the methods of ``OffersContractions``,
``OffersAttention``, ``OffersTemplates``, ``LinksRuns``, ``LaunchesParts``, ``Reproducible`` or
``StoresLaunchers``, and fewer kernels than all by that of ``SelectsKernels``; loopir tests for each
with ``isinstance``.
Without them, its programs consist of kernels, extern calls and one Python call per launch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

import torch

if TYPE_CHECKING:
    import sympy
    from primops import TensorMeta
    from torch._ops import OpOverload

    from loopir.cache.store import ArtifactStore
    from loopir.ir.kernel import Kernel
    from loopir.ir.template import Template

Launcher: TypeAlias = Callable[..., None]


@dataclass(frozen=True, slots=True)
class KernelSource:
    """Source text of one kernel with what its launch needs; ``metadata`` belongs to the
    generator.
    """

    kernel: Kernel | Template
    text: str
    metadata: tuple[tuple[str, object], ...] = field(default=())


class CodeGenerator(Protocol):
    """Turns kernels into callables for one device type."""

    @property
    def device(self) -> str:
        """The device type."""
        ...

    def generate(self, kernel: Kernel) -> KernelSource:
        """Returns the source of ``kernel``; pure and deterministic."""
        ...

    def build(self, sources: Sequence[KernelSource], store: ArtifactStore) -> list[Launcher]:
        """Compiles all kernels of a program at once (one translation unit where the target has
        them); one callable per source, called with the buffers' tensors in ``kernel.buffers``
        order, then an int per ``kernel.sizes``. Raises BuildError.
        """
        ...


@runtime_checkable
class SelectsKernels(Protocol):
    """A backend that can't take every kernel. Another generator of the device gets the rest."""

    def supports(self, kernel: Kernel) -> bool:
        """Whether ``generate`` takes this kernel; pure and fast. Asked for each loop node alone and
        for each fusion before it is made. ``generate`` raises UnsupportedKernelError, with the
        reason, for the others.
        """
        ...


# Contractions of the functional graph: convolution and linear with what follows them, replaced by
# an operator of the backend.


@dataclass(frozen=True, slots=True)
class PointwiseStep:
    """One operation on a contraction's result ``x``: an ATen name without overload (``relu``,
    ``gelu``, ``silu``, ``add``...).

    ``parameters`` are the arguments after the tensors, defaults filled in: ``("none",)`` for gelu,
    ``(0.01,)`` for leaky_relu, ``(1,)`` (alpha) for add. ``operand`` is the other tensor, of the
    result's shape (any strides), or None.
    """

    name: str
    parameters: tuple[object, ...]
    operand: TensorMeta | None = None


@dataclass(frozen=True, slots=True)
class Contraction:
    """``kind`` "convolution": operands input, weight, bias and ``parameters`` stride, padding,
    dilation, transposed, output_padding, groups as of ``aten.convolution``. ``kind`` "linear":
    input ``[..., K]``, weight ``[N, K]``, bias ``[N]``, no parameters; "normed_convolution": a
    convolution and the batch norm in evaluation after it, with operands mean, variance, scale,
    shift beside the convolution's and the epsilon as last parameter. Bias, scale, shift may be
    None. ``constant`` says per operand that its value is fixed when the program is built (frozen
    parameters); ``static`` that it is a parameter or buffer, which may still be written to between
    calls; ``given`` that it is an input of the graph. ``inference``: no backward pass follows.
    ``steps`` follow, each the only user of the one before.
    """

    kind: str
    operands: tuple[TensorMeta | None, ...]
    parameters: tuple[object, ...]
    constant: tuple[bool, ...]
    static: tuple[bool, ...]
    steps: tuple[PointwiseStep, ...]
    inference: bool = False
    given: tuple[bool, ...] = ()


@dataclass(frozen=True, slots=True)
class TensorInput:
    """Position of a tensor in a contraction: 0 input, 1 weight, 2 bias, 3 and on the operands of
    the steps taken, in order.

    ``memory_format`` is what the operator wants it in (None: any dense strides).
    """

    position: int
    memory_format: torch.memory_format | None = None


@dataclass(frozen=True, slots=True)
class Packed:
    """A constant made once while compiling: ``function(*tensors)`` of constant operands, a strided
    tensor.
    """

    function: Callable[..., torch.Tensor]
    positions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Offer:
    """``op(*arguments)`` computes the contraction and its first ``taken`` steps. ``op`` is
    functional and returns one tensor with dense strides in ``memory_format``; ``arguments`` hold
    TensorInput, Packed and plain values.
    """

    op: OpOverload
    arguments: tuple[object, ...]
    taken: int = 0
    memory_format: torch.memory_format = torch.contiguous_format


@runtime_checkable
class OffersContractions(Protocol):
    """A backend with its own operators for convolution and linear."""

    def offer(self, contraction: Contraction) -> Offer | None:
        """The operator to call instead, or None to leave the graph as it is. Pure; asked once per
        contraction with the longest chain of steps that the graph has.
        """
        ...


# Attention: calls in graphs of inference.


@dataclass(frozen=True, slots=True)
class Attention:
    """``softmax(scale * query @ key.T + mask) @ value`` of tensors ``[batch, heads, length,
    size]``. Key and value have the same number of heads, each for as many heads of query that
    follow each other. ``mask``: bools, True where a key is seen, or numbers to add; it is broadcast
    to all scores. ``is_causal``: query ``q`` sees key ``k`` if ``k <= q``.
    """

    query: TensorMeta
    key: TensorMeta
    value: TensorMeta
    mask: TensorMeta | None
    is_causal: bool
    scale: float


@runtime_checkable
class OffersAttention(Protocol):
    """A backend with its own operators for attention."""

    def offer_attention(self, attention: Attention) -> OpOverload | None:
        """The operator to call instead with the fields of ``attention``, in order; None to leave
        the call as it is. It returns one tensor, laid out as ``[batch, queries, heads, width]``
        and transposed; a query that sees no key has a result of 0. Pure.
        """
        ...


# Templates: matrix products and convolutions that compute operands and results by loop bodies.


@runtime_checkable
class OffersTemplates(Protocol):
    """A backend with kernels for operators into which pointwise loops can be fused.
    ``template_ops``: which operators.
    """

    template_ops: Collection[OpOverload]

    def refuses(self, template: Template) -> str:
        """Why the operator and these loops should stay separate; empty if one launch is better.

        Asked for each valid fusion, so that the backend sees a template grow; its reason is printed
        in the schedule.
        """
        ...

    def generate_template(self, template: Template) -> KernelSource:
        """The source, built and launched like that of a kernel."""
        ...


# Runs: launches that follow each other without an extern call in between.


@dataclass(frozen=True, slots=True)
class Place:
    """The memory of a kernel's buffer: ``offset`` bytes (an expression of the run's sizes) after
    the data pointer of tensor ``parameter``.
    """

    parameter: int
    offset: sympy.Expr


@dataclass(frozen=True, slots=True)
class RunCall:
    """One launch of a run: the number of the source that ``build`` was given, a place per buffer,
    an expression per size. It may be at work at the same time as the ``beside`` calls right before
    it: neither writes what the other one touches.
    """

    source: int
    places: tuple[Place, ...]
    sizes: tuple[sympy.Expr, ...]
    beside: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """Launches in order on one device, called with ``tensors`` tensors and then an int per entry of
    ``sizes``. If ``slab`` is not 0, the last tensor is that many bytes of memory for intermediates.
    """

    tensors: int
    sizes: tuple[sympy.Symbol, ...]
    calls: tuple[RunCall, ...]
    device: torch.device
    slab: sympy.Expr


@runtime_checkable
class LinksRuns(Protocol):
    """A backend that runs a list of launches by one call. If it has ``makes_slabs = True``, it
    allocates the slab of a run itself, and is not passed that tensor.
    """

    def link(
        self, sources: Sequence[KernelSource], runs: Sequence[Run], store: ArtifactStore
    ) -> list[Launcher]:
        """Replaces ``build``: one callable per run. Raises BuildError."""
        ...


# Operators: what those of a backend's offers need at run time.


@runtime_checkable
class PreparesOperators(Protocol):
    """A backend some of whose offered operators need a library of their own."""

    def prepare(self, operators: Sequence[str], store: ArtifactStore) -> None:
        """Builds what operators of these names need, or loads it from ``store``."""
        ...


# Parts: one kernel run as several launches.


@runtime_checkable
class LaunchesParts(Protocol):
    """A backend that may run a kernel as several launches, which a checker can inspect."""

    def launched(self, source: KernelSource) -> Sequence[Kernel]:
        """The kernels that a source launches, in order, with the buffer names of the whole one."""
        ...


# The program cache: what must be equal for a program of an earlier process to be reused.


@runtime_checkable
class Reproducible(Protocol):
    """A backend whose answers (sources, offers, refusals) follow from its own files and
    ``identity()``.
    """

    def identity(self) -> Sequence[str] | None:
        """Settings, instruction set, device; None if answers depend on measurements."""
        ...


@runtime_checkable
class StoresLaunchers(Protocol):
    """A backend whose launchers can be made again without their kernels. A cached program that has
    only such launchers starts without reading its loop IR.
    """

    def describe_launchers(self, launchers: Sequence[Launcher]) -> str | None:
        """A text about launchers that ``build`` or ``link`` returned; None if some have none."""
        ...

    def load_launchers(self, text: str, store: ArtifactStore) -> list[Launcher] | None:
        """The launchers of a text. None if what they need is not in the store, or if it was built
        for another machine or by another compiler than the process would use.
        """
        ...
