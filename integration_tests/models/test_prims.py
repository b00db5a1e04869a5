"""Training graphs of unmodified models consist of prims; the extern ones are library calls.
``pytest -s`` prints the prims.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import aotgrad
import bytecode_dynamo as bd
import primops
import pytest
import torch
from primops import ExternPrim, prim_of
from torch._ops import OpOverload
from torchstrata.host_calls import compile_pieces

from integration_tests.models.test_capture import ENTRIES, backward

ALLOWED = {
    "mm",
    "bmm",
    "grouped_mm",
    "grouped_mm_backward",
    "convolution",
    "convolution_backward",
    "attention",
    "attention_backward",
    "sort",
    "topk",
    "kth",
    "mode",
    "search",
    "as_strided",  # a view of overlapping windows, which moves no data
}
# where a model calls torch.fft, on complex numbers
FOURIER = {"fft_r2c", "fft_c2r", "fft_c2c", "complex", "to_device"}
QUICK = {
    "bert",
    "gpt2",
    "llama",
    "t5",
    "vit",
    "timm-efficientnet_b0",
    "torchvision-resnet18",
    "torchvision-squeezenet1_1",
}
NAMES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in ENTRIES]


@pytest.fixture(autouse=True)
def strict() -> Iterator[None]:
    bd.reset()
    with bd.config.patch(fallback="error"):
        yield


def training_graphs(name: str) -> list[torch.fx.GraphModule]:
    """The functional graphs, forward and backward, of one training step."""
    graphs: list[torch.fx.GraphModule] = []

    def keep(gm: torch.fx.GraphModule, examples: object) -> torch.fx.GraphModule:
        graphs.append(gm)
        return gm

    def backend(gm: torch.fx.GraphModule, examples: list[object]) -> Callable[..., object]:
        """In pieces, as the whole stack does it: wav2vec2 lets a result of its first layers require
        gradients.
        """
        return compile_pieces(gm, examples, aotgrad.aot_backend(keep))

    torch.manual_seed(0)
    model = ENTRIES[name].build().train()
    backward(model, bd.optimize(backend)(model)(**ENTRIES[name].example(model, 2, 12)))
    return graphs


@pytest.mark.parametrize("name", NAMES)
def test_training_graphs_are_prims(name: str) -> None:
    found: Counter[str] = Counter()
    graphs = training_graphs(name)
    for gm in graphs:
        made = primops.decompose(gm, strict=True)
        primops.check_prims(made)
        for node in made.graph.nodes:
            if isinstance(node.target, (primops.Prim, OpOverload)):
                prim = prim_of(node.target)
                assert prim is not None, node.format_node()
                found[prim.name + " (extern)" * isinstance(prim, ExternPrim)] += 1
    print(f"\n{name}: " + ", ".join(f"{count} {prim}" for prim, count in found.most_common()))
    calls = [
        node.target.name()
        for gm in graphs
        for node in gm.graph.nodes
        if isinstance(node.target, OpOverload)
    ]
    extern = {prim.removesuffix(" (extern)") for prim in found if prim.endswith("(extern)")}
    assert extern <= (ALLOWED | FOURIER if any("::_fft_" in call for call in calls) else ALLOWED)
