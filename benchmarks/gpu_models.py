"""Models on a CUDA device in bfloat16: eager, ours and torch.compile in turns; time, cold compile time and peak memory.

usage: python -m benchmarks.gpu_models [--alone] [NAME...]     a row per model and mode, writes results/gpu_models.json
(with --alone: not next to torch.compile, nothing written)
"""

from __future__ import annotations

import copy
import functools
import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torchstrata
from torch import nn

from benchmarks.measure import print_rows
from integration_tests.models.zoo import ZOO

ROUNDS, SECONDS = 9, 0.15
Built = tuple[nn.Module, dict[str, torch.Tensor]]


def _tokens(batch: int, length: int, vocabulary: int) -> torch.Tensor:
    return torch.randint(vocabulary, (batch, length), device="cuda")


def _transformer(name: str, batch: int, length: int, **settings: Any) -> Built:
    import transformers

    config = getattr(transformers, f"{name[0]}Config")(**settings)
    model = getattr(transformers, name[1])(config)
    tokens = _tokens(batch, length, config.vocab_size)
    return model, {"input_ids": tokens, "labels": tokens}


def _image(name: str, batch: int, size: int = 224) -> Built:
    import timm

    return timm.create_model(name), {"x": torch.randn(batch, 3, size, size, device="cuda", dtype=torch.bfloat16)}


def _zoo(name: str, batch: int) -> Built:
    entry = next(entry for entry in ZOO if entry.name == name)
    inputs = entry.inputs(batch)
    moved = [value.cuda() if isinstance(value, torch.Tensor) else value for value in inputs]
    moved = [value.bfloat16() if value.is_floating_point() else value for value in moved]
    return entry.build(), {str(position): value for position, value in enumerate(moved)}


MODELS: dict[str, Callable[[], Built]] = {
    "bert": lambda: _transformer(("Bert", "BertForMaskedLM"), 16, 512),
    "gpt2": lambda: _transformer(("GPT2", "GPT2LMHeadModel"), 8, 512),
    "distilbert": lambda: _transformer(("DistilBert", "DistilBertForMaskedLM"), 16, 256),
    "albert": lambda: _transformer(
        ("Albert", "AlbertForMaskedLM"), 8, 512, hidden_size=768, num_attention_heads=12, intermediate_size=3072
    ),
    "t5": lambda: _transformer(("T5", "T5ForConditionalGeneration"), 8, 256),
    "bart": lambda: _transformer(
        ("Bart", "BartForConditionalGeneration"), 8, 256, encoder_layers=6, decoder_layers=6, d_model=768
    ),
    "llama": lambda: _transformer(
        ("Llama", "LlamaForCausalLM"),
        4,
        512,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=8,
        num_attention_heads=16,
    ),
    "resnet50": lambda: _image("resnet50", 32),
    "convnext_tiny": lambda: _image("convnext_tiny", 32),
    "efficientnet_b0": lambda: _image("efficientnet_b0", 32),
    "vit_base": lambda: _image("vit_base_patch16_224", 32),
    "swin_tiny": lambda: _image("swin_tiny_patch4_window7_224", 32),
    "mixer": lambda: _image("mixer_b16_224", 32),
    "zoo_gpt": lambda: _zoo("gpt", 64),
    "zoo_dlrm": lambda: _zoo("dlrm", 1024),
    "zoo_unet": lambda: _zoo("unet", 16),
}


def _call(model: Callable[..., Any], inputs: dict[str, torch.Tensor]) -> Any:
    result = model(*inputs.values()) if "0" in inputs or "x" in inputs else model(**inputs)
    return (
        result
        if isinstance(result, torch.Tensor)
        else (result.loss if getattr(result, "loss", None) is not None else result[0])
    )


def _step(model: Any, net: nn.Module, inputs: dict[str, torch.Tensor], training: bool) -> torch.Tensor:
    if not training:
        with torch.no_grad():
            return _call(model, inputs)
    net.zero_grad(set_to_none=True)
    loss = _call(model, inputs).float().mean()
    loss.backward()
    return loss


