"""Networks of convolutions and batch norms in training on a GPU: gradients are eager's."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
import torchstrata
from torch import nn

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def _block(inside: int, outside: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, padding=1, bias=False), nn.BatchNorm2d(outside), nn.ReLU()
    )


class ThreeConvolutions(nn.Module):
    """With its loss inside, and more than 1 MiB of gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(_block(3, 64), _block(64, 128), _block(128, 256))

    def forward(self, x):
        return self.layers(x).square().mean()


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([_block(3, 32), _block(32, 64), _block(64, 128)])
        self.up = nn.ModuleList([_block(192, 64), _block(96, 32)])
        self.last = nn.Conv2d(32, 3, 1)

    def forward(self, x):
        kept = []
        for layer in self.down:
            x = layer(x)
            kept.append(x)
            x = F.max_pool2d(x, 2)
        x = kept.pop()
        for layer in self.up:
            x = layer(torch.cat([F.interpolate(x, scale_factor=2), kept.pop()], 1))
        return self.last(x).square().mean()


class Generator(nn.Module):
    """As in DCGAN."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (64, 256, 128, 64)
        layers = []
        for number, (inside, outside) in enumerate(pairwise(sizes)):
            layers += [
                nn.ConvTranspose2d(
                    inside, outside, 4, 2 if number else 1, 1 if number else 0, bias=False
                )
            ]
            layers += [nn.BatchNorm2d(outside), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Tanh())

    def forward(self, x):
        return self.layers(x[:, :, :1, :1].repeat(1, 22, 1, 1)[:, :64]).square().mean()


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("model", [ThreeConvolutions, UNet, Generator])
def test_gradients(model, autocast):
    torch.manual_seed(0)
    net = model().cuda()
    compiled = torchstrata.compile(net, fullgraph=True)

    def gradients(f, x):
        net.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            loss = f(x)
        loss.backward()
        return {
            "loss": loss.detach(),
            **{name: p.grad.clone() for name, p in net.named_parameters()},
        }

    for _ in range(3):
        x = torch.randn(8, 3, 32, 32, device="cuda")
        ours, eager = gradients(compiled, x), gradients(net, x)
        for name, value in ours.items():
            assert value.isfinite().all(), name
            scale = eager[name].abs().max()
            # cuDNN multiplies in TF32 by default
            assert (value - eager[name]).abs().max() <= (
                0.1 if autocast else 5e-2
            ) * scale + 1e-6, name
