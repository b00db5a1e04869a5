"""Convolution nets channels-last: eager's gradients, strides and statistics; what lies how in the
parted graphs.
"""

from __future__ import annotations

import copy

import aotgrad
import inductor_triton
import loopir
import primops
import pytest
import torch
import torchstrata
from loopir.patterns import joint
from loopir.patterns.match import has_format, meta_of, name_of
from symshapes import FakeTensorMode
from torch import nn
from torch.nn import functional as F


class Images(nn.Module):
    """What convolution nets are made of."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16)
        self.depthwise, self.wide = nn.Conv2d(16, 16, 3, 1, 1, groups=16), nn.Conv2d(16, 32, 1)
        self.groups, self.rows, self.inner = (
            nn.GroupNorm(4, 32),
            nn.LayerNorm(32),
            nn.Linear(32, 32),
        )
        self.head, self.up = nn.Linear(32, 5), nn.ConvTranspose2d(32, 16, 2, 2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = F.max_pool2d(torch.relu(self.norm(self.stem(x))), 3, 2, 1)
        x = self.wide(F.silu(self.depthwise(x)))
        x = self.groups(x * x.mean((2, 3), keepdim=True).sigmoid())
        x = x + F.gelu(self.inner(self.rows(x.permute(0, 2, 3, 1)))).permute(0, 3, 1, 2)
        up = self.up(x)
        up = F.interpolate(torch.cat([up, up * 2], 1), scale_factor=2)
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1)), up


@pytest.fixture
def everywhere(monkeypatch):
    """Channels-last on the CPU, too; the joint graphs that it made."""
    made = []

    def recorded(gm):
        made.append(joint.lay_out_images(gm))
        return made[-1]

    def wanted(node):
        image = node.args[0] if name_of(node) == "convolution" else node.args[1]
        return meta_of(image).ndim == 4

    monkeypatch.setattr(joint, "_is_wanted", wanted)
    monkeypatch.setattr(loopir, "lay_out_images", recorded)
    return made


def test_values_gradients_and_strides(everywhere):
    torch.manual_seed(0)
    net = Images()
    other, x = copy.deepcopy(net), torch.randn(4, 3, 16, 16, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    found, expected = (
        torchstrata.compile(net, options={"verify": "contracts", "fallback": "error"})(x),
        other(y),
    )
    for a, b in zip(found, expected):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, check_stride=True)
    for outputs in (found, expected):
        sum(value.square().mean() for value in outputs).backward()
    pairs = [
        (x.grad, y.grad),
        *((a.grad, b.grad) for a, b in zip(net.parameters(), other.parameters())),
    ]
    for a, b in [*pairs, *zip(net.buffers(), other.buffers())]:
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5, check_stride=True)
    (made,) = everywhere
    images = [node.args[:2] for node in made.graph.nodes if name_of(node) == "convolution_backward"]
    assert len(images) == 4
    assert all(has_format(meta_of(node), torch.channels_last) for pair in images for node in pair)


def test_sequences_of_places(everywhere):
    """Rows of channels stay rows where an image becomes a sequence; inference is laid out with its
    own patterns.
    """
    net = nn.Sequential(nn.Conv2d(3, 8, 2, 2), nn.Flatten(2))

    def tokens(x):
        y = net(x).transpose(1, 2)
        return F.layer_norm(y + 1, (8,)) + y

    x = torch.randn(2, 3, 12, 12)
    compiled = torchstrata.compile(tokens, options={"verify": "contracts"})
    torch.testing.assert_close(compiled(x), tokens(x), rtol=1e-4, atol=1e-4, check_stride=True)
    rows = [meta_of(node) for node in everywhere[0].graph.nodes if name_of(node) == "add"]
    assert [meta.strides for meta in rows[:2]] == [(288, 8, 1)] * 2
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), tokens(x), rtol=1e-4, atol=1e-4, check_stride=True)
    assert everywhere[1] is None


def test_few_copies(everywhere):
    """Convolutions hand images on as they are."""
    net = nn.Sequential(
        *(nn.Sequential(nn.Conv2d(8, 8, 3, 1, 1), nn.BatchNorm2d(8), nn.ReLU()) for _ in range(4))
    )
    torchstrata.compile(net)(torch.randn(2, 8, 6, 6)).sum().backward()
    (made,) = everywhere
    turned = [
        node
        for node in made.graph.nodes
        if name_of(node) == "clone" and len(meta_of(node).shape) == 4
    ]
    images = [node for node in turned if meta_of(node).shape == (2, 8, 6, 6)]
    assert len(images) <= 3  # the image, the result, its gradient


@pytest.mark.parametrize("net", [nn.Conv1d(4, 4, 3), nn.Linear(9, 4)])
def test_nothing_to_do(everywhere, net):
    torchstrata.compile(net)(torch.randn(2, 4, 9)).sum().backward()
    assert everywhere == [None]


def test_cpu_is_left_alone():
    seen = []
    backend = aotgrad.aot_backend(
        lambda gm, _: gm, passes=(lambda gm: seen.append(loopir.lay_out_images(gm)),)
    )
    torchstrata.compile(nn.Conv2d(4, 8, 3), backend=backend)(
        torch.randn(2, 4, 6, 6)
    ).sum().backward()
    assert seen == [None]


def test_half_precision_on_cuda():
    """From fakes of a device that need not be there to kernels in Triton."""
    aten, mode = torch.ops.aten, FakeTensorMode()
    window = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)

    def step(x, weight, grad):
        y = aten.relu.default(aten.convolution.default(x, weight, *window))
        first, second, _ = aten.convolution_backward.default(
            aten.threshold_backward.default(grad, y, 0), x, weight, *window, [True, True, False]
        )
        return y, first, second

    with mode:
        shapes = (4, 16, 8, 8), (32, 16, 3, 3), (4, 32, 8, 8)
        fakes = [torch.empty(shape, device="cuda", dtype=torch.bfloat16) for shape in shapes]
        gm = aotgrad.trace_functional(step, fakes)
    made = loopir.lay_out_images(gm)
    assert made is not None
    images = [
        x
        for node in made.graph.nodes
        for x in node.args[: joint.OPERANDS.get(name_of(node), (-1,))[-1] + 1]
    ]
    assert all(has_format(meta_of(x), torch.channels_last) for x in images)
    codegens = {"cuda": inductor_triton.TritonCodeGenerator(templates="never")}
    graph = primops.decompose(loopir.rewrite_patterns(made, codegens))
    program = loopir.schedule(loopir.lower(graph), loopir.Options(), codegens)
    loopir.check_program(program)
    assert len(loopir.generate(program, codegens)) <= 6
