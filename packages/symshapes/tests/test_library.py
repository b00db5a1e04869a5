"""Ops whose meta kernel is missing or wrong: sizes and strides of eager."""

from __future__ import annotations

import pytest
import torch
from symshapes import DataDependentError, FakeTensorMode, ShapeEnv
from torch.nn import functional as F
from torch.utils import _pytree as pytree

CASES = {
    "geqrf": (torch.geqrf, [torch.randn(2, 5, 3)]),
    "svd": (torch.linalg.svd, [torch.randn(2, 3, 5)]),
    "svd_empty": (torch.linalg.svd, [torch.randn(0, 3)]),
    "svd_reduced": (lambda x: torch.linalg.svd(x, full_matrices=False), [torch.randn(2, 5, 3)]),
    "svdvals": (torch.linalg.svdvals, [torch.randn(2, 5, 3)]),
    "eig": (torch.linalg.eig, [torch.randn(2, 5, 5)]),
    "rfft_three_dims": (lambda x: torch.fft.rfftn(x, dim=(0, 1, 2)), [torch.randn(5, 6, 7)]),
    "rfft_two_dims": (lambda x: torch.fft.rfftn(x, dim=(2, 0)), [torch.randn(5, 6, 7)]),
    "hfft": (lambda x: torch.fft.hfft2(x, dim=(0, -1)), [torch.randn(5, 6, 7)]),
    "embedding_bag": (
        lambda i, w: torch.embedding_bag(w, i, torch.tensor([0, 2]), mode=1),
        [torch.tensor([1, 2, 3, 1]), torch.randn(5, 3)],
    ),
    "solve": (torch.linalg.solve, [torch.randn(2, 3, 3), torch.randn(2, 3, 2)]),
    "max_unpool2d": (
        lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2),
        [torch.randn(1, 3, 4, 4).contiguous(memory_format=torch.channels_last)],
    ),
    "max_unpool2d_contiguous": (
        lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2),
        [torch.randn(2, 3, 4, 4)],
    ),
    "batch_norm_eval": (
        lambda x, s: torch.native_batch_norm(x, s, s, s, s, False, 0.1, 1e-5),
        [torch.randn(2, 3), torch.rand(3)],
    ),
    "batch_norm_train": (
        lambda x, s: torch.native_batch_norm(x, s, s, None, None, True, 0.1, 1e-5),
        [torch.randn(2, 3), torch.rand(3)],
    ),
    "histogram": (lambda x: torch.histogram(x, 7), [torch.randn(20)]),
    "histogram_edges": (torch.histogram, [torch.randn(20), torch.linspace(-1, 1, 6)]),
    "padded_to_jagged": (
        lambda x, o: torch.ops.aten._padded_dense_to_jagged_forward(x, [o], 5),
        [torch.randn(2, 3, 4), torch.tensor([0, 2, 5])],
    ),
    "binomial": (torch.binomial, [torch.full((3, 2), 4.0).T, torch.rand(3, 2).T]),
    "dirichlet": (torch._sample_dirichlet, [torch.rand(3, 2).T]),
    "dirichlet_gradient": (torch._dirichlet_grad, [torch.rand(3, 2).T for _ in range(3)]),
    "gamma_gradient": (torch._standard_gamma_grad, [torch.rand(3, 2).T for _ in range(2)]),
    "histogramdd": (lambda x: torch.histogramdd(x, [3, 4]), [torch.randn(20, 2)]),
}


@pytest.mark.parametrize("name", CASES)
def test_metadata_is_eagers(name: str) -> None:
    function, inputs = CASES[name]
    real = torch.utils._pytree.tree_leaves(function(*inputs))
    mode = FakeTensorMode(ShapeEnv())
    fakes = [mode.from_real(x) for x in inputs]
    with mode:
        fake = torch.utils._pytree.tree_leaves(function(*fakes))
    assert [(f.shape, f.stride(), f.dtype) for f in fake] == [
        (r.shape, r.stride(), r.dtype) for r in real
    ]


