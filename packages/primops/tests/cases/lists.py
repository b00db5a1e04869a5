"""Cases of operators on lists of tensors, and of others that the operator database lacks."""

from __future__ import annotations

from typing import Any

import torch
from primops.decompositions.foreach import UNARY

from packages.primops.tests.cases.make import Make, case, with_options


def _list(m: Make, count: int = 2) -> list[torch.Tensor]:
    return [m.p(3, 2) for _ in range(count)]


case(
    " ".join(f"_foreach_{name}" for name in (*UNARY.split(), "erfc", "zero", "clone")),
    lambda m: (_list(m),),
)
for _name in ("add", "sub", "mul", "div", "clamp_max", "clamp_min", "maximum", "minimum", "pow"):
    case(f"_foreach_{_name}.List", lambda m: (_list(m), _list(m)))
    case(f"_foreach_{_name}.Scalar", lambda m: (_list(m), 2))
    case(f"_foreach_{_name}.ScalarList", lambda m: (_list(m), [2.0, 0.5]))
case("_foreach_add.List _foreach_sub.List", lambda m: with_options(_list(m), _list(m), alpha=2))
case(
    "_foreach_add.Tensor _foreach_mul.Tensor _foreach_div.Tensor",
    lambda m: (_list(m), torch.tensor(2.5).to(m.dtype)),
)
case("_foreach_pow.ScalarAndTensor", lambda m: (2.5, _list(m)))
case(
    "_foreach_lerp.Scalar", lambda m: (_list(m), _list(m), 0.3), lambda m: (_list(m), _list(m), 0.7)
)
case("_foreach_lerp.ScalarList", lambda m: (_list(m), _list(m), [0.3, 0.7]))
case("_foreach_lerp.List", lambda m: (_list(m), _list(m), _list(m)))
case(
    "_foreach_addcmul.Scalar _foreach_addcdiv.Scalar", lambda m: (_list(m), _list(m), _list(m), 0.3)
)
case(
    "_foreach_addcmul.ScalarList _foreach_addcdiv.ScalarList",
    lambda m: (_list(m), _list(m), _list(m), [0.3, -2.0]),
)
case(
    "_foreach_addcmul.Tensor _foreach_addcdiv.Tensor",
    lambda m: (_list(m), _list(m), _list(m), torch.tensor([0.5, -2.0])),
)
case("_foreach_max", lambda m: (_list(m),))
case("_foreach_copy", lambda m: (_list(m), [x.double() for x in _list(m)]))
case("_foreach_norm.Scalar", lambda m: (_list(m),), lambda m: (_list(m), 1))

ADAM = {
    "lr": 0.1,
    "beta1": 0.9,
    "beta2": 0.99,
    "weight_decay": 0.01,
    "eps": 1e-6,
    "amsgrad": False,
    "maximize": False,
}


def _adam(m: Make, **changes: Any) -> tuple[Any, ...]:
    steps = [torch.tensor(3.0), torch.tensor(1.0)]
    largest = _list(m) if changes.get("amsgrad") else []
    return with_options(
        _list(m), _list(m), _list(m), _list(m), largest, steps, **{**ADAM, **changes}
    )


case(
    "_fused_adam _fused_adamw", lambda m: _adam(m), lambda m: _adam(m, amsgrad=True, maximize=True),
    lambda m: _adam(m, grad_scale=torch.tensor(4.0), found_inf=torch.tensor(0.0)),
    lambda m: _adam(m, weight_decay=0.0),
    lambda m: _adam(m, beta1=0.0), lambda m: _adam(m, beta1=0.0, beta2=0.0),
)  # fmt: skip
case("_fused_adam.tensor_lr _fused_adamw.tensor_lr", lambda m: _adam(m, lr=torch.tensor(0.1)))
SGD = {
    "weight_decay": 0.1,
    "momentum": 0.9,
    "lr": 0.1,
    "dampening": 0.2,
    "nesterov": False,
    "maximize": False,
    "is_first_step": False,
}
case(
    "_fused_sgd", lambda m: with_options(_list(m), _list(m), _list(m), **SGD),
    lambda m: with_options(_list(m), _list(m), _list(m), **{**SGD, "nesterov": True,
    "dampening": 0.0, "is_first_step": True}),
    lambda m: with_options(_list(m), _list(m), [], **{**SGD, "momentum": 0.0, "maximize": True}),
)  # fmt: skip
case(
    "_fused_sgd.tensor_lr",
    lambda m: with_options(_list(m), _list(m), _list(m), **{**SGD, "lr": torch.tensor(0.1)}),
)
case("_fused_adagrad", lambda m: with_options(
    _list(m), _list(m), _list(m), [torch.tensor(3.0), torch.tensor(1.0)], lr=0.1, lr_decay=0.01,
    weight_decay=0.1, eps=1e-6,
    maximize=False))  # fmt: skip

