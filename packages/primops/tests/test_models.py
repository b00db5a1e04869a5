"""Small models, forward and backward, decomposed and evaluated against eager."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from primops import decomposition_report
from primops.decompositions import max_pooling
from primops.testing import check_against_eager
from primops.text import format_graph

LIBRARY_CALLS = {
    f"aten.{name}.default"
    for name in (
        *("mm", "addmm", "bmm", "convolution", "convolution_backward", "mkldnn_convolution"),
        *(
            "max_pool2d_with_indices",
            "max_pool2d_with_indices_backward",
            "upsample_bilinear2d_backward",
        ),
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention_for_cpu_backward",
    )
}


def with_gradients(loss):
    """``loss`` and its gradients, as one function of the parameters (floats) and inputs
    (integers).
    """

    def step(*tensors):
        leaves = [t.detach().requires_grad_() if t.is_floating_point() else t for t in tensors]
        value = loss(*leaves)
        found = torch.autograd.grad(value, [t for t in leaves if t.requires_grad])
        return (value.detach(), *found)

    return step


def mlp(x, w1, b1, w2):
    return F.mse_loss(F.linear(F.silu(F.linear(x, w1, b1)), w2), x.flip(0))


def cnn(x, w1, gamma, beta, w2, target):
    y = F.max_pool2d(
        F.relu(F.batch_norm(F.conv2d(x, w1, padding=1), None, None, gamma, beta, True)), 2
    )
    return F.cross_entropy(F.linear(F.adaptive_avg_pool2d(y, 1).flatten(1), w2), target)


def attention(x, w, g, b, emb, tokens):
    y = x + F.embedding(tokens, emb)
    q, k, v = (
        part.view(2, 5, 2, 4).transpose(1, 2)
        for part in F.linear(F.layer_norm(y, (8,), g, b), w).chunk(3, -1)
    )
    y = y + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(2, 5, 8)
    return F.cross_entropy(F.gelu(y).view(-1, 8), tokens.view(-1))


def lstm_cell(x, h, c, w, u, b):
    for step in x.unbind(1):
        i, f, g, o = (F.linear(step, w, b) + F.linear(h, u)).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
    return h.pow(2).mean()


def upsampling(x, w):
    y = torch.cat(
        [F.interpolate(x, scale_factor=2, mode="bilinear"), F.interpolate(x, scale_factor=2)], 1
    )
    return F.conv2d(y, w).abs().mean()


def adam_step(p, grad, m, v):
    m = torch.lerp(m, grad, 0.1)
    v = v * 0.999 + grad * grad * 0.001
    return p.addcdiv(m / 0.1, (v / 0.001).sqrt() + 1e-8, value=-1e-3), m, v.abs()


def models():
    r = torch.randn
    return {
        "mlp": (with_gradients(mlp), r(4, 8), r(16, 8), r(16), r(8, 16)),
        "cnn": (
            with_gradients(cnn),
            r(2, 3, 8, 8),
            r(4, 3, 3, 3),
            r(4),
            r(4),
            r(5, 4),
            torch.tensor([1, 4]),
        ),
        "attention": (
            with_gradients(attention),
            r(2, 5, 8),
            r(24, 8),
            r(8),
            r(8),
            r(8, 8),
            torch.randint(8, (2, 5)),
        ),
        "lstm": (
            with_gradients(lstm_cell),
            r(2, 3, 4),
            r(2, 5),
            r(2, 5),
            r(20, 4),
            r(20, 5),
            r(20),
        ),
        "upsampling": (with_gradients(upsampling), r(1, 2, 4, 4), r(3, 4, 1, 1)),
        "adam": (adam_step, r(9), r(9), r(9), r(9).abs()),
    }


@pytest.mark.parametrize("numerics", ["fast", "eager"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("name", models())
def test_model_equals_eager(name, dtype, numerics):
    torch.manual_seed(0)
    step, *inputs = models()[name]
    inputs = [x.to(dtype) if x.is_floating_point() else x for x in inputs]
    gm = check_against_eager(step, *inputs, numerics=numerics, strict=True)
    assert set(decomposition_report(gm).externs) <= LIBRARY_CALLS


def test_layer_norm_as_text(golden):
    gm = check_against_eager(
        lambda x, w: F.layer_norm(x, (8,), w),
        torch.randn(4, 8).bfloat16(),
        torch.randn(8).bfloat16(),
    )
    golden(format_graph(gm, lines=False))


def test_cross_entropy_as_text(golden):
    gm = check_against_eager(
        with_gradients(F.cross_entropy), torch.randn(4, 8), torch.randint(8, (4,))
    )
    golden(format_graph(gm, lines=False))


@pytest.mark.parametrize("spatial", [2, 3])
def test_gradients_of_maxima_lie_as_the_image(spatial, monkeypatch):
    """Channels-last: channels stay next to each other where gradients are added up, on GPUs."""
    monkeypatch.setattr(max_pooling, "SIDE_BY_SIDE", {"cpu"})
    image = torch.randn(2, 3, *[6] * spatial).to(
        memory_format=torch.channels_last if spatial == 2 else torch.channels_last_3d
    )
    pool = (F.max_pool2d, F.max_pool3d)[spatial - 2]

    def step(x):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(pool(x.sin(), 3, 2, 1).square().sum(), [x])[0]

    graph = check_against_eager(step, image)
    (scatter,) = (node for node in graph.graph.nodes if "scatter_add" in str(node.target))
    assert scatter.kwargs["dim"] == 1
