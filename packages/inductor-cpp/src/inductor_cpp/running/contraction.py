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
from loopir import Contraction, Offer, PointwiseStep, TensorInput, decide

from .packing import CONVOLUTION, LINEAR

TensorMeta: TypeAlias = Any  # primops.TensorMeta, which contractions carry
mkldnn = torch.ops.mkldnn
# names of oneDNN's functions
UNARY = {name: name for name in ("relu", "sigmoid", "tanh", "hardswish", "hardsigmoid")}
UNARY["silu"] = "swish"
LEAST_PACKED = 1 << 29  # below, the digest of the weight costs more than packing saves
LEAST_SIDE = 192
BINARY = 3


@dataclass(frozen=True, slots=True)
class FusedSteps:
    """Steps that one primitive computes: an addition (if ``other``), then a function."""

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
    """Offers packed, folded, channels-last convolutions in inference, for weights that the program
    hands in: parameters, or arguments of a printed graph. ATen (with loopir's layouts) computes the
    others.
    """
    stride, padding, dilation, transposed, _, groups, *eps = contraction.parameters
    known = zip(contraction.operands, contraction.constant, contraction.given, strict=True)
    given = [tensor is None or constant or is_input for tensor, constant, is_input in known][1:]
    if not contraction.inference or transposed or len(x.shape) != 4 or not all(given):
        return None
    if not all(t is None or _is_dense(t) for t in contraction.operands[1:]):
        return None
    fused = _fusable_steps(contraction.steps)
    plan = {
        "window": [_pair(stride), _pair(padding), _pair(dilation)],
        "groups": groups,
        "eps": eps[0] if eps else None,
        "binary": "add" if fused.other else "none",
        "unary": fused.unary,
        "algorithm": "",
        "weight": _layout_text(weight),
    }
    operands = len(contraction.operands)
    other = TensorInput(operands, torch.channels_last) if fused.other else None
    parameters = [TensorInput(position) for position in range(1, operands)]
    arguments = (TensorInput(0, torch.channels_last), parameters, other, json.dumps(plan))
    return Offer(CONVOLUTION, arguments, fused.count, torch.channels_last)


def _offer_linear(contraction: Contraction, x: TensorMeta, weight: TensorMeta) -> Offer | None:
    """Packs the weights of large layers in 16 bits, in inference. In float32 MKL is at least as
    fast.
    """
    rows = math.prod(map(_hint, x.shape[:-1]))
    columns, depth = map(_hint, weight.shape)
    is_parameter = contraction.static[1] or contraction.constant[1]
    if not contraction.inference or not is_parameter or not _is_dense(weight):
        return None
    pays_off = min(rows, columns, depth) >= LEAST_SIDE and rows * columns * depth >= LEAST_PACKED
    pays_off = pays_off and x.dtype is not torch.float32
    name = f"{rows} x {depth} x {columns} {x.dtype}".replace("torch.", "")
    if not decide("packed layers", name, pays_off):
        return None
    fused = _fusable_steps(contraction.steps, additions_end=True)
    plan = json.dumps({"unary": fused.unary, "algorithm": "", "weight": _layout_text(weight)})
    parameters = [TensorInput(1), TensorInput(2)]
    other = TensorInput(BINARY) if fused.other else None
    return Offer(LINEAR, (TensorInput(0), parameters, other, plan), fused.count)


def _fusable_steps(steps: Sequence[PointwiseStep], additions_end: bool = False) -> FusedSteps:
    """The longest prefix of ``steps`` that one primitive can compute.

    ``additions_end``: no function may follow an addition, as in linear layers.
    """
    adds = any(
        step.name == "add" and step.operand is not None and step.parameters == (1,)
        for step in steps[:1]
    )
    fused = FusedSteps(1, other=True) if adds else FusedSteps()
    if fused.count == len(steps) or (adds and additions_end):
        return fused
    step, functions = steps[fused.count], ("relu",) if adds else UNARY
    if step.operand is not None or step.parameters or step.name not in functions:
        return fused
    return FusedSteps(fused.count + 1, adds, UNARY[step.name])


def _layout_text(weight: TensorMeta) -> str:
    return f"{weight.dtype} {tuple(weight.shape)} {tuple(weight.stride())}"


def _pair(value: object) -> list[int]:
    numbers = list(value)  # type: ignore[call-overload]
    return numbers * 2 if len(numbers) == 1 else numbers


def _hint(size: object) -> int:
    return size if isinstance(size, int) else size.node.hint or 0  # type: ignore[attr-defined]


def _is_dense(tensor: TensorMeta) -> bool:
    """Row-major or channels-last memory without gaps."""
    if not all(isinstance(size, int) for size in tensor.shape):
        return False
    row_major, channels_last = tuple(range(len(tensor.shape))), (0, 2, 3, 1)
    if len(tensor.shape) == 4 and _is_ordered(tensor, channels_last):
        return True
    return _is_ordered(tensor, row_major)


def _is_ordered(tensor: TensorMeta, order: Sequence[int]) -> bool:
    expected = 1
    for dim in reversed(order):
        if tensor.shape[dim] != 1 and tensor.stride()[dim] != expected:
            return False
        expected *= tensor.shape[dim]  # type: ignore[assignment]
    return True
