"""Cases of functions of corresponding elements."""

from __future__ import annotations

import torch

from packages.primops.tests.cases.make import INF, NAN, case, with_options

# Elementwise
# --------------------------------------------------------------------------------------------------

UNARY_FLOAT = (
    "exp expm1 log log2 log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh erf exp2 "
    "special_exp2 log10 reciprocal "
    "sigmoid asinh acosh atanh deg2rad rad2deg"
)
case(
    UNARY_FLOAT,
    lambda m: (m.grid(),),
    lambda m: (m.f(3, 4),),
    lambda m: (m.i(9, 5, low=1),),
    lambda m: (m.b(4),),
)
case("lgamma sinc", lambda m: (m.f(3, 4),), lambda m: (m.i(9, 5, low=1),))
case(
    "neg _neg_view _neg_view_copy sign sgn square abs",
    lambda m: (m.grid(),),
    lambda m: (m.i(9, 5, low=-9),),
)
case("conj_physical", lambda m: (m.grid(),), lambda m: (m.i(9, 5, low=-9),))
case("sign sgn", lambda m: (m.b(3),))
case("floor ceil trunc round fix frac", lambda m: (m.grid(),))
case("floor ceil trunc round fix", lambda m: (m.i(9, 5, low=-9),))
case("bitwise_not", lambda m: (m.i(9, 5, low=-9),), lambda m: (m.b(3),))
case("positive alias detach lift_fresh lift_fresh_copy clone t zero", lambda m: (m.f(2, 3),))
case("contiguous", lambda m: (m.f(2, 3).t(),))
case(
    "round.decimals",
    lambda m: with_options(m.f(9), decimals=2),
    lambda m: with_options(m.f(9) * 100, decimals=-1),
)
case("logit", lambda m: (m.p(9),), lambda m: (m.p(9), 0.2))
case(
    "isnan isinf isfinite isposinf isneginf signbit logical_not",
    lambda m: (m.grid(),),
    lambda m: (m.i(3, 5, low=-2),),
)
case("signbit logical_not isfinite", lambda m: (m.b(4),))

