"""The documented example of a kernel followed from the user's line is what is printed today; reasons are complete."""

import importlib.util
from pathlib import Path

import loopir
import primops
import pytest
import torch
from primops.testing import trace

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="nodes print differently")
def test_documented_example_is_current():
    spec = importlib.util.spec_from_file_location("loopir_example", ROOT / "tools" / "loopir_example.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.page() == module.TARGET.read_text()


def test_every_refused_fusion_of_a_training_graph_has_a_reason():
    def step(x, w1, w2, target):
        with torch.enable_grad():
            w1, w2 = w1.detach().requires_grad_(), w2.detach().requires_grad_()
            h = torch.nn.functional.gelu(torch.nn.functional.layer_norm(x @ w1, (32,)))
            loss = torch.nn.functional.cross_entropy(h @ w2, target)
            return loss.detach(), *torch.autograd.grad(loss, (w1, w2))

    args = (torch.randn(16, 24), torch.randn(24, 32), torch.randn(32, 10), torch.randint(0, 10, (16,)))
    program = loopir.schedule(loopir.lower(primops.decompose(trace(step, *args))))
    refused = [decision for decision in program.decisions if not decision.accepted]
    text = loopir.format_schedule(program)
    assert refused
    for decision in refused:
        assert decision.reason and f"kept apart: {decision.first} and {decision.second}: {decision.reason}" in text
