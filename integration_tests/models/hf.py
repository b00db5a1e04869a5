"""Unmodified Hugging Face models, built from small configurations with random weights."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from integration_tests.models.vision import import_torchvision

VOCABULARY = 100
TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
ENCODER = {**TEXT, "intermediate_size": 64, "max_position_embeddings": 64}
DECODER = {**ENCODER, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GROUPED = {**DECODER, "num_key_value_heads": 2}
IMAGE = {
    "image_size": 32,
    "patch_size": 8,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
SEQUENCE_TO_SEQUENCE = {
    "vocab_size": VOCABULARY, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2,
    "forced_eos_token_id": 2,
}  # fmt: skip
T5 = {
    "vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2,
    "num_decoder_layers": 2, "num_heads": 4,
    "decoder_start_token_id": 0,
}  # fmt: skip
SOUND = {
    **TEXT, "intermediate_size": 64, "conv_dim": [8, 8], "conv_stride": [5, 2],
    "conv_kernel": [10, 3],
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2, "apply_spec_augment": False,
}  # fmt: skip
STAGES = {"num_channels": 3, "image_size": 32, "depths": [1, 1, 1, 1]}

Inputs = Callable[[Any, int, int], dict[str, torch.Tensor]]


def tokens(batch: int, length: int) -> torch.Tensor:
    """Token ids without the special ones."""
    return torch.randint(3, VOCABULARY, (batch, length))


def causal(config: Any, batch: int, length: int) -> dict[str, torch.Tensor]:
    """Ids that are their own labels."""
    ids = tokens(batch, length)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


def padded(config: Any, batch: int, length: int) -> dict[str, torch.Tensor]:
    """Ids of which the first sequence ends early."""
    ids = tokens(batch, length)
    mask = torch.ones_like(ids)
    mask[0, length // 2 :] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": ids}


def classified_text(config: Any, batch: int, length: int) -> dict[str, torch.Tensor]:
    """Padded ids and a class each."""
    return {**padded(config, batch, length), "labels": torch.randint(0, 2, (batch,))}


def translated(config: Any, batch: int, length: int) -> dict[str, torch.Tensor]:
    """Source ids, and shorter target ids."""
    return {**padded(config, batch, length), "labels": tokens(batch, length - 3)}


def pixels(config: Any, batch: int, length: int) -> dict[str, torch.Tensor]:
    """Images and a class each."""
    return {"pixel_values": torch.randn(batch, 3, 32, 32), "labels": torch.randint(0, 2, (batch,))}


def unlabelled_pixels(config: Any, batch: int, length: int) -> dict[str, torch.Tensor]:
    """Images."""
    return {"pixel_values": torch.randn(batch, 3, 32, 32)}


def captions(config: Any, batch: int, length: int) -> dict[str, torch.Tensor]:
    """Images with texts."""
    ids = tokens(batch, length)
    ids[:, -1] = 2
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "pixel_values": torch.randn(batch, 3, 32, 32),
    }


def speech(config: Any, batch: int, length: int) -> dict[str, torch.Tensor]:
    """Spectrograms and their text."""
    return {"input_features": torch.randn(batch, 8, 40), "labels": tokens(batch, length)}


def waveform(config: Any, batch: int, length: int) -> dict[str, torch.Tensor]:
    """Sound."""
    return {"input_values": torch.randn(batch, 100 * length)}


@dataclass(frozen=True, slots=True)
class HuggingFace:
    """A model class with the configuration that makes it small."""

    name: str
    architecture: str
    settings: dict[str, Any]
    inputs: Inputs = causal
    nested: dict[str, dict[str, Any]] = field(default_factory=dict)

    def build(self) -> torch.nn.Module:
        """The model with random weights; the same after the same ``torch.manual_seed``."""
        import_torchvision()
        import transformers

        cls = getattr(transformers, self.architecture)
        return cls(cls.config_class(**self.settings, **self.nested))

    def example(self, model: torch.nn.Module, batch: int, length: int) -> dict[str, torch.Tensor]:
        """Keyword arguments of a call."""
        made = self.inputs(model.config, batch, length)
        accepted = inspect.signature(model.forward).parameters
        return {name: value for name, value in made.items() if name in accepted}


NAMED = [
    HuggingFace("bert", "BertForMaskedLM", ENCODER, padded),
    HuggingFace(
        "roberta", "RobertaForMaskedLM", {**ENCODER, "max_position_embeddings": 66}, padded
    ),
    HuggingFace(
        "distilbert",
        "DistilBertForMaskedLM",
        {
            "vocab_size": VOCABULARY,
            "dim": 32,
            "n_layers": 2,
            "n_heads": 4,
            "hidden_dim": 64,
            "max_position_embeddings": 64,
        },
        padded,
    ),
    HuggingFace("albert", "AlbertForMaskedLM", {**ENCODER, "embedding_size": 16}, padded),
    HuggingFace("electra", "ElectraForMaskedLM", {**ENCODER, "embedding_size": 16}, padded),
    HuggingFace(
        "gpt2",
        "GPT2LMHeadModel",
        {
            "vocab_size": VOCABULARY,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 64,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    HuggingFace("opt", "OPTForCausalLM", {**DECODER, "ffn_dim": 64, "word_embed_proj_dim": 32}),
    HuggingFace("t5", "T5ForConditionalGeneration", T5, translated),
    HuggingFace("bart", "BartForConditionalGeneration", SEQUENCE_TO_SEQUENCE, translated),
    HuggingFace("llama", "LlamaForCausalLM", GROUPED),
    HuggingFace("qwen2", "Qwen2ForCausalLM", GROUPED),
    HuggingFace("mistral", "MistralForCausalLM", {**GROUPED, "sliding_window": 8}),
    HuggingFace("vit", "ViTForImageClassification", IMAGE, pixels),
    HuggingFace(
        "clip",
        "CLIPModel",
        {"projection_dim": 16},
        captions,
        {
            "text_config": {**ENCODER, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
            "vision_config": IMAGE,
        },
    ),
    HuggingFace(
        "whisper",
        "WhisperForConditionalGeneration",
        {
            **SEQUENCE_TO_SEQUENCE,
            "num_mel_bins": 8,
            "max_source_positions": 20,
            "max_target_positions": 32,
        },
        speech,
    ),
]

EXTRA = [
    HuggingFace("bert-classifier", "BertForSequenceClassification", ENCODER, classified_text),
    HuggingFace(
        "bert-tokens", "BertForTokenClassification", {**ENCODER, "num_labels": VOCABULARY}, padded
    ),
    HuggingFace(
        "gpt2-padded",
        "GPT2LMHeadModel",
        {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
        padded,
    ),
    HuggingFace("llama-padded", "LlamaForCausalLM", GROUPED, padded),
    HuggingFace(
        "llama-eager", "LlamaForCausalLM", {**GROUPED, "attn_implementation": "eager"}, padded
    ),
    HuggingFace("t5-encoder", "T5EncoderModel", T5, padded),
    HuggingFace("mbart", "MBartForConditionalGeneration", SEQUENCE_TO_SEQUENCE, translated),
    HuggingFace("pegasus", "PegasusForConditionalGeneration", SEQUENCE_TO_SEQUENCE, translated),
    HuggingFace("gemma", "GemmaForCausalLM", {**GROUPED, "head_dim": 8}),
    HuggingFace("gemma2", "Gemma2ForCausalLM", {**GROUPED, "head_dim": 8, "sliding_window": 8}),
    HuggingFace("gemma3", "Gemma3ForCausalLM", {**GROUPED, "head_dim": 8, "sliding_window": 8}),
    HuggingFace("qwen3", "Qwen3ForCausalLM", {**GROUPED, "head_dim": 8}),
    HuggingFace("phi", "PhiForCausalLM", DECODER),
    HuggingFace("phi3", "Phi3ForCausalLM", GROUPED),
    HuggingFace("falcon", "FalconForCausalLM", DECODER),
    HuggingFace(
        "bloom",
        "BloomForCausalLM",
        {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    ),
    HuggingFace(
        "gpt-neo",
        "GPTNeoForCausalLM",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "max_position_embeddings": 64,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 4,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    HuggingFace("gpt-neox", "GPTNeoXForCausalLM", DECODER),
    HuggingFace(
        "gptj",
        "GPTJForCausalLM",
        {
            "vocab_size": VOCABULARY,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 64,
            "rotary_dim": 4,
        },
    ),
    HuggingFace("stablelm", "StableLmForCausalLM", GROUPED),
    HuggingFace("olmo", "OlmoForCausalLM", GROUPED),
    HuggingFace("olmo2", "Olmo2ForCausalLM", GROUPED),
    HuggingFace("granite", "GraniteForCausalLM", GROUPED),
    HuggingFace("cohere", "CohereForCausalLM", GROUPED),
    HuggingFace("starcoder2", "Starcoder2ForCausalLM", GROUPED),
    HuggingFace(
        "mixtral",
        "MixtralForCausalLM",
        {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    HuggingFace(
        "qwen2-moe",
        "Qwen2MoeForCausalLM",
        {
            **GROUPED,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 16,
        },
    ),
    HuggingFace(
        "deberta",
        "DebertaForMaskedLM",
        {**ENCODER, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
        padded,
    ),
    HuggingFace(
        "deberta-v2",
        "DebertaV2ForMaskedLM",
        {**ENCODER, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
        padded,
    ),
    HuggingFace(
        "xlnet",
        "XLNetLMHeadModel",
        {"vocab_size": VOCABULARY, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64},
    ),
    HuggingFace(
        "xlm-roberta", "XLMRobertaForMaskedLM", {**ENCODER, "max_position_embeddings": 66}, padded
    ),
    HuggingFace("mpnet", "MPNetForMaskedLM", {**ENCODER, "max_position_embeddings": 66}, padded),
    HuggingFace(
        "mobilebert",
        "MobileBertForMaskedLM",
        {**ENCODER, "embedding_size": 16, "intra_bottleneck_size": 16},
        padded,
    ),
    HuggingFace(
        "funnel",
        "FunnelForMaskedLM",
        {
            "vocab_size": VOCABULARY,
            "d_model": 32,
            "n_head": 4,
            "d_head": 8,
            "d_inner": 64,
            "block_sizes": [1, 1],
            "num_decoder_layers": 1,
        },
        padded,
    ),
    HuggingFace(
        "longformer",
        "LongformerForMaskedLM",
        {**ENCODER, "attention_window": 8, "max_position_embeddings": 66},
        padded,
    ),
    HuggingFace(
        "camembert", "CamembertForMaskedLM", {**ENCODER, "max_position_embeddings": 66}, padded
    ),
    HuggingFace("convbert", "ConvBertForMaskedLM", {**ENCODER, "embedding_size": 32}, padded),
    HuggingFace(
        "fnet",
        "FNetForMaskedLM",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "intermediate_size": 64,
            "max_position_embeddings": 64,
        },
        padded,
    ),
    HuggingFace(
        "mamba",
        "MambaForCausalLM",
        {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
    ),
    HuggingFace("deit", "DeiTForImageClassification", IMAGE, pixels),
    HuggingFace("beit", "BeitForImageClassification", IMAGE, pixels),
    HuggingFace(
        "dinov2",
        "Dinov2ForImageClassification",
        {name: value for name, value in IMAGE.items() if name != "intermediate_size"},
        pixels,
    ),
    HuggingFace(
        "swin",
        "SwinForImageClassification",
        {
            "image_size": 32,
            "patch_size": 4,
            "embed_dim": 16,
            "depths": [2, 2],
            "num_heads": [2, 4],
            "window_size": 4,
        },
        pixels,
    ),
    HuggingFace(
        "convnext",
        "ConvNextForImageClassification",
        {**STAGES, "hidden_sizes": [8, 16, 16, 32]},
        pixels,
    ),
    HuggingFace(
        "convnextv2",
        "ConvNextV2ForImageClassification",
        {**STAGES, "hidden_sizes": [8, 16, 16, 32]},
        pixels,
    ),
    HuggingFace(
        "resnet",
        "ResNetForImageClassification",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"},
        pixels,
    ),
    HuggingFace(
        "segformer",
        "SegformerForImageClassification",
        {
            "hidden_sizes": [8, 16, 16, 32],
            "depths": [1, 1, 1, 1],
            "num_attention_heads": [1, 2, 2, 4],
            "decoder_hidden_size": 16,
        },
        pixels,
    ),
    HuggingFace(
        "mobilevit",
        "MobileViTForImageClassification",
        {
            "image_size": 32,
            "hidden_sizes": [16, 24, 32],
            "neck_hidden_sizes": [8, 8, 8, 8, 8, 8, 16],
        },
        pixels,
    ),
    HuggingFace(
        "vit-mae",
        "ViTMAEForPreTraining",
        {
            **IMAGE,
            "decoder_hidden_size": 16,
            "decoder_num_hidden_layers": 1,
            "decoder_num_attention_heads": 2,
            "decoder_intermediate_size": 32,
        },
        unlabelled_pixels,
    ),
    HuggingFace(
        "siglip",
        "SiglipModel",
        {},
        captions,
        {"text_config": {**ENCODER, "projection_size": 32}, "vision_config": IMAGE},
    ),
    HuggingFace(
        "blip",
        "BlipForImageTextRetrieval",
        {"image_text_hidden_size": 16},
        captions,
        {
            "text_config": {
                **ENCODER,
                "bos_token_id": 1,
                "eos_token_id": 2,
                "pad_token_id": 0,
                "sep_token_id": 2,
                "encoder_hidden_size": 32,
            },
            "vision_config": IMAGE,
        },
    ),
    HuggingFace("wav2vec2", "Wav2Vec2Model", SOUND, waveform),
    HuggingFace("hubert", "HubertModel", SOUND, waveform),
]