BINARY = (
    lambda m: m.pairs(),
    lambda m: (m.f(3, 1), m.f(2, 1, 4)),
    lambda m: (m.f(3, 4), torch.tensor(2.5)),
    lambda m: (m.f(3), m.i(5, 3, low=1)),
    lambda m: (m.i(9, 4, low=-9), m.i(9, 4, low=1)),
)
case(
    "add.Tensor sub.Tensor mul.Tensor rsub.Tensor div.Tensor maximum minimum fmax fmin fmod.Tensor "
    "remainder.Tensor",
    *BINARY,
)
case("true_divide.Tensor floor_divide", lambda m: (m.f(3, 1), m.f(2, 1, 4)))
case(
    "eq.Tensor ne.Tensor lt.Tensor le.Tensor gt.Tensor ge.Tensor",
    *BINARY,
    lambda m: (m.b(3), m.b(3)),
)
case("add.Tensor mul.Tensor maximum minimum fmax fmin", lambda m: (m.b(3), m.b(3)))
case(
    "logical_and logical_or logical_xor",
    lambda m: (m.b(3), m.b(3)),
    lambda m: (m.f(3), m.i(2, 2, 3)),
)
case("add.Tensor sub.Tensor rsub.Tensor", lambda m: with_options(m.f(3), m.f(3), alpha=0.7))
SCALARS = (
    lambda m: (m.grid(), 1.5),
    lambda m: (m.f(3), 2),
    lambda m: (m.i(9, 4, low=-9), 3),
    lambda m: (m.i(9, 4), 2.5),
)
case(
    "add.Scalar sub.Scalar mul.Scalar rsub.Scalar div.Scalar fmod.Scalar remainder.Scalar "
    "floor_divide.Scalar "
    "eq.Scalar ne.Scalar lt.Scalar le.Scalar gt.Scalar ge.Scalar",
    *SCALARS,
)
case("remainder.Scalar_Tensor", lambda m: (7, m.i(5, 4, low=1)), lambda m: (7.5, m.p(4)))
case("add.Tensor mul.Tensor div.Tensor", lambda m: (m.f(3), 0.5), lambda m: (m.i(4, 3), 1.5))
MODES = [lambda m, r=r: with_options(*m.pairs(), rounding_mode=r) for r in (None, "floor", "trunc")]
INT_MODES = [
    lambda m, r=r: with_options(m.i(20, 9, low=-20), m.i(5, 9, low=1), rounding_mode=r)
    for r in (None, "floor", "trunc")
]
case("div.Tensor_mode", *MODES, *INT_MODES)
case(
    "div.Scalar_mode",
    *[lambda m, r=r: with_options(m.f(9) * 9, 2.5, rounding_mode=r) for r in ("floor", "trunc")],
)
case(
    "pow.Tensor_Scalar",
    *[lambda m, e=e: (m.grid(), e) for e in (0, 1, 2, 3, -1, -2, 0.5, -0.5, 2.5, -3)],
    *[lambda m, e=e: (m.i(5, 4, low=-4), e) for e in (0, 1, 2, 7, 2.5)],
)
case("pow.Scalar", lambda m: (2, m.f(5)), lambda m: (1.5, m.i(5, 4)), lambda m: (2, m.i(5, 4)))
case("pow.Tensor_Tensor", lambda m: m.pairs(), lambda m: (m.p(4), m.i(3, 4)))
case("atan2", lambda m: m.pairs(), lambda m: (m.i(9, 4, low=-4), m.i(9, 4, low=-4)))
case("copysign.Tensor", lambda m: m.pairs())
case("copysign.Scalar", lambda m: (m.grid(), -1.0))
case("hypot logaddexp", lambda m: m.pairs() if m.dtype is torch.float32 else (m.f(4), m.f(4)))
case(
    "xlogy.Tensor special_xlog1py",
    lambda m: (m.p(4), m.p(4)),
    lambda m: (torch.zeros(2), torch.tensor([NAN, 0.0])),
)
case("xlogy.Scalar_Other special_xlog1py.other_scalar", lambda m: (m.p(4), 2.0))
case("xlogy.Scalar_Self special_xlog1py.self_scalar", lambda m: (2.0, m.p(4)))
for _name in ("bitwise_and", "bitwise_or", "bitwise_xor", "__and__", "__or__", "__xor__"):
    case(f"{_name}.Tensor", lambda m: (m.i(9, 4), m.i(9, 3, 1)), lambda m: (m.b(4), m.b(4)))
    case(f"{_name}.Scalar", lambda m: (m.i(9, 4), 5), lambda m: (m.b(4), True))
for _name in ("bitwise_left_shift", "bitwise_right_shift"):
    case(f"{_name}.Tensor", lambda m: (m.i(99, 4), m.i(4, 4)))
    case(f"{_name}.Tensor_Scalar", lambda m: (m.i(99, 4), 3))
    case(f"{_name}.Scalar_Tensor", lambda m: (77, m.i(4, 4)))
