"""Whole models in plain torch: one graph, eager's outputs, gradients and buffers, at several batch
sizes.
"""

from __future__ import annotations

import copy
import subprocess
import sys

import bytecode_dynamo as bd
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils import _pytree as pytree


class MLP(nn.Module):
    def __init__(s):
        super().__init__()
        s.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        s.head = nn.Linear(4, 2)

    def forward(s, x):
        return s.head(F.gelu(s.net(x)))


class Block(nn.Module):
    def __init__(s, i, o, st=1):
        super().__init__()
        s.c1 = nn.Conv2d(i, o, 3, st, 1, bias=False)
        s.b1 = nn.BatchNorm2d(o)
        s.c2 = nn.Conv2d(o, o, 3, 1, 1, bias=False)
        s.b2 = nn.BatchNorm2d(o)
        s.down = None
        if st != 1 or i != o:
            s.down = nn.Sequential(nn.Conv2d(i, o, 1, st, bias=False), nn.BatchNorm2d(o))

    def forward(s, x):
        idt = x if s.down is None else s.down(x)
        y = F.relu(s.b1(s.c1(x)), inplace=True)
        y = s.b2(s.c2(y))
        y += idt
        return F.relu(y)


class ResNet(nn.Module):
    def __init__(s, w=8, blocks=(2, 2, 2, 2)):
        super().__init__()
        s.conv = nn.Conv2d(3, w, 7, 2, 3, bias=False)
        s.bn = nn.BatchNorm2d(w)
        s.relu = nn.ReLU(inplace=True)
        s.pool = nn.MaxPool2d(3, 2, 1)
        ls = []
        i = w
        for k, n in enumerate(blocks):
            o = w * 2**k
            bs = []
            for j in range(n):
                bs.append(Block(i, o, 2 if j == 0 and k > 0 else 1))
                i = o
            ls.append(nn.Sequential(*bs))
        s.layers = nn.ModuleList(ls)
        s.avg = nn.AdaptiveAvgPool2d(1)
        s.fc = nn.Linear(i, 10)

    def forward(s, x):
        x = s.pool(s.relu(s.bn(s.conv(x))))
        for l in s.layers:
            x = l(x)
        return s.fc(torch.flatten(s.avg(x), 1))


class UNet(nn.Module):
    def __init__(s):
        super().__init__()

        def dc(i, o):
            return nn.Sequential(
                nn.Conv2d(i, o, 3, padding=1),
                nn.BatchNorm2d(o),
                nn.ReLU(),
                nn.Conv2d(o, o, 3, padding=1),
                nn.ReLU(),
            )

        s.d1, s.d2, s.d3 = dc(3, 8), dc(8, 16), dc(16, 32)
        s.up2 = nn.ConvTranspose2d(32, 16, 2, 2)
        s.u2 = dc(32, 16)
        s.u1 = dc(24, 8)
        s.out = nn.Conv2d(8, 1, 1)

    def forward(s, x):
        a = s.d1(x)
        b = s.d2(F.max_pool2d(a, 2))
        c = s.d3(F.max_pool2d(b, 2))
        y = s.u2(torch.cat([s.up2(c), b], 1))
        y = F.interpolate(y, size=a.shape[2:], mode="bilinear", align_corners=False)
        return torch.sigmoid(s.out(s.u1(torch.cat([y, a], dim=1))))


