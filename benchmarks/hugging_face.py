"""Hugging Face architectures with random weights, two layers of usual widths, and padded masks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from integration_tests.models import hf
from integration_tests.models.hf import (
    DECODER,
    ENCODER,
    EXTRA,
    NAMED,
    SEQUENCE_TO_SEQUENCE,
    T5,
    HuggingFace,
)

BATCH, LENGTH, SHORT, FACTOR = 8, 128, 24, 8
GROWN = {
    *("hidden_size", "intermediate_size", "dim", "hidden_dim", "ffn_dim", "word_embed_proj_dim"),
    *("embedding_size", "n_embd", "d_model", "d_ff", "d_kv", "d_inner", "d_head", "head_dim"),
    *("encoder_ffn_dim", "decoder_ffn_dim", "embed_dim", "hidden_sizes", "neck_hidden_sizes"),
    *("intra_bottleneck_size", "moe_intermediate_size", "shared_expert_intermediate_size"),
    *("decoder_hidden_size", "decoder_intermediate_size", "rotary_dim", "projection_dim"),
    *("projection_size", "encoder_hidden_size", "image_text_hidden_size", "vocab_size"),
    *("max_position_embeddings", "n_positions", "conv_dim", "cross_attention_hidden_size"),
}
MORE = [
    HuggingFace("bigbird", "BigBirdForMaskedLM", {**ENCODER, "block_size": 4}, hf.padded),
    HuggingFace(
        "blenderbot", "BlenderbotForConditionalGeneration", SEQUENCE_TO_SEQUENCE, hf.translated
    ),
    HuggingFace(
        "blenderbot-small",
        "BlenderbotSmallForConditionalGeneration",
        SEQUENCE_TO_SEQUENCE,
        hf.translated,
    ),
    HuggingFace("layoutlm", "LayoutLMForMaskedLM", ENCODER, hf.padded),
    HuggingFace("m2m100", "M2M100ForConditionalGeneration", SEQUENCE_TO_SEQUENCE, hf.translated),
    HuggingFace("mt5", "MT5ForConditionalGeneration", T5, hf.translated),
    HuggingFace("megatron-bert", "MegatronBertForMaskedLM", ENCODER, hf.padded),
    HuggingFace("plbart", "PLBartForConditionalGeneration", SEQUENCE_TO_SEQUENCE, hf.translated),
    HuggingFace(
        "xglm",
        "XGLMForCausalLM",
        {
            **{name: DECODER[name] for name in ("vocab_size", "max_position_embeddings")},
            "d_model": 32,
            "ffn_dim": 64,
            "num_layers": 2,
            "attention_heads": 4,
        },
        hf.padded,
    ),
    HuggingFace(
        "trocr",
        "TrOCRForCausalLM",
        {
            **{name: DECODER[name] for name in ("vocab_size", "max_position_embeddings")},
            "d_model": 32,
            "decoder_layers": 2,
            "decoder_attention_heads": 4,
            "decoder_ffn_dim": 64,
        },
        hf.padded,
    ),
]
ENTRIES = {entry.name: entry for entry in (*NAMED, *EXTRA, *MORE)}


def _grown(settings: dict[str, Any]) -> dict[str, Any]:
    def grow(name: str, value: Any) -> Any:
        if isinstance(value, dict):
            return _grown(value)
        if name not in GROWN:
            return value
        return [FACTOR * item for item in value] if isinstance(value, list) else FACTOR * value

    return {name: grow(name, value) for name, value in settings.items()}


def padded(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The inputs with a mask that ends the first sequence early, and labels other than the ids:
    tied embeddings predict those without a loss, and gradients would be zero.
    """
    masked = next((inputs[name] for name in ("input_ids", "input_values") if name in inputs), None)
    if masked is None:
        return inputs
    mask = torch.ones(masked.shape, dtype=torch.int64)
    mask[0, mask.shape[1] // 2 :] = 0
    inputs = {**inputs, "attention_mask": mask}
    if inputs.get("labels") is inputs.get("input_ids"):
        inputs["labels"] = masked.roll(1, dims=1)
    return inputs


def build(name: str) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """A model and keyword arguments of a call."""
    entry = ENTRIES[name]
    length = SHORT if "max_target_positions" in entry.settings else LENGTH
    model = dataclasses.replace(
        entry, settings=_grown(entry.settings), nested=_grown(entry.nested)
    ).build()
    return model, padded(entry.example(model, BATCH, length))


MODELS: dict[str, Callable[[], tuple[nn.Module, dict[str, torch.Tensor]]]] = {
    f"hf-{name}": lambda name=name: build(name) for name in ENTRIES
}
