"""Operators for which torch's Python dispatcher has a kernel of its own: it runs before our rules
see the operator.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
import torchstrata
from primops import DEFAULT

KEYS = (torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd)
# Why torch's kernel stays in front of our rule.
IN_FRONT = {
    "native_batch_norm": "its schema hides that it writes running statistics; torch's form names "
    "an operator that says so",
    "cudnn_batch_norm": "as native_batch_norm",
    "unsafe_chunk": "eager is a composite of split, too",
}


@pytest.fixture(autouse=True)
def _strict(monkeypatch):
    torchstrata.reset()
    monkeypatch.setattr(torchstrata.config, "fallback", "error")


def _overloads():
    for name in dir(torch.ops.aten):
        packet = getattr(torch.ops.aten, name)
        if isinstance(packet, torch._ops.OpOverloadPacket):
            yield from (getattr(packet, overload) for overload in packet.overloads())


def test_no_kernel_of_torch_hides_a_rule():
    torchstrata.compile(torch.sin)(torch.ones(2))  # installs our kernels
    hidden = {
        str(op)
        for op in _overloads()
        for key in KEYS
        if op in DEFAULT
        and key in op.py_kernels
        and op.py_kernels[key].__module__ != "symshapes.fake.composite"
    }
    assert {name.split(".")[1] for name in hidden} <= set(IN_FRONT), hidden


def check(function, *inputs):
    results = []
    for call in (function, torchstrata.compile(function, fullgraph=True)):
        leaves = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
        result = call(*leaves)
        gradients = torch.autograd.grad(result.sum(), [x for x in leaves if x.requires_grad])
        results.append((result, gradients))
    torch.testing.assert_close(*results)


ROWS = torch.tensor([[0.1, 0.2, 0.4, 0.8], [1.5, -0.5, 0.0, 2.0], [0.3, 0.3, 0.3, 0.3]])


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("rows", [slice(None), 0])
def test_multilabel_margin_loss_stops_at_padding(rows, reduction):
    labels = torch.tensor([[3, 0, -1, 1], [-1, 2, 2, 2], [0, 1, 2, 3]])
    check(
        lambda x, t: F.multilabel_margin_loss(x, t, reduction=reduction), ROWS[rows], labels[rows]
    )


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("rows", [slice(None), 0])
def test_multi_margin_loss(rows, p, reduction):
    def loss(x, target, weight):
        plain = F.multi_margin_loss(x, target, p=p, margin=0.3, reduction=reduction)
        return (
            plain
            + F.multi_margin_loss(x, target, p=p, weight=weight.detach(), reduction=reduction)
            * weight.sum()
        )

    check(loss, ROWS[rows], torch.tensor([1, 0, 2])[rows], torch.rand(4))
    check(loss, ROWS[0], torch.tensor([1]), torch.rand(4))


COMPOSITES = {
    "unsafe_chunk": lambda x: torch.stack(torch.unsafe_chunk(x, 3, 1)),
    "tensor_split": lambda x: torch.tensor_split(x, 3, 1)[1] * 2,
    "tensor_split with positions": lambda x: torch.tensor_split(x, torch.tensor([1, -2]), 1)[1] * 2,
    "pad_sequence": lambda x: torch.nn.utils.rnn.pad_sequence([x[0], x[1, :2]], True, 0.5,
    padding_side="left"),
    "broadcast_tensors": lambda x: torch.broadcast_tensors(x, x[:1])[1] * x,
    "stft": lambda x: torch.stft(x.flatten(), 6, window=torch.hann_window(6),
    return_complex=True).abs(),
    "istft": lambda x: torch.istft(torch.complex(x, x * 0), 6, window=torch.ones(6)),
    "matmul": lambda x: torch.matmul(x[None], x.mT) @ x[:, 0],
    "native_batch_norm": lambda x: torch.native_batch_norm(x, None, None, None, None, True, 0.1,
    1e-5)[0].square(),
    "one_hot": lambda x: F.one_hot(x.detach().abs().long(), 9) * x.sum(),
}  # fmt: skip


@pytest.mark.parametrize("name", COMPOSITES)
def test_composites_written_in_python(name):
    check(COMPOSITES[name], torch.linspace(-2, 3, 24).reshape(4, 6) ** 3 / 4)
