"""Forward and backward of the ops that models use: fakes against real execution, static and with a
symbolic batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from symshapes.testing import check_static, check_symbolic, with_gradients

CL = torch.channels_last


def p(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype).requires_grad_()


x = p  # an input, not a parameter


def cl(t: torch.Tensor) -> torch.Tensor:
    return t.detach().contiguous(memory_format=CL).requires_grad_()


def ids(n: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, n, shape)


def lstm_cell(xs: Any, h: Any, c: Any, w: Any, b: Any) -> Any:
    for step in xs.unbind(1):
        i, f, g, o = F.linear(torch.cat([step, h], 1), w, b).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
    return h, c


def attention(x: Any, w: Any, o: Any) -> Any:
    n, t, d = x.shape
    q, k, v = (F.linear(x, w).view(n, t, 3, 2, d // 2).permute(2, 0, 3, 1, 4)).unbind(0)
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return F.linear(y.transpose(1, 2).reshape(n, t, d), o)


def autocast(x: Any, w: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return F.linear(x, w).relu() @ w


def in_place(x: Any, w: Any) -> Any:
    y = F.linear(x, w)
    y[:, 1:3].mul_(2)
    y += 1
    y.relu_()
    return y


CASES: dict[str, tuple[Callable, Callable[[int], list[Any]]]] = {
    "linear": (F.linear, lambda b: [x(b, 8), p(16, 8), p(16)]),
    "linear_3d": (F.linear, lambda b: [x(b, 3, 8), p(16, 8), p(16)]),
    "matmul_4d": (torch.matmul, lambda b: [x(b, 2, 3, 4), x(b, 2, 4, 5)]),
    "bmm": (torch.bmm, lambda b: [x(b, 3, 4), x(b, 4, 5)]),
    "mlp": (
        lambda a, w, v: F.linear(F.gelu(F.linear(a, w)), v),
        lambda b: [x(b, 8), p(16, 8), p(8, 16)],
    ),
    "layer_norm": (lambda a, w, v: F.layer_norm(a, (8,), w, v), lambda b: [x(b, 5, 8), p(8), p(8)]),
    "softmax": (lambda a: F.softmax(a, -1), lambda b: [x(b, 5, 8)]),
    "log_softmax": (lambda a: F.log_softmax(a, 1), lambda b: [x(b, 5, 8)]),
    "batch_norm_train": (
        lambda a, w, v, m, s: F.batch_norm(a, m, s, w, v, True),
        lambda b: [x(b, 4, 5, 6), p(4), p(4), torch.zeros(4), torch.ones(4)],
    ),
    "batch_norm_eval": (
        lambda a, w, v, m, s: F.batch_norm(a, m, s, w, v, False),
        lambda b: [x(b, 4, 5, 6), p(4), p(4), torch.zeros(4), torch.ones(4)],
    ),
    "batch_norm_channels_last": (
        lambda a, w, v, m, s: F.batch_norm(a, m, s, w, v, True),
        lambda b: [cl(x(b, 4, 5, 6)), p(4), p(4), torch.zeros(4), torch.ones(4)],
    ),
    "batch_norm_1d": (
        lambda a, w, v, m, s: F.batch_norm(a, m, s, w, v, True),
        lambda b: [x(b, 4), p(4), p(4), torch.zeros(4), torch.ones(4)],
    ),
    "group_norm": (lambda a, w, v: F.group_norm(a, 2, w, v), lambda b: [x(b, 4, 5, 6), p(4), p(4)]),
    "conv2d": (
        lambda a, w, v: F.conv2d(a, w, v, padding=1),
        lambda b: [x(b, 3, 8, 9), p(4, 3, 3, 3), p(4)],
    ),
    "conv2d_stride": (
        lambda a, w: F.conv2d(a, w, stride=2, padding=3),
        lambda b: [x(b, 3, 16, 16), p(4, 3, 7, 7)],
    ),
    "conv2d_1x1": (lambda a, w: F.conv2d(a, w), lambda b: [x(b, 3, 8, 9), p(4, 3, 1, 1)]),
    "conv2d_1x1_cl": (lambda a, w: F.conv2d(a, w), lambda b: [cl(x(b, 3, 8, 9)), p(4, 3, 1, 1)]),
    "conv2d_depthwise": (
        lambda a, w: F.conv2d(a, w, groups=4),
        lambda b: [x(b, 4, 8, 9), p(4, 1, 3, 3)],
    ),
    "conv2d_channels_last": (
        lambda a, w: F.conv2d(a, w),
        lambda b: [cl(x(b, 3, 8, 9)), p(4, 3, 3, 3)],
    ),
    "conv2d_weight_cl": (
        F.conv2d,
        lambda b: [x(b, 3, 8, 9), cl(p(4, 3, 3, 3))],
    ),
    "conv2d_double": (
        F.conv2d,
        lambda b: [
            torch.randn(b, 3, 8, 9, dtype=torch.double).requires_grad_(),
            p(4, 3, 3, 3, dtype=torch.double),
        ],
    ),
    "conv2d_bf16": (
        F.conv2d,
        lambda b: [
            torch.randn(b, 3, 8, 9).bfloat16().requires_grad_(),
            p(4, 3, 3, 3, dtype=torch.bfloat16),
        ],
    ),
    "conv1d": (F.conv1d, lambda b: [x(b, 3, 8), p(4, 3, 3)]),
    "conv3d": (F.conv3d, lambda b: [x(b, 3, 5, 6, 7), p(4, 3, 3, 3, 3)]),
    "conv_transpose2d": (
        lambda a, w, v: F.conv_transpose2d(a, w, v, stride=2),
        lambda b: [x(b, 4, 5, 6), p(4, 3, 2, 2), p(3)],
    ),
    "conv_transpose2d_cl": (
        lambda a, w: F.conv_transpose2d(a, w, stride=2, padding=1, output_padding=1),
        lambda b: [cl(x(b, 4, 5, 6)), p(4, 3, 3, 3)],
    ),
    "max_pool2d": (lambda a: F.max_pool2d(a, 2), lambda b: [x(b, 3, 8, 8)]),
    "max_pool2d_resnet": (lambda a: F.max_pool2d(a, 3, 2, 1), lambda b: [x(b, 3, 9, 9)]),
    "max_pool2d_cl": (lambda a: F.max_pool2d(a, 3, 2, 1), lambda b: [cl(x(b, 3, 9, 9))]),
    "avg_pool2d": (lambda a: F.avg_pool2d(a, 2), lambda b: [x(b, 3, 8, 8)]),
    "adaptive_avg_pool2d": (lambda a: F.adaptive_avg_pool2d(a, 1), lambda b: [x(b, 3, 8, 8)]),
    "adaptive_avg_pool2d_3": (lambda a: F.adaptive_avg_pool2d(a, 3), lambda b: [x(b, 3, 8, 8)]),
    "adaptive_avg_pool2d_cl": (
        lambda a: F.adaptive_avg_pool2d(a, 1),
        lambda b: [cl(x(b, 3, 8, 8))],
    ),
    "upsample_bilinear": (
        lambda a: F.interpolate(a, scale_factor=2, mode="bilinear", align_corners=False),
        lambda b: [x(b, 3, 4, 5)],
    ),
    "upsample_bilinear_aligned": (
        lambda a: F.interpolate(a, scale_factor=2, mode="bilinear", align_corners=True),
        lambda b: [x(b, 3, 4, 5)],
    ),
    "upsample_bilinear_cl": (
        lambda a: F.interpolate(a, scale_factor=2, mode="bilinear", align_corners=False),
        lambda b: [cl(x(b, 3, 4, 5))],
    ),
    "upsample_nearest": (
        lambda a: F.interpolate(a, scale_factor=2, mode="nearest"),
        lambda b: [x(b, 3, 4, 5)],
    ),
    "upsample_size": (
        lambda a: F.interpolate(a, size=(7, 9), mode="bilinear"),
        lambda b: [x(b, 3, 4, 5)],
    ),
    "embedding": (F.embedding, lambda b: [ids(10, b, 5), p(10, 8)]),
    "embedding_bag_2d": (
        lambda i, w: F.embedding_bag(i, w, mode="sum"),
        lambda b: [ids(10, b, 5), p(10, 8)],
    ),
    "embedding_bag_mean": (
        lambda i, w: F.embedding_bag(i, w, mode="mean"),
        lambda b: [ids(10, b, 5), p(10, 8)],
    ),
    "embedding_bag_max": (
        lambda i, w: F.embedding_bag(i, w, mode="max"),
        lambda b: [ids(10, b, 5), p(10, 8)],
    ),
    "embedding_bag_offsets": (
        lambda i, o, w: F.embedding_bag(i, w, o, mode="sum"),
        lambda b: [torch.randint(0, 10, (30,)), torch.arange(b), p(10, 8)],
    ),
    "cross_entropy": (F.cross_entropy, lambda b: [x(b, 7), ids(7, b)]),
    "cross_entropy_smooth": (
        lambda a, t: F.cross_entropy(a, t, label_smoothing=0.1),
        lambda b: [x(b, 7), ids(7, b)],
    ),
    "cross_entropy_flat": (
        lambda a, t: F.cross_entropy(a.view(-1, a.size(-1)), t.view(-1)),
        lambda b: [x(b, 5, 7), ids(7, b, 5)],
    ),
    "nll_loss2d": (lambda a, t: F.nll_loss(a, t), lambda b: [x(b, 7, 3, 4), ids(7, b, 3, 4)]),
    "mse_loss": (F.mse_loss, lambda b: [x(b, 7), x(b, 7)]),
    "bce_logits": (
        lambda a, t: F.binary_cross_entropy_with_logits(a, t.sigmoid()),
        lambda b: [x(b, 7), x(b, 7)],
    ),
    "smooth_l1": (F.smooth_l1_loss, lambda b: [x(b, 7), x(b, 7)]),
    "dropout": (lambda a: F.dropout(a, 0.5, True), lambda b: [x(b, 7)]),
    "bernoulli": (lambda a: a * torch.bernoulli(torch.full_like(a, 0.5)), lambda b: [x(b, 7)]),
    "sdpa": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
        lambda b: [x(b, 2, 5, 8), x(b, 2, 5, 8), x(b, 2, 5, 8)],
    ),
    "sdpa_causal_block": (attention, lambda b: [x(b, 5, 8), p(24, 8), p(8, 8)]),
    "sdpa_mask": (
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m),
        lambda b: [x(b, 2, 5, 8), x(b, 2, 5, 8), x(b, 2, 5, 8), torch.randn(5, 5)],
    ),
    "sdpa_dropout": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.1),
        lambda b: [x(b, 2, 5, 8), x(b, 2, 5, 8), x(b, 2, 5, 8)],
    ),
    "lstm_cell": (lstm_cell, lambda b: [x(b, 3, 4), x(b, 5), x(b, 5), p(20, 9), p(20)]),
    "cat": (lambda a, c: torch.cat([a, c], 1), lambda b: [x(b, 3, 4, 5), x(b, 2, 4, 5)]),
    "cat_cl": (lambda a, c: torch.cat([a, c], 1), lambda b: [cl(x(b, 3, 4, 5)), cl(x(b, 2, 4, 5))]),
    "stack": (lambda a, c: torch.stack([a, c], 1), lambda b: [x(b, 3), x(b, 3)]),
    "dlrm_interact": (
        lambda a, e: torch.bmm(
            torch.stack([a, e], 1), torch.stack([a, e], 1).transpose(1, 2)
        ).flatten(1),
        lambda b: [x(b, 8), x(b, 8)],
    ),
    "reductions": (
        lambda a: (
            a.sum(),
            a.mean(0),
            a.var(1),
            a.amax(1, True),
            a.std(),
            a.logsumexp(1),
            a.prod(1),
            a.norm(dim=1),
        ),
        lambda b: [x(b, 7)],
    ),
    "index_reductions": (
        lambda a: (a.max(1), a.argmax(1), a.min(0), a.topk(2, 1), a.sort(1)),
        lambda b: [x(b, 7)],
    ),
    "pointwise": (
        lambda a, c: (
            a + c,
            a * c.exp(),
            a / 2,
            a**2,
            -a,
            a.clamp(0, 1),
            a.tanh().abs(),
            torch.where(a > 0, a, c),
            a.rsqrt(),
        ),
        lambda b: [x(b, 7), x(b, 7)],
    ),
    "activations": (
        lambda a: (
            F.silu(a),
            F.gelu(a, approximate="tanh"),
            F.elu(a),
            F.leaky_relu(a),
            F.softplus(a),
            F.hardtanh(a),
            F.mish(a),
        ),
        lambda b: [x(b, 7)],
    ),
    "broadcast": (lambda a, c: (a + c, a.unsqueeze(2) * c, a - 1.5), lambda b: [x(b, 7), p(7)]),
    "broadcast_transposed": (lambda a, c: a.transpose(1, 2) * c, lambda b: [x(b, 3, 4), p(3)]),
    "gather": (lambda a, i: a.gather(1, i), lambda b: [x(b, 7), ids(7, b, 2)]),
    "index": (lambda a, i: (a[:, [1, 2]], a[0], a[i], a[1:, ::2]), lambda b: [x(b, 7), ids(2, b)]),
    "scatter": (lambda a, i: a.scatter_add(1, i, a), lambda b: [x(b, 7), ids(7, b, 7)]),
    "pad": (lambda a: F.pad(a, (1, 2)), lambda b: [x(b, 7)]),
    "pad_reflect": (lambda a: F.pad(a, (1, 2, 1, 1), mode="reflect"), lambda b: [x(b, 3, 5, 6)]),
    "views": (
        lambda a: (
            a.view(a.shape[0], 2, 6),
            a.transpose(1, 2),
            a.flatten(1),
            a[:, 0],
            a.permute(2, 0, 1),
            a.unsqueeze(1),
        ),
        lambda b: [x(b, 3, 4)],
    ),
    "cumsum": (lambda a: a.cumsum(1), lambda b: [x(b, 7)]),
    "in_place": (in_place, lambda b: [x(b, 8), p(16, 8)]),
    "autocast": (autocast, lambda b: [x(b, 8), p(8, 8)]),
    "to_dtype": (
        lambda a: (a.bfloat16(), a.double(), a.to(torch.int32), a.half()),
        lambda b: [x(b, 7)],
    ),
    "one_hot": (lambda i: F.one_hot(i, 10), lambda b: [ids(10, b, 3)]),
    "einsum": (lambda a, w: torch.einsum("bij,kj->bik", a, w), lambda b: [x(b, 3, 4), p(5, 4)]),
    "expand": (
        lambda a, c: c.expand(a.shape[0], 7) + a.mean(1, keepdim=True),
        lambda b: [x(b, 3), p(7)],
    ),
    "repeat": (lambda a: a.repeat(2, 3), lambda b: [x(b, 3)]),
    "tril": (
        lambda a: a.masked_fill(torch.ones(5, 5).tril() == 0, float("-inf")).softmax(-1),
        lambda b: [x(b, 5, 5)],
    ),
    "arange": (lambda a: torch.arange(a.shape[1]) + a, lambda b: [x(b, 7)]),
    "sym_scalar": (lambda a: a / a.shape[0] + a * a.shape[0] ** 0.5, lambda b: [x(b, 7)]),
    "rms_norm": (lambda a, w: F.rms_norm(a, (8,), w), lambda b: [x(b, 5, 8), p(8)]),
    "foreach": (lambda a, c: torch._foreach_add([a * 1, c * 1], 1.0), lambda b: [x(b, 3), x(b, 4)]),
}


@pytest.mark.parametrize("name", CASES)
def test_static_equals_real(name: str) -> None:
    function, make = CASES[name]
    check_static(with_gradients(function), make)


# ops that eager itself specialises to the batch size, or whose layout is decided by it
GUARDED = {"index", "pad_reflect"}


@pytest.mark.parametrize("name", CASES)
def test_symbolic_batch_equals_real(name: str) -> None:
    function, make = CASES[name]
    env = check_symbolic(with_gradients(function), make)
    if name not in GUARDED:
        assert [str(g) for g in env.guards] == []