case(
    "bitwise_and.Scalar_Tensor bitwise_or.Scalar_Tensor bitwise_xor.Scalar_Tensor",
    lambda m: (6, m.i(9, 4)),
)
case("__lshift__.Tensor __rshift__.Tensor", lambda m: (m.i(99, 4), m.i(4, 4)))
case("__lshift__.Scalar __rshift__.Scalar", lambda m: (m.i(99, 4), 3))
case(
    "addcmul addcdiv",
    lambda m: (m.f(3, 4), m.f(4), m.p(3, 1)),
    lambda m: with_options(m.f(3), m.f(3), m.p(3), value=0.3),
)
case("lerp.Scalar", lambda m: (m.f(4), m.f(4), 0.3), lambda m: (m.f(4), m.f(4), 0.8))
case("lerp.Tensor", lambda m: (m.f(4), m.f(4), m.p(4)))
case(
    "clamp",
    lambda m: (m.grid(), -1, 1.5),
    lambda m: (m.grid(), None, 1),
    lambda m: (m.i(9, 5), 2, 5),
)
case("clamp.Tensor", lambda m: (m.f(5), m.f(5), None), lambda m: (m.f(5), m.f(5), m.f(5)))
case("clamp_min clamp_max", lambda m: (m.grid(), 0.5), lambda m: (m.i(9, 5), 3))
case("clamp_min.Tensor clamp_max.Tensor", lambda m: (m.f(3, 4), m.f(4)))
case(
    "where.self",
    lambda m: (m.b(3, 4), m.f(4), m.f(3, 1)),
    lambda m: (m.b(3), m.f(3), torch.tensor(1.0)),
)
case("where.ScalarOther", lambda m: (m.b(3), m.f(3), 2.0))
case("where.ScalarSelf", lambda m: (m.b(3), 2.0, m.f(3)))
case("where.Scalar", lambda m: (m.b(3), 2.0, 1.0))
case("masked_fill.Scalar", lambda m: (m.f(3, 4), m.b(4), -INF), lambda m: (m.i(3, 4), m.b(4), 7))
case("masked_fill.Tensor", lambda m: (m.f(3, 4), m.b(4), torch.tensor(1.5)))
case(
    "nan_to_num", lambda m: (m.grid(),), lambda m: (m.grid(), 1.0, 2.0, 3.0), lambda m: (m.i(3, 4),)
)
case("threshold", lambda m: (m.grid(), 0.4, 9.0))
case("heaviside", lambda m: (m.grid(), m.f(1)))

# Activations
# --------------------------------------------------------------------------------------------------

case("relu relu6 silu hardsigmoid hardswish mish selu gelu softplus log_sigmoid_forward leaky_relu "
    "elu celu hardtanh "
    "hardshrink softshrink", lambda m: (m.f(40) * 3,))  # fmt: skip
case("relu relu6 hardtanh hardshrink softshrink leaky_relu", lambda m: (m.grid(),))
case("gelu", lambda m: with_options(m.f(40) * 3, approximate="tanh"))
case("leaky_relu", lambda m: (m.f(9), 0.3))
case("elu", lambda m: (m.f(9), 0.7, 1.2, 0.9))
case("celu", lambda m: (m.f(9), 0.7))
case("softplus", lambda m: (m.f(9) * 20, 2, 10))
case(
    "silu_backward hardsigmoid_backward hardswish_backward mish_backward gelu_backward",
    lambda m: (m.f(40), m.f(40) * 3),
)
case("gelu_backward", lambda m: with_options(m.f(40), m.f(40) * 3, approximate="tanh"))
case("sigmoid_backward tanh_backward", lambda m: (m.f(9), m.p(9)))
case("threshold_backward", lambda m: (m.f(9), m.f(9), 0))
case("leaky_relu_backward", lambda m: (m.f(9), m.f(9), 0.1, False))
case(
    "elu_backward",
    lambda m: (m.f(9), 1.0, 1.0, 1.0, False, m.f(9)),
    lambda m: (m.f(9), 0.7, 1.2, 1.0, True, m.p(9) - 0.5),
)
case("hardtanh_backward", lambda m: (m.f(9), m.f(9), -1.0, 1.0))
case("softplus_backward", lambda m: (m.f(9), m.f(9), 1, 20))
case("log_sigmoid_backward", lambda m: (m.f(9), x := m.f(9), (-x.abs()).exp()))
case("hardshrink_backward softshrink_backward", lambda m: (m.f(9), m.f(9), 0.5))
case("logit_backward", lambda m: (m.f(9), m.p(9), 0.2), lambda m: (m.f(9), m.p(9), None))
case("glu", lambda m: (m.f(3, 4), -1), lambda m: (m.f(4, 3), 0))
case("glu_backward", lambda m: (m.f(3, 2), m.f(3, 4), -1))
case("_prelu_kernel", lambda m: (m.f(3, 4), m.f(1, 4)))
case("_prelu_kernel_backward", lambda m: (m.f(3, 4), m.f(3, 4), m.f(1, 4)))