case(
    "_amp_foreach_non_finite_check_and_unscale", lambda m: (_list(m), torch.zeros(1),
    torch.tensor(0.25)),
    lambda m: ([torch.tensor([1.0, torch.inf], dtype=torch.float32)], torch.zeros(1),
    torch.tensor([2.0])),
)  # fmt: skip

# Others
# --------------------------------------------------------------------------------------------------

case("hann_window hamming_window blackman_window bartlett_window", lambda m: (7,), lambda m: (1,))
case(
    "hann_window.periodic hamming_window.periodic blackman_window.periodic "
    "bartlett_window.periodic",
    lambda m: (7, False),
)
case("hamming_window.periodic_alpha", lambda m: (7, True, 0.5))
case("hamming_window.periodic_alpha_beta", lambda m: (7, True, 0.5, 0.4))
case("linspace.Tensor_Tensor", lambda m: (torch.tensor(1.0), torch.tensor(2.0), 5))
case("linspace.Tensor_Scalar", lambda m: (torch.tensor(1.0), 2, 5))
case("linspace.Scalar_Tensor", lambda m: (1, torch.tensor(2.0), 1))
case("logspace.Tensor_Tensor", lambda m: (torch.tensor(0.0), torch.tensor(2.0), 5))
case("logspace.Tensor_Scalar", lambda m: (torch.tensor(0.0), 2, 5, 2.0))
case("logspace.Scalar_Tensor", lambda m: (0, torch.tensor(2.0), 5))
case("fake_quantize_per_tensor_affine_cachemask", lambda m: (m.f(5, 4), 0.1, 3, -8, 7))
case("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams", *[
    lambda m, on=on: (m.f(5, 4), torch.tensor(0.1), torch.tensor(3, dtype=torch.int32),
    torch.tensor([on]), -8, 7)
    for on in (0, 1)])  # fmt: skip
case("fake_quantize_per_channel_affine_cachemask",
     lambda m: (m.f(5, 4), torch.tensor([0.1, 0.2, 0.3, 0.4]),
     torch.tensor([0, 1, 2, 3], dtype=torch.int32), 1, -8, 7),
     lambda m: (m.f(2, 4), torch.tensor([0.1, 0.2]), torch.tensor([0.5, 1.0]), 0, -8,
     7))  # fmt: skip
case("empty_permuted", lambda m: ([2, 3], [1, 0]))
case("_efficientzerotensor", lambda m: ([2, 3],))
case("isin.Tensor_Scalar", lambda m: (m.i(3, 4), 1))
case(
    "isin.Scalar_Tensor",
    lambda m: (1, m.i(3, 4)),
    lambda m: with_options(7, m.i(3, 4), invert=True),
)
for _kind in ("t", "u", "v", "w"):
    for _shift in ("", "shifted_"):
        case(f"special_{_shift}chebyshev_polynomial_{_kind}.n_scalar", lambda m: (m.p(4), 2))
        case(f"special_{_shift}chebyshev_polynomial_{_kind}.x_scalar", lambda m: (0.3, m.p(4)))
case("special_hermite_polynomial_h.n_scalar special_hermite_polynomial_he.n_scalar "
    "special_laguerre_polynomial_l.n_scalar "
     "special_legendre_polynomial_p.n_scalar special_zeta.other_scalar",
     lambda m: (m.p(4) + 1, 2))  # fmt: skip
