"""What backward draws again from a kept seed is generated code, with the mask of forward."""

from __future__ import annotations

import aotgrad
import primops
import torch
import torch.nn.functional as F
import torchstrata
from torch.utils.checkpoint import checkpoint


def draws_in_many_ways(x):
    y = F.dropout(x, 0.5) + torch.rand_like(x) + torch.randn(8, 8) + torch.normal(0.0, 1.0, (8, 8))
    return (
        F.rrelu(y, training=True)
        * torch.bernoulli(torch.full_like(x, 0.3))
        * torch.randint(1, 5, (8, 8))
    )


def checkpointed(x):
    return checkpoint(lambda y: draws_in_many_ways(y.sin()) @ y, x, use_reentrant=False).cos()


def test_seeded_ops_become_prims():
    graphs = []

    def keep(gm, inputs):
        graphs.append(gm)
        return aotgrad.run_eager(gm, inputs)

    x = torch.randn(8, 8, requires_grad=True)
    aotgrad.aot_function(checkpointed, forward_compiler=keep)(x).sum().backward()
    assert all("seeded" in str(gm.graph) for gm in graphs)
    for gm in map(primops.decompose, graphs):
        assert "seeded" not in str(gm.graph) and not [
            n for n in gm.graph.nodes if "aotgrad" in str(n.target)
        ]


def test_backward_has_forwards_mask():
    f = torchstrata.compile(
        lambda x: checkpoint(lambda y: F.dropout(y.sin(), 0.5), x, use_reentrant=False),
        fullgraph=True,
    )
    x = torch.randn(64, 64, requires_grad=True)
    first, second = f(x), f(x)
    for y in (first, second):
        (g,) = torch.autograd.grad(y.sum(), x)
        torch.testing.assert_close(g, (y != 0) * 2 * x.cos())
    assert not torch.equal(first, second)
