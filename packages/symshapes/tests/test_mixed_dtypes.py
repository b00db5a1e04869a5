"""Fakes of operators whose operands have several dtypes have the dtypes of eager mode's results."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from symshapes import FakeTensorMode

aten = torch.ops.aten
FLOATS = torch.float32, torch.bfloat16, torch.float64
LOSSES = (
    "mse_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss", "binary_cross_entropy", "kl_div"
)  # fmt: skip
OPS = {
    **{name: getattr(aten, name).default for name in LOSSES},
    **{
        f"{name}_backward": lambda a, b, op=f"{name}_backward": getattr(aten, op)(a.sum(), a, b, 1)
        for name in ("mse_loss", "soft_margin_loss")
    },
    "smooth_l1_loss_backward": lambda a, b: aten.smooth_l1_loss_backward(a.sum(), a, b, 1, 1.0),
    "binary_cross_entropy_with_logits": F.binary_cross_entropy_with_logits,
    "layer_norm": lambda a, b: aten.native_layer_norm(a, [8], b[0], b[0], 1e-5),
    "group_norm": lambda a, b: aten.native_group_norm(a, b[0], b[0], 4, 8, 1, 2, 1e-5),
    "rms_norm": lambda a, b: F.rms_norm(a, (8,), b[0]),
    "batch_norm": lambda a, b: F.batch_norm(a, b[0].clone(), b[0].clone(), b[0], b[0], True),
    **{
        name: getattr(torch, name)
        for name in ("atan2", "hypot", "logaddexp", "xlogy", "copysign", "maximum", "fmod", "pow")
    },
    "lerp": lambda a, b: torch.lerp(a, b, 0.3),
    "addcmul": lambda a, b: torch.addcmul(a, b, b),
    "where": lambda a, b: torch.where(a > 0.5, a, b),
    "cat": lambda a, b: torch.cat([a, b]),
    "prelu": lambda a, b: torch.prelu(a, b[0, :1]),
    "linear": F.linear,
}


def result(op, *operands):
    """What is known of the results; None for an error."""
    try:
        made = op(*operands)
    except (RuntimeError, ValueError):
        return None
    made = made if isinstance(made, (tuple, list)) else [made]
    return [(x.dtype, tuple(x.shape), x.stride()) for x in made]


@pytest.mark.filterwarnings("ignore:Mismatch dtype")
@pytest.mark.parametrize("name", OPS)
def test_two_dtypes(name):
    for first, second in itertools.product(FLOATS, repeat=2):
        a, b = torch.rand(4, 8).to(first), torch.rand(4, 8).to(second)
        expected, mode = result(OPS[name], a, b), FakeTensorMode()
        with mode:
            found = result(OPS[name], mode.from_real(a), mode.from_real(b))
        if expected is not None:
            assert found == expected, (first, second)


@pytest.mark.parametrize("parameters", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("x_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("grad_format", [torch.contiguous_format, torch.channels_last])
def test_group_norm_backward(parameters, x_format, grad_format):
    x = torch.rand(2, 8, 3, 5).bfloat16().to(memory_format=x_format)
    grad = torch.rand(2, 8, 3, 5).bfloat16().to(memory_format=grad_format)
    statistics, weight = torch.rand(2, 2).to(parameters), torch.rand(8).to(parameters)

    def backward(grad, x, mean, rstd, weight):
        return aten.native_group_norm_backward(
            grad, x, mean, rstd, weight, 2, 8, 15, 2, [True, True, True]
        )

    operands, mode = (grad, x, statistics, statistics, weight), FakeTensorMode()
    with mode:
        found = result(backward, *map(mode.from_real, operands))
    assert found == result(backward, *operands)


def test_log_sigmoid_keeps_nothing_on_other_devices():
    mode = FakeTensorMode()
    with mode:
        for device, kept in (("cpu", (3,)), ("cuda", (0,))):
            _, buffer = aten.log_sigmoid_forward(torch.empty(3, device=device))
            assert tuple(buffer.shape) == kept
