"""Cases of reductions, normalisations, losses, pooling."""

from __future__ import annotations

from typing import Any

import torch

from packages.primops.tests.cases.make import INF, NAN, Make, case, with_options

# Reductions and scans
# --------------------------------------------------------------------------------------------------

case(
    "sum prod mean any all count_nonzero max min argmax argmin nansum amax amin",
    lambda m: (m.f(3, 4),),
)
case("sum prod any all count_nonzero max min argmax argmin", lambda m: (m.i(9, 3, 4, low=-3),))
case("sum any all count_nonzero", lambda m: (m.b(7),))
case("any all", lambda m: (m.i(2, 4).to(torch.uint8),))
case(
    "sum.dim_IntList mean.dim amax amin nansum",
    lambda m: (m.f(2, 3, 4), [0, -1], True),
    lambda m: (m.f(2, 3, 4), [1], False),
)
case("sum.dim_IntList", lambda m: (m.f(2, 0), [1], False), lambda m: with_options(m.f(3), [0],
    dtype=torch.float64),
     lambda m: (m.f(2, 3), None, True))  # fmt: skip
case(
    "prod.dim_int any.dim all.dim argmax argmin max.dim min.dim",
    lambda m: (m.f(2, 3), -1, True),
    lambda m: (m.f(2, 3), 0, False),
)
case("any.dims all.dims", lambda m: (m.f(2, 3), [0, 1], False))
case(
    "max.dim min.dim argmax argmin",
    lambda m: (torch.tensor([[1.0, 3.0, 3.0], [NAN, 1.0, NAN]]).to(m.dtype), 1),
)
case("count_nonzero.dim_IntList", lambda m: (m.i(2, 3, 4), [0]))
case("aminmax", lambda m: with_options(m.f(3, 4), dim=1, keepdim=True), lambda m: (m.f(3),))
for _name in ("var.correction", "std.correction", "var_mean.correction", "std_mean.correction"):
    case(_name, lambda m: (m.f(3, 4),), lambda m: with_options(m.f(3, 4), [1], correction=0,
        keepdim=True),
         lambda m: with_options(m.f(3, 1) + 2, [1], correction=1))  # fmt: skip
ORDERS = [lambda m, p=p: (m.f(3, 4), p, [1], False) for p in (0, 1, 2, 3, 0.5, INF, -INF)]
case(
    "linalg_vector_norm",
    *ORDERS,
    lambda m: with_options(m.f(3), 2, None, False, dtype=torch.float64),
)
case("norm.ScalarOpt_dim", *ORDERS)
case("norm.Scalar", lambda m: (m.f(3, 4), 2))
case(
    "norm.ScalarOpt_dim_dtype", lambda m: with_options(m.f(3, 4), 2, [1], True, dtype=torch.float64)
)
case("norm.ScalarOpt_dtype", lambda m: with_options(m.f(3, 4), 2, dtype=torch.float64))
case(
    "logsumexp",
    lambda m: (m.f(3, 4), [1], True),
    lambda m: (torch.tensor([-INF, -INF]), [0]),
    lambda m: (m.i(9, 4), [0]),
)
case(
    "cumsum cumprod",
    lambda m: (m.f(3, 4), 1),
    lambda m: (m.i(9, 5), 0),
    lambda m: with_options(m.f(3), 0, dtype=torch.float64),
)
case("trace", lambda m: (m.f(3, 4),))

# Normalisation
# --------------------------------------------------------------------------------------------------

case(
    "_softmax _log_softmax", lambda m: (m.f(3, 4) * 9, 1, False), lambda m: (m.f(3, 4, 2), 0, False)
)
case(
    "softmax.int log_softmax.int",
    lambda m: (m.f(3, 4), -1),
    lambda m: (m.f(3, 4), -1, torch.float64),
)
case("_safe_softmax", lambda m: (torch.tensor([[0.5, -INF], [-INF, -INF]]).to(m.dtype), 1))
case(
    "_softmax_backward_data _log_softmax_backward_data",
    lambda m: (m.f(3, 4), m.p(3, 4), 1, m.dtype),
)
case("native_layer_norm", lambda m: (m.f(2, 3, 4), [3, 4], m.f(3, 4), m.f(3, 4), 1e-5),
     lambda m: (m.f(2, 4) + 9, [4], None, None, 1e-5), lambda m: (m.f(2, 4), [4], m.f(4), None,
     1e-5))  # fmt: skip
MASKS = ([True, True, True], [True, False, True], [False, True, False])
case("native_layer_norm_backward", *[
    lambda m, mask=mask: (m.f(2, 3, 4), m.f(2, 3, 4), [4], m.f(2, 3, 1), m.p(2, 3, 1), m.f(4),
    m.f(4), mask) for mask in MASKS
])  # fmt: skip
case(
    "rms_norm _fused_rms_norm",
    lambda m: (m.f(2, 3, 4), [4], m.f(4), 1e-5),
    lambda m: (m.f(2, 4), [4], None, None),
)
case("native_group_norm", lambda m: (m.f(2, 6, 3, 3), m.f(6), m.f(6), 2, 6, 9, 3, 1e-5),
     lambda m: (m.f(2, 6, 5), None, None, 2, 6, 5, 2, 1e-5))  # fmt: skip
case("native_group_norm_backward", *[
    lambda m, mask=mask: (m.f(2, 6, 9), m.f(2, 6, 9), m.f(2, 3), m.p(2, 3), m.f(6), 2, 6, 9, 3,
    mask) for mask in MASKS
])  # fmt: skip


def _bn(m: Make, running: bool = True) -> tuple[Any, ...]:
    statistics = (m.f(3), m.p(3)) if running else (None, None)
    return m.f(4, 3, 2, 2), m.f(3), m.f(3), *statistics