class CausalSelfAttention(nn.Module):
    def __init__(s, d, h):
        super().__init__()
        s.qkv = nn.Linear(d, 3 * d)
        s.proj = nn.Linear(d, d)
        s.h = h
        s.d = d
        s.p = 0.0

    def forward(s, x):
        B, T, C = x.size()
        q, k, v = s.qkv(x).split(s.d, dim=2)
        q = q.view(B, T, s.h, C // s.h).transpose(1, 2)
        k = k.view(B, T, s.h, C // s.h).transpose(1, 2)
        v = v.view(B, T, s.h, C // s.h).transpose(1, 2)
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=None, dropout_p=s.p if s.training else 0, is_causal=True
        )
        return s.proj(y.transpose(1, 2).contiguous().view(B, T, C))


class GBlock(nn.Module):
    def __init__(s, d, h):
        super().__init__()
        s.l1 = nn.LayerNorm(d)
        s.at = CausalSelfAttention(d, h)
        s.l2 = nn.LayerNorm(d)
        s.m = nn.ModuleDict(dict(fc=nn.Linear(d, 4 * d), pr=nn.Linear(4 * d, d), act=nn.GELU()))

    def forward(s, x):
        x = x + s.at(s.l1(x))
        m = s.m
        return x + m.pr(m.act(m.fc(s.l2(x))))


class GPT(nn.Module):
    def __init__(s, V=50, d=32, h=4, n=2, T=16):
        super().__init__()
        s.T = T
        s.tr = nn.ModuleDict(
            dict(
                wte=nn.Embedding(V, d),
                wpe=nn.Embedding(T, d),
                drop=nn.Dropout(0.0),
                h=nn.ModuleList([GBlock(d, h) for _ in range(n)]),
                ln=nn.LayerNorm(d),
            )
        )
        s.head = nn.Linear(d, V, bias=False)
        s.tr.wte.weight = s.head.weight

    def forward(s, idx, tgt=None):
        _b, t = idx.size()
        assert t <= s.T, f"Cannot forward {t}"
        pos = torch.arange(0, t, dtype=torch.long, device=idx.device)
        x = s.tr.drop(s.tr.wte(idx) + s.tr.wpe(pos))
        for bl in s.tr.h:
            x = bl(x)
        x = s.tr.ln(x)
        if tgt is not None:
            lo = s.head(x)
            loss = F.cross_entropy(lo.view(-1, lo.size(-1)), tgt.view(-1), ignore_index=-1)
        else:
            lo = s.head(x[:, [-1], :])
            loss = None
        return lo, loss


class Enc(nn.Module):
    def __init__(s):
        super().__init__()
        s.l = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True, norm_first=False)
        s.drop = nn.Dropout(0.2)

    def forward(s, x):
        return s.drop(s.l(x))


class LSTMLoop(nn.Module):
    def __init__(s):
        super().__init__()
        s.cell = nn.LSTMCell(8, 16)
        s.out = nn.Linear(16, 4)

    def forward(s, x):
        h = x.new_zeros(x.size(0), 16)
        c = torch.zeros_like(h)
        outs = []
        for t in range(x.size(1)):
            h, c = s.cell(x[:, t], (h, c))
            outs.append(s.out(h))
        return torch.stack(outs, dim=1), (h, c)


class DLRM(nn.Module):
    def __init__(s):
        super().__init__()
        s.em = nn.ModuleList([nn.EmbeddingBag(20, 8, mode="sum") for _ in range(3)])
        s.bot = nn.Sequential(nn.Linear(5, 8), nn.ReLU())
        s.top = nn.Sequential(nn.Linear(8 + 6, 1), nn.Sigmoid())

    def forward(s, x, idx, off):
        d = s.bot(x)
        ls = [e(i, o) for e, i, o in zip(s.em, idx, off)]
        t = torch.stack([d, *ls], dim=1)
        z = torch.bmm(t, t.transpose(1, 2))
        li, lj = torch.triu_indices(4, 4, offset=1)
        return s.top(torch.cat([d, z[:, li, lj]], dim=1))


class Branch(nn.Module):
    def __init__(s):
        super().__init__()
        s.a = nn.Linear(4, 4)
        s.b = nn.Linear(4, 4)

    def forward(s, x):
        y = s.a(x)
        if y.sum() > 0:
            y = s.b(y)
        else:
            y = -s.b(y) * 2
        return y + 1


MODELS = {
    "mlp": (MLP, lambda n: (torch.randn(n, 8),)),
    "resnet": (ResNet, lambda n: (torch.randn(n, 3, 32, 32),)),
    "unet": (UNet, lambda n: (torch.randn(n, 3, 16, 16),)),
    "gpt": (GPT, lambda n: (torch.randint(0, 50, (n, 10)), torch.randint(0, 50, (n, 10)))),
    "gpt inference": (GPT, lambda n: (torch.randint(0, 50, (n, 10)),)),
    "encoder": (Enc, lambda n: (torch.randn(n, 6, 32),)),
    "lstm loop": (LSTMLoop, lambda n: (torch.randn(n, 5, 8),)),
    "dlrm": (
        DLRM,
        lambda n: (
            torch.randn(n, 5),
            [torch.randint(0, 20, (2 * n,)) for _ in range(3)],
            [torch.arange(0, 2 * n, 2) for _ in range(3)],
        ),
    ),
    "branch": (Branch, lambda n: (torch.randn(n, 4),)),
}


def tensors(value):
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def run(model, arguments):
    torch.manual_seed(1)
    result = model(*copy.deepcopy(arguments))
    return result


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_model_equals_eager(name, train, dynamic):
    make, arguments = MODELS[name]
    torch.manual_seed(0)
    model = make().train(train)
    twin = copy.deepcopy(model)
    captured = bd.optimize("eager", fullgraph=name != "branch", dynamic=dynamic)(twin)
    for batch in (2, 3):
        given = arguments(batch)
        expected, result = tensors(run(model, given)), tensors(run(captured, given))
        assert all(
            torch.equal(a, b) and a.requires_grad == b.requires_grad
            for a, b in zip(expected, result, strict=True)
        )
        if train:
            sum(t.float().sum() for t in expected if t.requires_grad).backward()
            sum(t.float().sum() for t in result if t.requires_grad).backward()
            pairs = zip(model.parameters(), twin.parameters(), strict=True)
            assert all(torch.equal(a.grad, b.grad) for a, b in pairs if a.grad is not None)
        assert all(
            torch.equal(a, b)
            for a, b in zip(model.state_dict().values(), twin.state_dict().values(), strict=True)
        )
    if name != "branch":
        assert bd.counters["graphs"] == (1 if dynamic else 2)


def test_parameters_and_buffers_are_static_placeholders_once():
    graphs = []

    def backend(gm, example_inputs):
        graphs.append(gm)
        return gm.forward

    model = GPT()
    bd.optimize(backend, fullgraph=True)(model.forward)(torch.randint(0, 50, (2, 10)))
    sources = {
        node.meta["source"]: node.meta["static"]
        for node in graphs[0].graph.nodes
        if node.op == "placeholder"
    }
    assert sources["L['idx']"] is False
    tied = [source for source in sources if source.endswith(("wte.weight", "head.weight"))]
    assert len(tied) == 1
    assert sources[tied[0]] is True


def test_upstream_compiler_is_never_imported():
    program = """
import sys, torch, bytecode_dynamo as bd
module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())

@bd.optimize("eager")
def step(x):
    torch.utils.checkpoint.checkpoint(module, x, use_reentrant=False).sum().backward()

step(torch.randn(2, 8))
assert not [name for name in sys.modules if name.startswith(("torch._dynamo", "torch._inductor"))]
"""
    subprocess.run([sys.executable, "-c", program], check=True)
