"""Operators of oneDNN over parameters: folded and packed once, and again when their contents
change.

A parameter may be written to between calls in ways that leave no trace (``p.data.mul_(2)``, a NumPy
view), so a packed copy is used only while a digest of the parameters' bytes is what it was; reading
a weight costs a few percent of multiplying by it.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeAlias

import torch
from loopir import ArtifactStore
from torch.multiprocessing.reductions import StorageWeakRef

from inductor_cpp.building.build import load_library
from inductor_cpp.building.toolchain import find_toolchain
from inductor_cpp.kernels.names import runtime_text

mkldnn = torch.ops.mkldnn
library = torch.library.Library("inductor_cpp", "DEF")
library.define("convolution(Tensor x, Tensor?[] parameters, Tensor? other, str plan) -> Tensor")
library.define("linear(Tensor x, Tensor?[] parameters, Tensor? other, str plan) -> Tensor")
Call: TypeAlias = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]


@dataclass(slots=True)
class _Packed:
    """What was made of some parameters, and what they were like then."""

    pointers: ctypes.Array
    sizes: ctypes.Array
    digest: int
    call: Call
    owner: StorageWeakRef


_packed: dict[Hashable, _Packed] = {}


@cache
def _digest() -> Callable[..., int]:
    """The compiled digest function."""
    text = runtime_text() + (Path(__file__).parents[1] / "runtime" / "digest.cpp").read_text()
    function = load_library(text, ArtifactStore(or_temporary=True), find_toolchain()).strata_digest
    function.restype = ctypes.c_uint64
    return function


def packed(
    x: torch.Tensor, parameters: Sequence[torch.Tensor | None], plan: str, pack: Callable[..., Call]
) -> Call:
    """``pack(x, parameters, **plan)``, or what it returned earlier for the same memory and contents
    of the (dense) parameters, the same shape of ``x`` and the same ``plan`` (JSON).
    """
    place = (plan, x.shape, *[tensor.data_ptr() for tensor in parameters if tensor is not None])
    entry = _packed.get(place)
    if (
        entry is not None
        and _digest()(len(entry.sizes), entry.pointers, entry.sizes) == entry.digest
    ):
        return entry.call
    for old in [place for place, entry in _packed.items() if entry.owner.expired()]:
        _packed.pop(old, None)
    given = [tensor for tensor in parameters if tensor is not None]
    pointers = (ctypes.c_void_p * len(given))(*(tensor.data_ptr() for tensor in given))
    sizes = (ctypes.c_int64 * len(given))(*(tensor.nbytes for tensor in given))
    digest = _digest()(len(given), pointers, sizes)
    with torch.no_grad():
        call = pack(x, [None if t is None else t.detach() for t in parameters], **json.loads(plan))
    _packed[place] = _Packed(
        pointers, sizes, digest, call, StorageWeakRef(given[0].untyped_storage())
    )
    return call


def fold(
    parameters: Sequence[torch.Tensor | None], eps: float | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Weight and bias of one convolution that also does the batch norm after it. ``parameters``:
    weight and bias, then mean, variance, scale and shift of the norm if there is one (``eps``).
    """
    weight, bias, *norm = parameters
    assert weight is not None
    if eps is None:
        return weight, bias if bias is None else bias.clone()
    mean, variance, gamma, beta = (None if t is None else t.float() for t in norm)
    assert mean is not None and variance is not None
    scale = (variance + eps).rsqrt()
    scale = scale if gamma is None else scale * gamma
    shift = (-mean if bias is None else bias.float() - mean) * scale
    shift = shift if beta is None else shift + beta
    return (weight.float() * scale.view(-1, 1, 1, 1)).to(weight.dtype), shift.to(weight.dtype)


def pack_convolution(
    x: torch.Tensor, parameters: Sequence[torch.Tensor | None], *, window: Sequence[list[int]],
    groups: int, eps: float | None,
    binary: str, unary: str, algorithm: str, weight: object,
) -> Call:  # fmt: skip
    """A convolution of images shaped like ``x``. ``window``: stride, padding, dilation; ``weight``
    is there for the key.
    """
    folded, bias = fold(parameters, eps)
    stride, padding, dilation = window
    w = folded
    if x.numel():
        plain = folded.contiguous().to_mkldnn()
        w = torch._C._nn.mkldnn_reorder_conv2d_weight(  # type: ignore[attr-defined]
            plain, padding, stride, dilation, groups, list(x.shape)
        )
    alone, joined = mkldnn._convolution_pointwise.default, mkldnn._convolution_pointwise.binary
    after = None if unary == "none" else unary

    def call(x: torch.Tensor, other: torch.Tensor | None) -> torch.Tensor:
        if other is None:
            return alone(x, w, bias, padding, stride, dilation, groups, unary, [], algorithm)
        return joined(
            x, other, w, bias, padding, stride, dilation, groups, binary, 1, after, [], algorithm
        )

    return call


def pack_linear(
    x: torch.Tensor,
    parameters: Sequence[torch.Tensor | None],
    *,
    unary: str,
    algorithm: str,
    weight: object,
) -> Call:
    """A linear layer on rows like those of ``x``."""
    given, bias = parameters
    assert given is not None
    rows = x.numel() // max(x.shape[-1], 1)
    w = mkldnn._reorder_linear_weight(given.contiguous(), rows) if rows else given
    bias = None if bias is None else bias.clone()
    alone, joined = mkldnn._linear_pointwise.default, mkldnn._linear_pointwise.binary

    def call(x: torch.Tensor, other: torch.Tensor | None) -> torch.Tensor:
        if other is None:
            return alone(x, w, bias, unary, [], algorithm)
        return joined(x, other, w, bias, "add")

    return call


def convolution(
    x: torch.Tensor,
    parameters: Sequence[torch.Tensor | None],
    other: torch.Tensor | None,
    plan: str,
) -> torch.Tensor:
    """Convolution, batch norm in evaluation, addition of ``other`` and a function as one oneDNN
    primitive.
    """
    return packed(x, parameters, plan, pack_convolution)(x, other)


def linear(
    x: torch.Tensor,
    parameters: Sequence[torch.Tensor | None],
    other: torch.Tensor | None,
    plan: str,
) -> torch.Tensor:
    """Linear layer with a packed weight, and ``other`` added or a function applied by the same
    primitive.
    """
    return packed(x, parameters, plan, pack_linear)(x, other)


library.impl("convolution", convolution, "CPU")
library.impl("linear", linear, "CPU")
CONVOLUTION, LINEAR = (
    torch.ops.inductor_cpp.convolution.default,
    torch.ops.inductor_cpp.linear.default,
)
CONVOLUTION.direct, LINEAR.direct = convolution, linear  # type: ignore[attr-defined]
