"""Operators of torch's database at zeros, infinities, NaN, denormals and the largest numbers,
compiled, against eager.

Eager's vector and scalar loops may differ at such values: a result is right when it is that of one
of them, the loop over a dense tensor or the loop over one with gaps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import loopir
import torch
from primops.testing.trace import trace

from integration_tests.operators.batch import Batch
from packages.primops.tests import opinfo

INF, NAN = float("inf"), float("nan")
MODERATE = (0.0, -0.0, 1.0, -1.0, INF, 2.0, 0.5, -2.5, -INF, 3.0, -2.0, NAN, -4.0, 4.0, 1.5)
MARGINS = (
    "multi_margin_loss",
    "multilabel_margin_loss",
    "hinge_embedding_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
)
FUNCTIONAL = (*MARGINS, "gelu", "silu", "mish", "glu", "prelu", "leaky_relu", "hardswish",
    "hardsigmoid", "logsigmoid",
              "softplus", "smooth_l1_loss", "huber_loss", "mse_loss", "l1_loss", "kl_div",
              "poisson_nll_loss", "pdist",
              "grid_sample", "max_pool2d", "adaptive_max_pool2d")  # fmt: skip
PLAIN = (
    "cdist aminmax addcmul addcdiv lerp nan_to_num clamp where sort topk cummax cumsum logsumexp"
)
# Differences that stay, and why.
KNOWN = {
    "prod": "prod_backward takes another path when traced, which multiplies zeros with NaN",
    "std_mean": "eager's mean depends on the place of an infinity",
    "var_mean": "eager's mean depends on the place of an infinity",
    "std_mean.unbiased": "eager's mean depends on the place of an infinity",
    "var_mean.unbiased": "eager's mean depends on the place of an infinity",
}


def group(name: str) -> list[Any]:
    """Entries: unary, binary, reduction, or the other ones that are compared."""
    entries = opinfo.database()  # before torch's module, which wants a stand-in
    from torch.testing._internal.opinfo import core

    kinds = {
        "unary": core.UnaryUfuncInfo,
        "binary": core.BinaryUfuncInfo,
        "reduction": core.ReductionOpInfo,
    }
    if name in kinds:
        return [
            op
            for op in entries
            if isinstance(op, kinds[name]) and opinfo.full_name(op) not in KNOWN
        ]
    names = {*PLAIN.split(), *(f"nn.functional.{short}" for short in FUNCTIONAL)}
    return [op for op in entries if opinfo.full_name(op) in names]


def values(dtype: torch.dtype, extreme: bool) -> torch.Tensor:
    """What inputs are drawn from; without the largest numbers, whose sums depend on their order."""
    tiny, largest = torch.finfo(dtype).smallest_normal, torch.finfo(dtype).max
    numbers = (
        *MODERATE,
        tiny / 4,
        *((-tiny / 8, tiny, largest, -largest, 30.0, -30.0, 1e-3) if extreme else ()),
    )
    return torch.tensor(numbers, dtype=torch.float64).to(dtype)


def special(t: torch.Tensor, turn: int, extreme: bool) -> torch.Tensor:
    """A tensor of the same layout, filled with the values in an order of its own."""
    if not t.dtype.is_floating_point:
        return t
    known, places = values(t.dtype, extreme), torch.arange(t.numel())
    places = places * (1, 5, 7)[turn % 3] + places // len(known) * turn + turn * 3
    filled = opinfo.replica(t)
    return filled.copy_(known[places % len(known)].reshape(t.shape))


def samples(
    op: Any, dtype: torch.dtype, count: int, extreme: bool
) -> Iterator[tuple[opinfo.Sample, Sequence[torch.Tensor]]]:
    """Calls of an operator on such values, with eager's results and gradients."""
    for sample, _ in opinfo.samples_of(op, dtype, count):
        sample.tensors = [special(t, turn, extreme) for turn, t in enumerate(sample.tensors)]
        if wanted := opinfo.expected(sample):
            yield sample, wanted


def with_gaps(t: torch.Tensor) -> torch.Tensor:
    """The tensor with a gap after each element, which keeps eager from its vector loops."""
    return torch.stack((t, t), -1)[..., 0] if t.ndim and t.dtype.is_floating_point else t


def difference(got: torch.Tensor, wanted: torch.Tensor, other: torch.Tensor) -> str | None:
    """Where a result is neither of eager's, as text."""
    if (got.dtype, got.shape) != (wanted.dtype, wanted.shape):
        return f"{got.dtype}{list(got.shape)} for {wanted.dtype}{list(wanted.shape)}"
    if wanted.dtype.is_complex:
        got, wanted, other = (torch.view_as_real(x.resolve_conj()) for x in (got, wanted, other))
    wrong = differs(got, wanted) & differs(got, other)
    if not wrong.any():
        return None
    at = wrong.flatten().nonzero().flatten()[:8].tolist()
    return f"at {at}: {got[wrong][:8].tolist()}, eager {wanted[wrong][:8].tolist()}"


def differs(got: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Where values differ by more than rounding."""
    if not wanted.dtype.is_floating_point:
        return got != wanted
    info, finite = torch.finfo(wanted.dtype), wanted[wanted.isfinite()]
    scale = min(finite.abs().max().item(), 1e3) if finite.numel() else 0.0
    near = 100 * info.eps * scale + info.smallest_normal * info.eps * 4
    return ~torch.isclose(
        got.double(), wanted.double(), rtol=100 * info.eps, atol=near, equal_nan=True
    )


def differences(
    ops: Sequence[Any], dtype: torch.dtype, extreme: bool, store: loopir.ArtifactStore
) -> list[str]:
    """A line for each result that is not eager's; all kernels are built at once."""
    codegen, programs, found = Batch(), [], []
    for op in ops:
        for sample, wanted in (
            samples(op, dtype, 2, extreme) if op.supports_dtype(dtype, "cpu") else ()
        ):
            graph = trace(sample, *sample.tensors)
            targets = [
                node.target
                for node in graph.graph.nodes
                if isinstance(node.target, torch._ops.OpOverload)
            ]
            if any(torch.Tag.nondeterministic_seeded in target.tags for target in targets):
                continue
            program = loopir.compile_graph(
                graph, sample.tensors, codegens={"cpu": codegen}, store=store
            )
            programs.append((sample, wanted, program))
    codegen.flush(store)
    for sample, wanted, program in programs:
        got = program(*map(opinfo.replica, sample.tensors))
        others = sample(*map(with_gaps, sample.tensors))
        for place, results in enumerate(zip(got, wanted, others, strict=True)):
            if text := difference(*results):
                found.append(
                    f"{opinfo.full_name(sample.op)}, result {place} of {len(wanted)}: {text}"
                )
    return found
