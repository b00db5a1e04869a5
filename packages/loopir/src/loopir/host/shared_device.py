"""A device whose kernels two code generators share: one that selects, and one for the rest."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from torch._ops import OpOverload

from loopir.backend import (
    Attention,
    CodeGenerator,
    Contraction,
    KernelSource,
    Offer,
    OffersAttention,
    OffersContractions,
    OffersTemplates,
    Reproducible,
    SelectsKernels,
)
from loopir.cache.store import ArtifactStore
from loopir.errors import GeneratorWarning
from loopir.ir.evaluate import evaluate_kernel
from loopir.ir.kernel import Kernel
from loopir.ir.parse import parse_kernel
from loopir.ir.template import Template
from loopir.ir.text import format_kernel

from .generator_calls import asked, built, generated, name_of, refusal


def share_devices(
    codegens: Mapping[str, CodeGenerator], others: Mapping[str, Callable[[], CodeGenerator]]
) -> dict[str, CodeGenerator]:
    """The generators, each that selects kernels joined by another one of its device type.

    ``others`` make the generator for the rest, by device type. Where there is none, torch operators
    evaluate the kernel, with a GeneratorWarning: slow, but right.
    """
    return {
        device: SharedDevice((codegen, others.get(device, partial(KernelEvaluator, device))()))
        if isinstance(codegen, SelectsKernels) and not isinstance(codegen, SharedDevice)
        else codegen
        for device, codegen in codegens.items()
    }


@dataclass(frozen=True, slots=True)
class SharedDevice:
    """Gives each kernel to the first of two generators if it supports it, else to the second.

    Templates, contractions and attention are the first one's. Both build their kernels one launch
    at a time.
    """

    parts: tuple[CodeGenerator, CodeGenerator]

    @property
    def device(self) -> str:
        return self.parts[0].device

    @property
    def template_ops(self) -> Sequence[object]:
        first = self.parts[0]
        return tuple(first.template_ops) if isinstance(first, OffersTemplates) else ()

    def supports(self, kernel: Kernel) -> bool:
        """Whether the first one takes the kernel."""
        first = self.parts[0]
        assert isinstance(first, SelectsKernels)
        return asked(first, f"say whether it supports {kernel.name}", first.supports, kernel)

    def generate(self, kernel: Kernel) -> KernelSource:
        owner = self._owner(kernel)
        return generated(owner, f"kernel {kernel.name}", partial(owner.generate, kernel), None)

    def build(
        self, sources: Sequence[KernelSource], store: ArtifactStore
    ) -> list[Callable[..., None]]:
        launchers: dict[int, Callable[..., None]] = {}
        owners = [self._owner(source.kernel) for source in sources]
        for part in self.parts:
            numbers = [i for i, owner in enumerate(owners) if owner is part]
            if not numbers:
                continue
            own = [sources[i] for i in numbers]
            if isinstance(part, KernelEvaluator):  # here, since cached programs are only built
                kernel = own[0].kernel
                assert isinstance(kernel, Kernel)
                part.warn(f"{name_of(self.parts[0])}: {refusal(self.parts[0], kernel)}")
            what = f"{len(own)} kernels"
            made = built(part, what, partial(part.build, own, store), len(own), None)
            launchers |= dict(zip(numbers, made, strict=True))
        return [launchers[i] for i in range(len(sources))]

    def offer(self, contraction: Contraction) -> Offer | None:
        first = self.parts[0]
        return first.offer(contraction) if isinstance(first, OffersContractions) else None

    def offer_attention(self, attention: Attention) -> OpOverload | None:
        first = self.parts[0]
        return first.offer_attention(attention) if isinstance(first, OffersAttention) else None

    def refuses(self, template: Template) -> str:
        first = self.parts[0]
        assert isinstance(first, OffersTemplates)
        return first.refuses(template)

    def generate_template(self, template: Template) -> KernelSource:
        first = self.parts[0]
        assert isinstance(first, OffersTemplates)
        return first.generate_template(template)

    def identity(self) -> Sequence[str] | None:
        """That of both; None if one has none."""
        found: list[str] = []
        for part in self.parts:
            own = part.identity() if isinstance(part, Reproducible) else None
            if own is None:
                return None
            found += [f"{type(part).__module__}.{type(part).__qualname__}", *own]
        return found

    def _owner(self, kernel: Kernel | Template) -> CodeGenerator:
        return self.parts[isinstance(kernel, Kernel) and not self.supports(kernel)]


@dataclass(frozen=True, slots=True)
class KernelEvaluator:
    """Runs kernels point by point with torch operators on any device."""

    device: str

    def warn(self, reason: str) -> None:
        """Warns that kernels are evaluated, and why the first one is."""
        warnings.warn(
            f"{reason}; device {self.device!r} has no other code generator, so torch operators "
            f"evaluate such kernels, which is slow",
            GeneratorWarning,
            stacklevel=3,
        )

    def generate(self, kernel: Kernel) -> KernelSource:
        """The kernel's text form."""
        return KernelSource(kernel, format_kernel(kernel))

    def build(
        self, sources: Sequence[KernelSource], store: ArtifactStore
    ) -> list[Callable[..., None]]:
        """Callables that evaluate what the texts say."""
        return [_evaluating(parse_kernel(source.text)) for source in sources]

    def identity(self) -> Sequence[str]:
        """Nothing: texts follow from kernels."""
        return ()


def _evaluating(kernel: Kernel) -> Callable[..., None]:
    count = len(kernel.buffers)
    return lambda *args: evaluate_kernel(kernel, args[:count], args[count:])
