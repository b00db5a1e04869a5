"""Operators of oneDNN over parameters: folded and packed once, and again when their contents change.

A parameter may be written to between calls in ways that leave no trace (``p.data.mul_(2)``, a NumPy view), so a packed copy is
used only while a digest of the parameters' bytes is what it was; reading a weight costs a few percent of multiplying by it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from loopir import ArtifactStore
from torch.multiprocessing.reductions import StorageWeakRef

from inductor_cpp.build import compile_unit
from inductor_cpp.toolchain import find_toolchain

library = torch.library.Library("inductor_cpp", "DEF")
library.define(
    "convolution(Tensor x, Tensor weight, Tensor? bias, Tensor?[] norm, float eps, Tensor? other, int[] geometry, str binary, "
    "str? unary, Scalar?[] scalars, str? algorithm) -> Tensor"
)
library.define("linear(Tensor x, Tensor weight, Tensor? bias, Tensor? other, str unary, Scalar?[] scalars, str? algorithm) -> Tensor")
mkldnn = torch.ops.mkldnn


@dataclass(slots=True)
class _Packed:
    """What was made of some parameters, and what they were like then."""

    pointers: ctypes.Array
    sizes: ctypes.Array
    digest: int
    result: tuple[torch.Tensor, torch.Tensor | None]
    owner: StorageWeakRef


_packed: dict[Hashable, _Packed] = {}


@cache
def _digest() -> Callable[..., int]:
    """The compiled digest function."""
    toolchain, text = find_toolchain(), (Path(__file__).parent / "runtime" / "digest.cpp").read_text()
    store = ArtifactStore()
    key = store.key("inductor_cpp", text, *toolchain.identity())
    path = store.get(key, ".so") or store.put(key, ".so", lambda target: compile_unit(text, target, toolchain))
    function = ctypes.CDLL(str(path)).strata_digest
    function.restype = ctypes.c_uint64
    return function


def packed(
    parameters: Sequence[torch.Tensor], key: tuple[Hashable, ...], pack: Callable[[], tuple[torch.Tensor, torch.Tensor | None]]
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """``pack()``, or what it returned earlier for the same ``key``, memory and contents of ``parameters`` (dense tensors)."""
    addresses = [tensor.data_ptr() for tensor in parameters]
    place = (*addresses, *key)
    entry = _packed.get(place)
    if entry is not None:
        digest = _digest()(len(addresses), entry.pointers, entry.sizes)
        if digest == entry.digest:
            return entry.result
    for old in [place for place, entry in _packed.items() if entry.owner.expired()]:
        _packed.pop(old, None)
    count = len(addresses)
    pointers = (ctypes.c_void_p * count)(*addresses)
    sizes = (ctypes.c_int64 * count)(*(tensor.nbytes for tensor in parameters))
    digest = _digest()(count, pointers, sizes)
    owner = StorageWeakRef(parameters[0].untyped_storage())
    _packed[place] = _Packed(pointers, sizes, digest, pack(), owner)
    return _packed[place].result


def folded(
    weight: torch.Tensor, bias: torch.Tensor | None, norm: Sequence[torch.Tensor | None], eps: float
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Weight and bias of one convolution that also does the batch norm after it. ``norm``: mean, variance, scale, shift."""
    if not norm:
        return weight, bias
    mean, variance, gamma, beta = (None if t is None else t.float() for t in norm)
    assert mean is not None and variance is not None
    scale = (variance + eps).rsqrt()
    scale = scale if gamma is None else scale * gamma
    shift = ((0 if bias is None else bias.float()) - mean) * scale
    shift = shift if beta is None else shift + beta
    return (weight.float() * scale.view(-1, 1, 1, 1)).to(weight.dtype), shift.to(weight.dtype)


def pack_convolution(
    weight: torch.Tensor, geometry: Sequence[int], shape: Sequence[int]
) -> torch.Tensor:
    """The weight in the layout that oneDNN wants for an input of this shape. ``geometry``: stride, padding, dilation, groups."""
    stride, padding, dilation, groups = split_geometry(geometry)
    plain = weight.detach().contiguous().to_mkldnn()
    return torch._C._nn.mkldnn_reorder_conv2d_weight(plain, padding, stride, dilation, groups, list(shape))


def split_geometry(geometry: Sequence[int]) -> tuple[list[int], list[int], list[int], int]:
    """Stride, padding, dilation and groups of a 2-d convolution."""
    numbers = list(geometry)
    return numbers[:2], numbers[2:4], numbers[4:6], numbers[6]


def convolution(x, weight, bias, norm, eps, other, geometry, binary, unary, scalars, algorithm):  # type: ignore[no-untyped-def]
    """Convolution, batch norm in evaluation, ``binary`` with ``other`` and ``unary`` in one oneDNN primitive."""
    parameters = [weight, *(t for t in (bias, *norm) if t is not None)]
    given = tuple(t is not None for t in (bias, *norm))
    key = (weight.dtype, weight.shape, weight.stride(), given, eps, tuple(geometry), x.shape, x.dtype)

    def pack() -> tuple[torch.Tensor, torch.Tensor | None]:
        with torch.no_grad():
            w, b = folded(weight.detach(), bias, norm, eps)
            return pack_convolution(w, geometry, x.shape), None if b is None else b.detach().clone()

    w, b = packed(parameters, key, pack) if x.numel() else folded(weight, bias, norm, eps)
    stride, padding, dilation, groups = split_geometry(geometry)
    if other is None:
        return mkldnn._convolution_pointwise.default(x, w, b, padding, stride, dilation, groups, unary or "none", scalars, algorithm)
    return mkldnn._convolution_pointwise.binary(
        x, other, w, b, padding, stride, dilation, groups, binary, 1, unary, scalars, algorithm
    )


def linear(x, weight, bias, other, unary, scalars, algorithm):  # type: ignore[no-untyped-def]
    """Linear layer with a packed weight, and ``other`` added or ``unary`` applied by the same primitive."""
    rows = x.numel() // max(x.shape[-1], 1)
    w = weight
    if rows:
        key = ("linear", weight.dtype, weight.shape, weight.stride(), rows)
        w, _ = packed([weight], key, lambda: (mkldnn._reorder_linear_weight(weight.detach().contiguous(), rows), None))
    if other is not None:
        return mkldnn._linear_pointwise.binary(x, other, w, bias, "add")
    return mkldnn._linear_pointwise.default(x, w, bias, unary, scalars, algorithm)


library.impl("convolution", convolution, "CPU")
library.impl("linear", linear, "CPU")