def _seconds(step: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    started = time.perf_counter()
    step()
    torch.cuda.synchronize()
    return time.perf_counter() - started


def _repeat(step: Callable[[], object], count: int) -> None:
    for _ in range(count):
        step()


def _alternate(steps: dict[str, Callable[[], object]]) -> dict[str, float]:
    repeats = {name: max(1, int(SECONDS / min(_seconds(step) for _ in range(3)))) for name, step in steps.items()}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(ROUNDS):
        for name, step in steps.items():
            times[name].append(_seconds(functools.partial(_repeat, step, repeats[name])) / repeats[name])
    return {name: statistics.median(values) for name, values in times.items()}


def _memory() -> tuple[int, int]:
    """Bytes allocated, and held from the device once nothing unused is kept: recorded graphs keep theirs."""
    gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()


def _errors(net: nn.Module, ours: Any, inputs: dict[str, torch.Tensor]) -> float:
    """Our error over eager's, both against float32, of the first result of an evaluation; four calls, so that replays count."""
    wide = {key: value.float() if value.is_floating_point() else value for key, value in inputs.items()}
    with torch.no_grad():
        exact = _call(copy.deepcopy(net).float(), wide).float()
        eager = _call(net, inputs).float()
        found = [_call(ours, inputs).float() for _ in range(4)][-1]
    return ((found - exact).abs().max() / (eager - exact).abs().max().clamp(min=1e-6)).item()


def run(name: str, training: bool, alone: bool) -> dict[str, Any]:
    """One row: milliseconds, ratios of time, cold compile seconds, peak memory over eager's."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        net, inputs = MODELS[name]()
    net = net.to("cuda", torch.bfloat16).train(training)
    nets = {"eager": net, "ours": copy.deepcopy(net)}
    calls: dict[str, Any] = {"eager": net, "ours": torchstrata.compile(nets["ours"])}
    if not alone:
        nets["torch.compile"] = copy.deepcopy(net)
        calls["torch.compile"] = torch.compile(nets["torch.compile"])
    steps = {key: lambda key=key: _step(calls[key], nets[key], inputs, training) for key in calls}
    cold, peak = {}, {}
    torchstrata.counters.clear()
    for key, step in steps.items():
        torch.manual_seed(0)
        base = _memory()
        cold[key] = _seconds(step)
        for _ in range(5):
            torch.cuda.reset_peak_memory_stats()
            step()
        torch.cuda.synchronize()
        working = torch.cuda.max_memory_allocated() - base[0]
        for net in nets.values():
            net.zero_grad(set_to_none=True)
        peak[key] = max(working, _memory()[1] - base[1])
    times = _alternate(steps)
    row = {"model": name, "mode": "training" if training else "inference", "ms": round(times["ours"] * 1e3, 3)}
    row["over_eager"] = round(times["eager"] / times["ours"], 2)
    row["over_torch_compile"] = round(times.get("torch.compile", 0.0) / times["ours"], 2)
    row["error_over_eager"] = round(_errors(net, calls["ours"], inputs), 2) if not training else 0.0
    row["cold_s"], row["cold_torch_compile_s"] = round(cold["ours"], 1), round(cold.get("torch.compile", 0.0), 1)
    row["peak_over_eager"] = round(peak["ours"] / max(peak["eager"], 1), 2)
    row["peak_over_torch_compile"] = round(peak["ours"] / peak["torch.compile"], 2) if not alone else 0.0
    counts = torchstrata.counters
    row["counts"] = " ".join(
        f"{key}={counts[key]}"
        for key in ("graphs", "graph_breaks", "fallbacks", "generated_kernels", "extern_calls", "cuda_graphs")
    )
    return row


def rows(names: list[str], alone: bool) -> Iterator[dict[str, Any]]:
    """All rows, the named models only if any are named."""
    for name in names or MODELS:
        for training in (False, True):
            try:
                yield run(name, training, alone)
            except Exception as error:
                yield {
                    "model": name,
                    "mode": "training" if training else "inference",
                    "error": f"{type(error).__name__}: {str(error)[-300:]}",
                }
            torchstrata.reset()
            torch.compiler.reset()
            gc.collect()
            torch.cuda.empty_cache()


def main(arguments: list[str]) -> None:
    alone = "--alone" in arguments
    names = [name for name in arguments if name != "--alone"]
    print_rows("gpu_models", rows(names, alone), ("model", "mode"), save=not alone)


if __name__ == "__main__":
    main(sys.argv[1:])
