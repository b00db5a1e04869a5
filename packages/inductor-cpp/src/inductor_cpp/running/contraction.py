"""Which convolutions and linear layers oneDNN computes, with which of the operations after them
(contract G, offers).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from loopir import Contraction, Offer, PointwiseStep, TensorInput

from .packing import CONVOLUTION, LINEAR

TensorMeta: TypeAlias = Any  # primops.TensorMeta, which contractions carry
mkldnn = torch.ops.mkldnn
UNARY = {
    "relu": "relu",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
    "silu": "swish",
    "hardswish": "hardswish",
    "hardsigmoid": "hardsigmoid",
}
LEAST_PACKED = 1 << 29  # below, what packing gains goes to the digest of the weight
LEAST_SIDE = 192
BINARY = 3


@dataclass(frozen=True, slots=True)
class Taken:
    """Steps that one primitive does: an addition (``other`` operand first, if any), then a
    function.
    """

    count: int = 0
    other: bool = False
    unary: str = "none"


def offer_contraction(contraction: Contraction) -> Offer | None:
    """The operator that computes ``contraction`` faster than ATen's, or None."""
    x, weight = contraction.operands[:2]
    if x is None or weight is None or not _is_supported(x.dtype) or weight.dtype != x.dtype:
        return None
    if not torch.backends.mkldnn.is_available() or not torch.backends.mkldnn.enabled:
        return None
    if contraction.kind in ("convolution", "normed_convolution"):
        return _offer_convolution(contraction, x, weight)
    return _offer_linear(contraction, x, weight) if contraction.kind == "linear" else None


def processor_identity() -> tuple[str, ...]:
    """All that offers depend on beyond the contraction and torch's settings."""
    return tuple(str(dtype) for dtype in (torch.bfloat16, torch.float16) if _is_supported(dtype))


def _is_supported(dtype: torch.dtype) -> bool:
    if dtype is torch.bfloat16:
        return bool(mkldnn._is_mkldnn_bf16_supported())
    if dtype is torch.float16:
        return bool(mkldnn._is_mkldnn_fp16_supported())
    return dtype is torch.float32


def _offer_convolution(contraction: Contraction, x: TensorMeta, weight: TensorMeta) -> Offer | None:
    """In inference, with parameters: packed, folded and channels-last. Others are left to ATen (and
    loopir's layouts).
    """
    stride, padding, dilation, transposed, _, groups, *eps = contraction.parameters
    fixed = [s or c for s, c in zip(contraction.static, contraction.constant, strict=True)]
    given = [t is None or f for t, f in zip(contraction.operands, fixed, strict=True)][1:]
    if not contraction.inference or transposed or len(x.shape) != 4 or not all(given):
        return None
    if not all(t is None or _is_dense(t) for t in contraction.operands[1:]):
        return None
    taken = _taken(contraction.steps)
    plan = {
        "window": [_pair(stride), _pair(padding), _pair(dilation)],
        "groups": groups,
        "eps": eps[0] if eps else None,
        "binary": "add" if taken.other else "none",
        "unary": taken.unary,
        "algorithm": "",
        "weight": _described(weight),
    }
    operands = len(contraction.operands)
    other = TensorInput(operands, torch.channels_last) if taken.other else None
    parameters = [TensorInput(position) for position in range(1, operands)]
    arguments = (TensorInput(0, torch.channels_last), parameters, other, json.dumps(plan))
    return Offer(CONVOLUTION, arguments, taken.count, torch.channels_last)


def _offer_linear(contraction: Contraction, x: TensorMeta, weight: TensorMeta) -> Offer | None:
    """In inference, large layers with a parameter as weight in 16 bits: packed. In float32 MKL is
    at least as fast.
    """
    rows, columns, depth = _rows(x), _hint(weight.shape[0]), _hint(weight.shape[1])
    if (
        x.dtype is torch.float32
        or min(rows, columns, depth) < LEAST_SIDE
        or rows * columns * depth < LEAST_PACKED
    ):
        return None
    if not (
        contraction.inference
        and (contraction.static[1] or contraction.constant[1])
        and _is_dense(weight)
    ):
        return None
    taken = _taken(contraction.steps, additions_end=True)
    plan = json.dumps({"unary": taken.unary, "algorithm": "", "weight": _described(weight)})
    operands = [TensorInput(1), TensorInput(2)]
    return Offer(
        LINEAR,
        (TensorInput(0), operands, TensorInput(BINARY) if taken.other else None, plan),
        taken.count,
    )


def _taken(steps: Sequence[PointwiseStep], additions_end: bool = False) -> Taken:
    """The longest beginning of ``steps`` that one primitive can do; a linear layer's addition has
    no function after it.
    """
    taken = Taken()
    if (
        steps
        and steps[0].name == "add"
        and steps[0].operand is not None
        and steps[0].parameters == (1,)
    ):
        taken = Taken(1, other=True)
        if additions_end:
            return taken
    following = steps[taken.count] if taken.count < len(steps) else None
    if (
        following is None
        or following.operand is not None
        or following.name not in UNARY
        or following.parameters
    ):
        return taken
    if taken.other and following.name != "relu":
        return taken
    return Taken(taken.count + 1, taken.other, UNARY[following.name])


def _described(weight: TensorMeta) -> str:
    return f"{weight.dtype} {tuple(weight.shape)} {tuple(weight.stride())}"


def _pair(value: object) -> list[int]:
    numbers = list(value)  # type: ignore[call-overload]
    return numbers * 2 if len(numbers) == 1 else numbers


def _hint(size: object) -> int:
    return size if isinstance(size, int) else size.node.hint or 0  # type: ignore[attr-defined]


def _rows(x: TensorMeta) -> int:
    return math.prod(_hint(size) for size in x.shape[:-1])


def _is_dense(tensor: TensorMeta) -> bool:
    """Row-major or channels-last memory without gaps."""
    if not all(isinstance(size, int) for size in tensor.shape):
        return False
    orders = (
        [tuple(range(len(tensor.shape))), (0, 2, 3, 1)]
        if len(tensor.shape) == 4
        else [tuple(range(len(tensor.shape)))]
    )
    return any(_is_ordered(tensor, order) for order in orders)


def _is_ordered(tensor: TensorMeta, order: Sequence[int]) -> bool:
    expected = 1
    for dim in reversed(order):
        if tensor.shape[dim] != 1 and tensor.stride()[dim] != expected:
            return False
        expected *= tensor.shape[dim]  # type: ignore[assignment]
    return True