case("native_batch_norm _native_batch_norm_legit_functional", lambda m: (*_bn(m), True, 0.1, 1e-5),
     lambda m: (*_bn(m), False, 0.1, 1e-5))  # fmt: skip
case("native_batch_norm", lambda m: (*_bn(m, False), True, 0.1, 1e-5))
case("_native_batch_norm_legit.no_stats", lambda m: (*_bn(m)[:3], True, 0.1, 1e-5))
case("_native_batch_norm_legit_no_training _batch_norm_no_update", lambda m: (*_bn(m), 0.1, 1e-5))
case("_batch_norm_with_update_functional", lambda m: (*_bn(m), 0.1, 1e-5))
case("native_batch_norm_backward", *[
    lambda m, train=train, mask=mask: (
        m.f(4, 3, 2), m.f(4, 3, 2), m.f(3), m.f(3), m.p(3), m.f(3), m.p(3), train, 1e-5, mask
    ) for train in (True, False) for mask in MASKS
])  # fmt: skip
case("batch_norm_backward", lambda m: (
    m.f(4, 3, 2), m.f(4, 3, 2), m.f(3), m.f(3), m.p(3), m.f(3), m.p(3), True, 1e-5, MASKS[0],
    torch.empty(0).byte()
))  # fmt: skip

# Losses
# --------------------------------------------------------------------------------------------------

REDUCTIONS = (0, 1, 2)
case(
    "mse_loss smooth_l1_loss huber_loss soft_margin_loss kl_div l1_loss",
    *[lambda m, r=r: (m.f(3, 4), m.p(3, 4), r) for r in REDUCTIONS],
)
case("kl_div", lambda m: with_options(m.f(3), m.f(3), log_target=True))
for _r in REDUCTIONS:
    _grad = (lambda m: m.f(3, 4)) if _r == 0 else (lambda m: m.f())
    case(
        "mse_loss_backward soft_margin_loss_backward",
        lambda m, r=_r, g=_grad: (g(m), m.f(3, 4), m.f(3, 4), r),
    )
    case(
        "smooth_l1_loss_backward huber_loss_backward",
        lambda m, r=_r, g=_grad: (g(m), m.f(3, 4), m.f(3, 4), r, 0.5),
    )
    case("binary_cross_entropy", lambda m, r=_r: (m.p(3, 4), m.p(3, 4), m.p(4), r))
    case(
        "binary_cross_entropy_backward",
        lambda m, r=_r, g=_grad: (g(m), m.p(3, 4), m.p(3, 4), m.p(3, 4), r),
    )
    case(
        "binary_cross_entropy_with_logits", lambda m, r=_r: (m.f(3, 4), m.p(3, 4), None, m.p(4), r)
    )
    case("nll_loss_forward", lambda m, r=_r: (m.f(5, 4), m.i(4, 5), m.p(4), r, 2))
    case("nll_loss_backward", lambda m, r=_r: (
        m.f(5) if r == 0 else m.f(), m.f(5, 4), m.i(4, 5), m.p(4), r, -100, m.p()))  # fmt: skip
    case("nll_loss2d_forward", lambda m, r=_r: (m.f(2, 4, 3, 3), m.i(4, 2, 3, 3), None, r, 1))
    case("nll_loss2d_backward", lambda m, r=_r: (
        m.f(2, 3, 3) if r == 0 else m.f(), m.f(2, 4, 3, 3), m.i(4, 2, 3, 3), None, r, 1,
        m.p()))  # fmt: skip
case("nll_loss_forward", lambda m: (m.f(4), torch.tensor(2), None, 1, -100))

# Pooling and interpolation
# --------------------------------------------------------------------------------------------------

case(
    "avg_pool2d",
    lambda m: (m.f(2, 3, 4, 6), [2, 3]),
    lambda m: with_options(m.f(2, 4, 4), [2, 2], [2, 2], divisor_override=3),
)
case(
    "avg_pool2d_backward",
    lambda m: (m.f(2, 3, 2, 2), m.f(2, 3, 4, 6), [2, 3], [2, 3], [0, 0], False, True, None),
)
case(
    "_adaptive_avg_pool2d", lambda m: (m.f(2, 3, 4, 6), [2, 3]), lambda m: (m.f(2, 3, 4, 6), [1, 1])
)
case("_adaptive_avg_pool2d_backward", lambda m: (m.f(2, 3, 2, 3), m.f(2, 3, 4, 6)))
case(
    "upsample_nearest2d _upsample_nearest_exact2d",
    lambda m: (m.f(1, 2, 3, 4), [6, 8]),
    lambda m: (m.f(1, 2, 3, 4), [5, 7], None, None),
)
case(
    "upsample_nearest2d.vec",
    lambda m: (m.f(1, 2, 3, 4), None, [2.0, 1.5]),
    lambda m: (m.f(1, 2, 3, 4), [6, 4], None),
)
case("upsample_nearest2d_backward", lambda m: (m.f(1, 2, 6, 8), [6, 8], [1, 2, 3, 4]))
case("upsample_bilinear2d", lambda m: (m.f(1, 2, 3, 4), [6, 8], False, 2.0, 2.0),
    lambda m: (m.f(1, 2, 3, 4), [5, 3], True),
     lambda m: (m.f(1, 2, 5, 4), [3, 9], False))  # fmt: skip
case("upsample_bilinear2d.vec", lambda m: (m.f(1, 2, 3, 4), None, False, [2.0, 2.0]))
case("native_dropout_backward", lambda m: (m.f(3), m.b(3), 2.0))
