"""Decoding with batch size 1 on a CUDA device: a Hugging Face Llama of 1.2 billion parameters in
bfloat16 with random weights and a static cache.

usage: python -m benchmarks.decode [--alone] [--layers N] [--profile]

Prints the milliseconds per token of eager mode, ours, and torch.compile in its default mode and in
mode reduce-overhead (not with --alone), measured in turns, and what share of the device's copy
bandwidth ours reads weights with. ``error``: how far the logits of a token are from those in
float32, over eager's distance. ``--profile`` prints the kernels that take the most time.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torchstrata
from torch import nn

from benchmarks.measure import alternate, awaited_clock

PROMPT, LENGTH, TOKENS, ROUNDS = 128, 1024, 64, 7
COPIED = 1 << 30
"""Bytes of the copy that gives the bandwidth."""
Decode = Callable[[torch.Tensor, Any], tuple[torch.Tensor, torch.Tensor]]


def llama(layers: int) -> nn.Module:
    """A model with the sizes of Llama 3.2 1B."""
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        vocab_size=128256,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    with torch.device("cuda"):
        return transformers.LlamaForCausalLM(config).eval()


def prompted(model: nn.Module) -> Any:
    """A static cache that holds a prompt's keys and values."""
    from transformers import StaticCache

    cache = StaticCache(config=model.config, max_cache_len=LENGTH)
    tokens = torch.arange(PROMPT, device="cuda")[None]
    with torch.no_grad():
        model(tokens, past_key_values=cache, use_cache=True)
    return cache


def rewind(cache: Any) -> None:
    """Lets the cache hold only the prompt again."""
    for layer in cache.layers:
        layer.cumulative_length.fill_(PROMPT)


def decoder(model: nn.Module) -> Decode:
    """Takes a token and a cache; returns the next token, chosen greedily, and its logits."""

    def decode(token: torch.Tensor, cache: Any) -> tuple[torch.Tensor, torch.Tensor]:
        logits = model(token, past_key_values=cache, use_cache=True).logits[:, -1]
        return logits.argmax(-1, keepdim=True), logits

    return decode


def generate(decode: Decode, cache: Any, tokens: int) -> None:
    """Generates tokens greedily."""
    rewind(cache)
    token = torch.zeros(1, 1, dtype=torch.long, device="cuda")
    with torch.no_grad():
        for _ in range(tokens):
            token = decode(token, cache)[0].clone()


def first_seconds(decode: Decode, cache: Any) -> float:
    """Seconds until the first tokens are there."""
    start = awaited_clock()
    generate(decode, cache, 4)
    return awaited_clock() - start


def error_of(decode: Decode, cache: Any, exact: torch.Tensor) -> float:
    """How far the logits of a token are from the exact ones."""
    rewind(cache)
    with torch.no_grad():
        _, logits = decode(torch.zeros(1, 1, dtype=torch.long, device="cuda"), cache)
    return (logits.float() - exact).square().mean().sqrt().item()


def exact_logits(model: nn.Module) -> torch.Tensor:
    precise = copy.deepcopy(model).float()
    token = torch.zeros(1, 1, dtype=torch.long, device="cuda")
    with torch.no_grad():
        return decoder(precise)(token, prompted(precise))[1]


def profile(call: Callable[[], None]) -> None:
    """Prints what takes the device's time."""
    from torch.profiler import ProfilerActivity

    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as trace:
        call()
        torch.cuda.synchronize()
    print(trace.key_averages().table(sort_by="self_cuda_time_total", row_limit=20))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--profile", action="store_true")
    given = parser.parse_args()
    model = llama(given.layers)
    exact = exact_logits(model)
    model = model.bfloat16()
    # without the table of embeddings twice: it is the last product's weight
    weights = sum(value.numel() * value.element_size() for value in model.parameters())
    decoders: dict[str, Decode] = {
        "eager": decoder(model),
        "ours": torchstrata.compile(decoder(model), dynamic=False),
    }
    if not given.alone:
        decoders["torch.compile"] = torch.compile(decoder(model), dynamic=False)
        decoders["reduce-overhead"] = torch.compile(
            decoder(model), dynamic=False, mode="reduce-overhead"
        )
    caches = {name: prompted(model) for name in decoders}
    runs = {name: partial(generate, call, caches[name], TOKENS) for name, call in decoders.items()}
    cold = {name: first_seconds(call, caches[name]) for name, call in decoders.items()}
    errors = {name: error_of(decoders[name], caches[name], exact) for name in decoders}
    source, target = (torch.empty(COPIED, dtype=torch.uint8, device="cuda") for _ in range(2))

    def copies() -> None:
        for _ in range(TOKENS):
            target.copy_(source)

    seconds = alternate({**runs, "copy": copies}, rounds=ROUNDS, clock=awaited_clock)
    times = {name: second * 1e3 / TOKENS for name, second in seconds.items()}
    for name in decoders:
        print(
            f"{name:16} {times[name]:7.3f} ms per token, {times[name] / times['ours']:5.2f} of ours; "
            f"error {errors[name] / errors['eager']:.2f}; first call {cold[name]:.1f} s"
        )
    bandwidth, copied = weights / times["ours"] / 1e6, 2 * COPIED / times["copy"] / 1e6
    print(
        f"{torch.cuda.get_device_name()}: ours reads {weights / 1e6:.0f} MB of weights with "
        f"{bandwidth:.0f} GB/s, {bandwidth / copied:.2f} of a copy's {copied:.0f} GB/s"
    )
    if given.profile:
        profile(partial(generate, decoders["ours"], caches["ours"], 4))


if __name__ == "__main__":
    main()
