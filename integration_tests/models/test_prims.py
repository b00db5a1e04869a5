"""Training graphs of library models consist of prims; the extern ones are library calls only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import aotgrad
import primops
import pytest
import torch
from primops import ExternPrim, prim_of
from torch import nn
from torch._ops import OpOverload

ALLOWED = {
    "mm",
    "bmm",
    "convolution",
    "convolution_backward",
    "attention",
    "attention_backward",
    "sort",
    "topk",
    "kth",
    "mode",
    "search",
}
TOKENS = torch.arange(12).reshape(2, 6)


class Logits(nn.Module):
    """A Hugging Face model as a function of token ids."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=tokens, use_cache=False).logits


def hugging_face(name: str, **config: object) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    return Logits(getattr(transformers, f"{name}")(getattr(transformers, config.pop("config"))(**{**sizes, **config})))


def vision(library: str, name: str, **options: object) -> nn.Module:
    module = pytest.importorskip(library)
    return module.create_model(name, **options) if library == "timm" else getattr(module.models, name)(**options)


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...] | None]] = {
    "bert": (lambda: hugging_face("BertForMaskedLM", config="BertConfig"), None),
    "llama": (lambda: hugging_face("LlamaForCausalLM", config="LlamaConfig", num_key_value_heads=1), None),
    "gpt_neox": (lambda: hugging_face("GPTNeoXForCausalLM", config="GPTNeoXConfig"), None),
    "resnet18": (lambda: vision("torchvision", "resnet18", num_classes=4), (2, 3, 64, 64)),
    "googlenet": (
        lambda: vision("torchvision", "googlenet", num_classes=4, aux_logits=False, init_weights=False),
        (2, 3, 64, 64),
    ),
    "mobilenet_v3_small": (lambda: vision("torchvision", "mobilenet_v3_small", num_classes=4), (2, 3, 64, 64)),
    "densenet121": (lambda: vision("torchvision", "densenet121", num_classes=4, block_config=(2, 2)), (2, 3, 64, 64)),
    "convnext_atto": (lambda: vision("timm", "convnext_atto", num_classes=4), (2, 3, 32, 32)),
    "vit_tiny": (lambda: vision("timm", "vit_tiny_patch16_224", num_classes=4, img_size=32, depth=2), (2, 3, 32, 32)),
    "mixer": (lambda: vision("timm", "mixer_s32_224", num_classes=4, img_size=64, num_blocks=2), (2, 3, 64, 64)),
}


def training_graphs(model: nn.Module, x: torch.Tensor) -> list[torch.fx.GraphModule]:
    graphs: list[torch.fx.GraphModule] = []

    def keep(gm: torch.fx.GraphModule, examples: object) -> torch.fx.GraphModule:
        graphs.append(gm)
        return gm

    aotgrad.aot_module(model.train(), forward_compiler=keep)(x).square().mean().backward()
    return graphs


@pytest.mark.parametrize("name", MODELS)
def test_training_graphs_are_prims(name: str) -> None:
    make, shape = MODELS[name]
    torch.manual_seed(0)
    model, x = make(), TOKENS if shape is None else torch.randn(shape)
    graphs = training_graphs(model, x)
    assert len(graphs) == 2
    found: Counter[str] = Counter()
    for gm in graphs:
        made = primops.decompose(gm, strict=True)
        primops.check_prims(made)
        for node in made.graph.nodes:
            if isinstance(node.target, (primops.Prim, OpOverload)):
                prim = prim_of(node.target)
                assert prim is not None, node.format_node()
                found[f"{prim.name} (extern)" if isinstance(prim, ExternPrim) else prim.name] += 1
    print(f"\n{name}: " + " ".join(f"{prim}:{count}" for prim, count in found.most_common()))
    assert {prim.removesuffix(" (extern)") for prim in found if prim.endswith("(extern)")} <= ALLOWED
