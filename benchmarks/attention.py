"""Attention on a CUDA device: ``flex_attention`` next to torch.compile's and, where it has the same
meaning, scaled_dot_product_attention.

usage: python -m benchmarks.attention [--save] [NAME...]

A row per mask and pass: device milliseconds of ours, torch.compile's and SDPA's (the backend that
torch chooses, and cuDNN), and the ratios of theirs to ours. Passes are measured in turns, and each
is a median. Names are those of masks (below) with the size of a row, such as ``causal-64``.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
import torchstrata
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from benchmarks.measure import print_rows

ROUNDS, BATCH, HEADS, LENGTH = 15, 4, 16, 2048
WINDOW, PREFIX, DOCUMENT, CAP = 256, 512, 300, 20.0
SLEEP = 4_000_000
"""Cycles for which the device waits, so that the queue is full when it starts."""


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    """The keys up to the query."""
    return q >= k


def window(b: Any, h: Any, q: Any, k: Any) -> Any:
    """The last keys up to the query."""
    return (q >= k) & (q - k < WINDOW)


def prefix(b: Any, h: Any, q: Any, k: Any) -> Any:
    """A part that everything sees, then the keys up to the query."""
    return (k < PREFIX) | (q >= k)


def documents(b: Any, h: Any, q: Any, k: Any) -> Any:
    """The keys of the query's document up to it; documents are of one length."""
    return (q // DOCUMENT == k // DOCUMENT) & (q >= k)


def dilated(b: Any, h: Any, q: Any, k: Any) -> Any:
    """Every fourth key, and the neighbours."""
    return (q >= k) & ((q - k < 64) | ((q - k) % 4 == 0))


def alibi(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    """A bias by distance, another one for each head."""
    return score - torch.exp2(-(h + 1) * 0.5) * (q - k)


def capped(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    """Scores within a range."""
    return CAP * torch.tanh(score / CAP)


@dataclass(frozen=True)
class Mask:
    """Functions of ``flex_attention``; ``table``: a bias looked up by head and distance;
    ``sdpa``: whether SDPA has the same meaning, with ``is_causal`` as given.
    """

    mask: Callable[..., Any] | None = None
    score: Callable[..., Any] | None = None
    groups: int = 1
    table: bool = False
    sdpa: bool | None = None


MASKS = {
    "plain": Mask(sdpa=False),
    "causal": Mask(causal, sdpa=True),
    "grouped": Mask(causal, groups=4, sdpa=True),
    "window": Mask(window),
    "prefix": Mask(prefix),
    "documents": Mask(documents),
    "dilated": Mask(dilated),
    "alibi": Mask(causal, alibi),
    "capped": Mask(causal, capped),
    "table": Mask(causal, table=True),
}


def _times(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Device milliseconds of each call, in turns."""
    for call in calls.values():
        for _ in range(4):
            call()
    samples: dict[str, list[Any]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            torch.cuda._sleep(SLEEP)
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            call()
            last.record()
            samples[name].append((first, last))
    torch.cuda.synchronize()
    return {
        name: statistics.median(first.elapsed_time(last) for first, last in events)
        for name, events in samples.items()
    }


def _functions(mask: Mask, inputs: list[torch.Tensor]) -> dict[str, Callable[[], torch.Tensor]]:
    query, key, value = inputs
    blocks = None
    if mask.mask is not None:
        blocks = create_block_mask(mask.mask, None, None, LENGTH, LENGTH, device="cuda")
    table = torch.randn(HEADS, 2 * LENGTH, device="cuda")

    def by_table(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return score + table[h, q - k]

    score = by_table if mask.table else mask.score

    def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return flex_attention(query, key, value, score, blocks, enable_gqa=mask.groups > 1)

    def library(backend: SDPBackend | None) -> torch.Tensor:
        options: dict[str, Any] = {"is_causal": mask.sdpa, "enable_gqa": mask.groups > 1}
        if backend is None:
            return F.scaled_dot_product_attention(query, key, value, **options)
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(query, key, value, **options)

    torch._dynamo.reset()
    calls: dict[str, Callable[[], torch.Tensor]] = {
        "ours": partial(torchstrata.compile(attention, dynamic=False), *inputs),
        "compile": partial(torch.compile(attention, dynamic=False), *inputs),
    }
    if mask.sdpa is not None:
        calls["sdpa"] = partial(library, None)
        calls["cudnn"] = partial(library, SDPBackend.CUDNN_ATTENTION)
    return calls


def measure(name: str) -> Iterator[dict[str, Any]]:
    """A row for the forward pass and one for both passes."""
    kind, _, depth = name.partition("-")
    mask = MASKS[kind]
    generator = torch.Generator("cuda").manual_seed(0)
    inputs = [
        torch.randn(
            BATCH, HEADS // groups, LENGTH, int(depth), device="cuda", dtype=torch.bfloat16,
            generator=generator,
        ).requires_grad_()
        for groups in (1, mask.groups, mask.groups)
    ]  # fmt: skip
    tangent = torch.randn_like(inputs[0])
    calls, results = {}, {}
    for key, call in _functions(mask, inputs).items():
        try:
            results[key] = call().detach()
            calls[key] = call
        except Exception as error:
            print(f"{name}: {key} fails: {str(error).strip().splitlines()[0]}", file=sys.stderr)
    difference = max((results["ours"] - other).abs().max().item() for other in results.values())

    def forward(call: Callable[[], Any]) -> None:
        with torch.no_grad():
            call()

    def both(call: Callable[[], Any]) -> None:
        torch.autograd.grad(call(), inputs, tangent)

    for label, run in (("forward", forward), ("both", both)):
        times = _times({key: partial(run, call) for key, call in calls.items()})
        row: dict[str, Any] = {"mask": name, "pass": label}
        for key in ("ours", "compile", "sdpa", "cudnn"):
            row[key] = f"{times[key]:.3f}" if key in times else "-"
        for key in ("compile", "sdpa", "cudnn"):
            row[f"{key}/ours"] = f"{times[key] / times['ours']:.2f}" if key in times else "-"
        yield {**row, "difference": f"{difference:.1e}"}


def main(arguments: list[str]) -> None:
    """Measures all masks or those named."""
    names = [name for name in arguments if not name.startswith("--")]
    names = names or [f"{kind}-{depth}" for depth in (64, 128) for kind in MASKS]
    rows = (row for name in names for row in measure(name))
    print_rows("attention", rows, ("mask", "pass"), "--save" in arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