case("special_hermite_polynomial_h.x_scalar special_hermite_polynomial_he.x_scalar "
    "special_laguerre_polynomial_l.x_scalar "
     "special_legendre_polynomial_p.x_scalar", lambda m: (0.3, m.p(4)))  # fmt: skip
case("special_zeta.self_scalar", lambda m: (2.5, m.p(4)))
case("polygamma", lambda m: (2, m.p(4)))
case("embedding_renorm", lambda m: (m.f(5, 3), m.i(5, 4), 0.5, 2.0))
case("affine_grid_generator", lambda m: (m.f(2, 2, 3), [2, 1, 4, 5], True),
    lambda m: (m.f(2, 2, 3), [2, 1, 4, 5], False),
     lambda m: (m.f(1, 3, 4), [1, 1, 2, 3, 4], False))  # fmt: skip
case("_stack", lambda m: ([m.f(2), m.f(2)], 1))
case("detach_copy lift", lambda m: (m.f(4),))
case(
    "scatter.reduce",
    lambda m: with_options(m.p(4, 3), 0, torch.tensor([[3, 1, 0]]), m.p(1, 3), reduce="multiply"),
)
case(
    "scatter.value_reduce",
    lambda m: with_options(m.p(4, 3), 0, torch.tensor([[3, 1, 0]]), 2.0, reduce="multiply"),
)
case("_masked_softmax", lambda m: (m.f(2, 3, 2, 4), m.i(2, 2, 3, 2, 4) > 1, 3))
case("upsample_linear1d", lambda m: (m.f(1, 2, 5), [9], True))
case("upsample_nearest1d", lambda m: (m.f(1, 2, 5), [8]))
case("_upsample_nearest_exact3d", lambda m: (m.f(1, 2, 3, 3, 3), [4, 5, 6]))
case("upsample_nearest3d_backward _upsample_nearest_exact3d_backward",
     lambda m: (m.f(1, 2, 4, 5, 6), [4, 5, 6], [1, 2, 3, 3, 3]))  # fmt: skip
case("upsample_trilinear3d.vec", lambda m: (m.f(1, 2, 3, 3, 3), None, False, [2.0, 1.5, 1.0]))
case("upsample_nearest1d.vec _upsample_nearest_exact1d.vec", lambda m: (m.f(1, 2, 5), None, [1.5]))
case(
    "upsample_nearest3d.vec _upsample_nearest_exact3d.vec",
    lambda m: (m.f(1, 2, 3, 3, 3), [4, 6, 3], None),
)
case("_upsample_nearest_exact2d.vec", lambda m: (m.f(1, 2, 3, 4), [4, 6], None))
case("upsample_linear1d.vec", lambda m: (m.f(1, 2, 5), None, True, [1.5]))
case("upsample_bicubic2d.vec", lambda m: (m.f(1, 2, 5, 4), None, False, [1.5, 2.0]))
case("grid_sampler_3d", *[lambda m, mode=mode, pad=pad: (m.f(1, 2, 3, 4, 2), m.f(1, 2, 2, 2, 3),
    mode, pad, False)
                          for mode in (0, 1) for pad in (0, 1, 2)])  # fmt: skip
case("_grid_sampler_2d_cpu_fallback", lambda m: (m.f(1, 2, 3, 4), m.f(1, 2, 2, 2), 0, 0, True))
case(
    "_weight_norm_interface",
    lambda m: (m.f(4, 3, 2), m.p(4, 1, 1), 0),
    lambda m: (m.f(4, 3), m.p(1, 3), 1),
)
case("_weight_norm_interface_backward", lambda m: (m.f(4, 3), m.f(4, 3), m.p(4, 1), m.p(4, 1), 0))
_PADS = [1, 2, 0, 1, 1, 0]
case("reflection_pad3d replication_pad3d", lambda m: (m.f(1, 2, 3, 4, 5), _PADS))
case("reflection_pad3d_backward replication_pad3d_backward",
     lambda m: (m.f(1, 2, 4, 5, 8), m.f(1, 2, 3, 4, 5), _PADS))  # fmt: skip
case("upsample_nearest3d", lambda m: (m.f(1, 2, 3, 3, 3), [4, 6, 3]))
