"""Operators of oneDNN that fold and pack their parameters once, and again when contents change.

Writes to a parameter may leave no trace (``p.data.mul_(2)``, a NumPy view), so a packed copy is
used only while the digest of the parameters' bytes is the same. Reading a weight costs a few
percent of multiplying by it. Where the program hands in new weights with every call, none is kept.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch
from loopir import ArtifactStore, ToolError
from torch.multiprocessing.reductions import StorageWeakRef

from inductor_cpp.building.build import Entry, load_unit
from inductor_cpp.building.toolchain import find_toolchain, target
from inductor_cpp.kernels.names import runtime_text

mkldnn = torch.ops.mkldnn
library = torch.library.Library("inductor_cpp", "DEF")
Call: TypeAlias = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]


@dataclass(slots=True)
class _Packed:
    """The call with packed parameters, and what identifies the parameters' memory and contents."""

    pointers: ctypes.Array
    sizes: ctypes.Array
    digest: int
    call: Call
    owner: StorageWeakRef
    is_used: bool = False


_packed: dict[tuple[Hashable, ...], _Packed] = {}
_digests: dict[str, Callable[..., int]] = {}
"""Digest functions by the keys of their libraries; the slow one's key is empty."""
_unused: Counter[str] = Counter()
"""How many packed parameters were used for one call only, by plan."""
MOST_UNUSED = 16
"""After so many, parameters of a plan are no longer packed."""


def load_digest(store: ArtifactStore) -> None:
    """Loads the digest's function, from the store or compiled; a slow one without a compiler."""
    text = runtime_text() + (Path(__file__).parents[1] / "runtime" / "digest.cpp").read_text()
    key = store.key("inductor_cpp.digest", text, *target())
    try:
        load_unit(key, lambda: (text, find_toolchain()), store)
    except ToolError:
        _digests.setdefault("", _slow_digest)
        return
    function = _digests[key] = Entry(key, "strata_digest").function
    function.restype = ctypes.c_uint64


def _digest() -> Callable[..., int]:
    """The best function; hosts of other backends than this one have loaded none."""
    if not _digests:
        load_digest(ArtifactStore(or_temporary=True))
    return _digests[max(_digests)]


def _slow_digest(count: int, pointers: ctypes.Array, sizes: ctypes.Array) -> int:
    digest = hashlib.blake2b(digest_size=8)
    for pointer, size in zip(pointers, sizes, strict=True):
        digest.update((ctypes.c_char * size).from_address(pointer) if size else b"")
    return int.from_bytes(digest.digest())


def packed(
    x: torch.Tensor, parameters: Sequence[torch.Tensor | None], plan: str, pack: Callable[..., Call]
) -> Call:
    """``pack(x, parameters, **plan)``, cached by memory and contents of the (dense) parameters, the
    shape of ``x``, and ``plan`` (JSON).
    """
    if _unused[plan] >= MOST_UNUSED:
        return _pack(x, parameters, plan, pack, is_kept=False)
    key = (plan, x.shape, *[tensor.data_ptr() for tensor in parameters if tensor is not None])
    entry = _packed.get(key)
    if (
        entry is not None
        and _digest()(len(entry.sizes), entry.pointers, entry.sizes) == entry.digest
    ):
        entry.is_used = True
        return entry.call
    # other threads may pack, too
    for expired in [k for k, old in [*_packed.items()] if k == key or old.owner.expired()]:
        gone = _packed.pop(expired, None)
        _unused[str(expired[0])] += gone is not None and not gone.is_used
    given = [tensor for tensor in parameters if tensor is not None]
    pointers = (ctypes.c_void_p * len(given))(*(tensor.data_ptr() for tensor in given))
    sizes = (ctypes.c_int64 * len(given))(*(tensor.nbytes for tensor in given))
    digest = _digest()(len(given), pointers, sizes)
    call = _pack(x, parameters, plan, pack, is_kept=True)
    owner = StorageWeakRef(given[0].untyped_storage())
    _packed[key] = _Packed(pointers, sizes, digest, call, owner)
    return call


def _pack(
    x: torch.Tensor,
    parameters: Sequence[torch.Tensor | None],
    plan: str,
    pack: Callable[..., Call],
    is_kept: bool,
) -> Call:
    with torch.no_grad():
        detached = [None if t is None else t.detach() for t in parameters]
        return pack(x, detached, is_kept=is_kept, **json.loads(plan))


def fold(
    parameters: Sequence[torch.Tensor | None], eps: float | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Folds the batch norm after a convolution into its weight and bias.

    ``parameters`` are weight and bias, then mean, variance, scale and shift of the norm; without
    ``eps`` there is no norm.
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
    binary: str, unary: str, algorithm: str, weight: object, is_kept: bool,
) -> Call:  # fmt: skip
    """A convolution of images shaped like ``x``. ``window`` is stride, padding and dilation;
    ``weight`` is only part of the cache key. A call that is not kept packs nothing.
    """
    folded, bias = fold(parameters, eps)
    stride, padding, dilation = window
    w = folded
    if x.numel() and is_kept:
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
    is_kept: bool,
) -> Call:
    """A linear layer on rows like those of ``x``."""
    given, bias = parameters
    assert given is not None
    rows = x.numel() // max(x.shape[-1], 1)
    w = mkldnn._reorder_linear_weight(given.contiguous(), rows) if rows and is_kept else given
    bias = None if bias is None else bias.clone()
    alone, joined = mkldnn._linear_pointwise.default, mkldnn._linear_pointwise.binary

    def call(x: torch.Tensor, other: torch.Tensor | None) -> torch.Tensor:
        if other is None:
            return alone(x, w, bias, unary, [], algorithm)
        return joined(x, other, w, bias, "add")

    return call


def _register(name: str, pack: Callable[..., Call]) -> torch._ops.OpOverload:
    """Defines the operator ``inductor_cpp::<name>``, which calls what ``pack`` returns.

    Its ``direct`` is the Python function, for hosts that need no dispatcher.
    """

    def run(
        x: torch.Tensor,
        parameters: Sequence[torch.Tensor | None],
        other: torch.Tensor | None,
        plan: str,
    ) -> torch.Tensor:
        return packed(x, parameters, plan, pack)(x, other)

    library.define(f"{name}(Tensor x, Tensor?[] parameters, Tensor? other, str plan) -> Tensor")
    library.impl(name, run, "CPU")
    overload = getattr(torch.ops.inductor_cpp, name).default
    overload.direct = run
    return overload


CONVOLUTION = _register("convolution", pack_convolution)
"""Convolution, batch norm in evaluation, addition of ``other`` and a function as one primitive of
oneDNN.
"""
LINEAR = _register("linear", pack_linear)
"""A linear layer with a packed weight; the same primitive adds ``other`` or applies a function."""