@pytest.mark.parametrize(
    "call", [torch.unique_consecutive, lambda x: torch.unique(x, dim=0), torch.ops.aten._unique]
)
def test_number_of_unique_elements_is_data(call) -> None:
    x = FakeTensorMode(ShapeEnv()).from_real(torch.randn(4, 3))
    with pytest.raises(DataDependentError):
        call(x)
    env = ShapeEnv(allow_unbacked=True)
    result = torch.utils._pytree.tree_leaves(
        call(FakeTensorMode(env).from_real(torch.randn(4, 3)))
    )[0]
    assert result.dim() in (1, 2) and not isinstance(result.shape[0], int)


def _images(order: tuple[int, ...]) -> torch.Tensor:
    sizes = [(2, 4, 5, 6)[d] for d in order]
    return torch.rand(sizes).permute([order.index(d) for d in range(4)])


FORMATS = {
    "log_sigmoid": F.logsigmoid,
    "rrelu": F.rrelu,
    "rrelu_training": lambda x: F.rrelu(x, training=True),
    "normal": lambda x: torch.normal(x, x),
    "poisson": torch.poisson,
    "reflect": lambda x: F.pad(x, (1, 1, 1, 1), "reflect"),
    "replicate": lambda x: F.pad(x, (1, 1, 1, 1), "replicate"),
    "replicate_3d": lambda x: F.pad(x[None], (1, 1, 1, 1, 1, 1), "replicate"),
    "channel_shuffle": lambda x: F.channel_shuffle(x, 2),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "batch_norm_one_dim": lambda x: F.batch_norm(x[0], None, None, training=True),
    "nll_loss": lambda x: F.nll_loss(
        x, torch.zeros_like(x[:, 0], dtype=torch.long), reduction="none"
    ),
    "roll": lambda x: (x.roll(1, 1), x.roll(1)),
    "one_hot": lambda x: F.one_hot(x.long(), 9),
    "copysign": lambda x: (
        torch.copysign(x, x[0]),
        torch.logaddexp(x[0], x),
        torch.heaviside(x, x[0]),
    ),
    "floor_divide": lambda x: (
        x // x[0],
        torch.div(x, x[0], rounding_mode="trunc"),
        torch.gcd(x.int(), x[0].int()),
    ),
}


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1), (3, 2, 1, 0), (1, 0, 2, 3)])
@pytest.mark.parametrize("name", FORMATS)
def test_strides_follow_the_operand_as_in_eager(name, order):
    x = _images(order)
    mode = FakeTensorMode()
    fake = mode.from_real(x)
    with mode:
        results = pytree.tree_leaves(FORMATS[name](fake))
    expected = pytree.tree_leaves(FORMATS[name](x))
    assert [r.stride() for r in results] == [e.stride() for e in expected]


ROWS = {
    "a row among gaps": torch.ones(2, 4)[::2],
    "a row of a row": torch.ones(2, 3, 4)[::2, 1:2],
    "a column": torch.ones(4, 2).t()[::2],
}
MADE = {
    "nan_to_num": torch.nan_to_num,
    "degrees": lambda x: (torch.deg2rad(x), torch.rad2deg(x)),
    "hardtanh": F.hardtanh,
    "prelu": lambda x: F.prelu(x, torch.ones(1)),
    "index_put": lambda x: x.index_put((torch.tensor([0]),), torch.tensor(1.0)),
    "pointwise": lambda x: (x.sinc(), x.logit(0.1), torch.xlogy(x, x)),
    "sort": lambda x: (*x.sort(1), *x.sort(dim=0, stable=True)),
    "like": lambda x: (x.clone(), torch.empty_like(x), x.flip(1)),
}


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", MADE)
def test_strides_of_dimensions_of_one_element(name, rows):
    x = ROWS[rows]
    mode = FakeTensorMode()
    fake = mode.from_real(x)
    with mode:
        results = pytree.tree_leaves(MADE[name](fake))
    assert [r.stride() for r in results] == [e.stride() for e in pytree.tree_leaves(MADE[name](x))]
