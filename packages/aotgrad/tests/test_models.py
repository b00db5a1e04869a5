"""Small models against eager in float64: outputs, gradients, buffers; modules directly and captured
graphs.
"""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from aotgrad import aot_backend, aot_module, run_eager
from torch import nn


class TransformerBlock(nn.Module):
    def __init__(self, width=16, heads=4, dropout=0.0):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )
        self.heads = heads

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class LstmLoop(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.LSTMCell(6, 8), nn.Linear(8, 2)

    def forward(self, x):
        h = c = x.new_zeros(x.shape[0], 8)
        for t in range(x.shape[1]):
            h, c = self.cell(x[:, t], (h, c))
        return self.head(h), c


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(10, 4, mode="sum") for _ in range(2))
        self.mlp = nn.Sequential(nn.Linear(3 + 8, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, dense, indices):
        bags = [bag(indices[i]) for i, bag in enumerate(self.bags)]
        return torch.sigmoid(self.mlp(torch.cat([dense, *bags], 1)))


class Unet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.mid = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.up, self.out = nn.ConvTranspose2d(4, 4, 2, stride=2), nn.Conv2d(8, 1, 1)

    def forward(self, x):
        a = F.relu(self.down(x))
        b = self.up(F.relu(self.mid(F.max_pool2d(a, 2))))
        c = F.interpolate(F.avg_pool2d(b, 2), scale_factor=2, mode="bilinear")
        return self.out(torch.cat([a, b + c], 1))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(11, 16), nn.Embedding(6, 16)
        self.blocks = nn.ModuleList(TransformerBlock() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 11, bias=False)

    def forward(self, ids, labels):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, 11), labels.view(-1)), logits


def resnet_like():
    features = [
        nn.Conv2d(3, 8, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
    ]
    return nn.Sequential(*features, nn.Flatten(), nn.Linear(72, 3))


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


MODELS = {
    "mlp": (
        lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)),
        lambda: (randn(5, 4),),
    ),
    "conv": (resnet_like, lambda: (randn(2, 3, 8, 8),)),
    "conv_channels_last": (
        resnet_like,
        lambda: (randn(2, 3, 8, 8).to(memory_format=torch.channels_last),),
    ),
    "transformer": (TransformerBlock, lambda: (randn(2, 5, 16),)),
    "lstm": (LstmLoop, lambda: (randn(3, 4, 6),)),
    "recommender": (Recommender, lambda: (randn(3, 3), torch.randint(0, 10, (2, 3, 4)))),
    "unet": (Unet, lambda: (randn(2, 2, 8, 8),)),
    "gpt": (Gpt, lambda: (torch.randint(0, 11, (2, 6)), torch.randint(0, 11, (2, 6)))),
    "dropout": (lambda: TransformerBlock(dropout=0.5), lambda: (randn(2, 5, 16),)),
    "group_norm": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.SiLU()),
        lambda: (randn(2, 2, 6, 6),),
    ),
}


def loss_of(outputs):
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return sum(
        (o * torch.linspace(0, 1, o.numel(), dtype=o.dtype).view(o.shape)).sum()
        for o in outputs
        if o.requires_grad
    )


@pytest.mark.parametrize("partition", ["min_cut", "default"])
@pytest.mark.parametrize("name", list(MODELS))
def test_training_steps_equal_eager(name, partition):
    torch.manual_seed(0)
    make_model, make_inputs = MODELS[name]
    eager = make_model().double()
    ours = copy.deepcopy(eager)
    compiled = aot_module(ours, forward_compiler=run_eager, partition=partition)
    optimisers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (eager, ours)]
    for step in range(3):
        inputs = make_inputs()
        results = []
        for model, optimiser in zip((eager, compiled), optimisers):
            torch.manual_seed(step)
            outputs = model(*inputs)
            optimiser.zero_grad()
            loss_of(outputs).backward()
            optimiser.step()
            results.append(outputs)
        torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-10)
        for (label, a), b in zip(eager.state_dict().items(), ours.state_dict().values()):
            torch.testing.assert_close(
                b, a, rtol=1e-9, atol=1e-10, msg=lambda text, label=label: f"{label}: {text}"
            )


@pytest.mark.parametrize("name", list(MODELS))
def test_inference_equals_eager(name):
    torch.manual_seed(0)
    make_model, make_inputs = MODELS[name]
    model = make_model().double().eval()
    compiled = aot_module(model, forward_compiler=run_eager)
    inputs = make_inputs()
    with torch.no_grad():
        torch.testing.assert_close(compiled(*inputs), model(*inputs))
    with torch.inference_mode():
        torch.testing.assert_close(compiled(*inputs), model(*inputs))


def test_graph_modules_lift_their_own_parameters():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).double()
    gm = torch.fx.symbolic_trace(copy.deepcopy(model))
    x = randn(5, 4)
    call = aot_backend(run_eager)(gm, [x])
    for _ in range(2):
        (out,), expected = call(x), model(x)
        torch.testing.assert_close(out, expected)
        loss_of(out).backward()
        loss_of(expected).backward()
    for a, b in zip(gm.parameters(), model.parameters()):
        torch.testing.assert_close(a.grad, b.grad)
    for a, b in zip(gm.buffers(), model.buffers()):
        torch.testing.assert_close(a, b)


def test_dropout_uses_one_mask_in_forward_and_backward():
    x = torch.ones(1000, dtype=torch.float64, requires_grad=True)
    compiled = aot_module(nn.Dropout(0.25), forward_compiler=run_eager)
    y = compiled(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad, y.detach())
    assert set(y.tolist()) == {0.0, 1 / 0.75}
    assert 650 < (y > 0).sum() < 850


@pytest.mark.parametrize("entry", [True, False])
def test_autocast_keeps_eagers_dtypes(entry):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))

    class Region(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, x):
            with torch.autocast(
                "cpu", dtype=torch.bfloat16, enabled=not entry or torch.is_autocast_enabled("cpu")
            ):
                y = self.inner(x)
            return y, x @ x.t()

    eager = Region()
    compiled = aot_module(copy.deepcopy(eager), forward_compiler=run_eager)
    x = torch.randn(5, 4)
    results = []
    for m in (eager, compiled):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=entry):
            out = m(x)
        sum(o.float().sum() for o in out).backward()
        results.append(out)
    assert [o.dtype for o in results[0]] == [o.dtype for o in results[1]]
    torch.testing.assert_close(results[1], results[0], rtol=2e-2, atol=2e-2)
    for a, b in zip(compiled.module.parameters(), eager.parameters()):
        assert a.grad.dtype == b.grad.dtype
        torch.testing.assert_close(a.grad, b.grad, rtol=3e-2, atol=3e-2)
