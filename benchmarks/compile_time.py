"""Cold compile of a transformer block and of recurrent taggers, forward and backward, and of
DenseNet-264 in inference, with an empty cache, next to torch.compile.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torchstrata

from integration_tests.models.zoo import GPTBlock


def _training_step(call: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> float:
    started = time.perf_counter()
    call(x).sum().backward()
    return time.perf_counter() - started


class Tagger(torch.nn.Module):
    """Classes of tokens, by a recurrent network of two layers in both directions."""

    def __init__(self, kind: type[torch.nn.RNNBase]) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(1000, 128)
        self.network = kind(128, 128, 2, bidirectional=True, batch_first=True)
        self.head = torch.nn.Linear(256, 17)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.network(self.embedding(tokens))[0])


def tagger(kind: type[torch.nn.RNNBase]) -> dict[str, Any]:
    """Seconds to the end of the first training step with 64 tokens, and those of a length that is
    new after two; the median step over eager's.
    """
    model, lengths = Tagger(kind), (64, 67, 71)
    tokens = {length: torch.randint(0, 1000, (8, length)) for length in lengths}
    with tempfile.TemporaryDirectory() as ours, tempfile.TemporaryDirectory() as theirs:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = theirs
        calls = {
            "ours": torchstrata.compile(model, options={"cache_dir": ours}),
            "torch.compile": torch.compile(model),
            "eager": model,
        }
        first = {n: [_training_step(c, tokens[k]) for k in lengths] for n, c in calls.items()}
        steps = {name: list[float]() for name in calls}
        for _ in range(15):
            for name, call in calls.items():
                steps[name].append(_training_step(call, tokens[64]))
    eager = statistics.median(steps.pop("eager"))
    return {
        column: value
        for name in steps
        for column, value in (
            (f"{name} s", round(first[name][0], 2)),
            (f"{name} third length s", round(first[name][2], 2)),
            (f"{name} step", round(statistics.median(steps[name]) / eager, 2)),
        )
    }


def lstm_tagger() -> dict[str, Any]:
    return tagger(torch.nn.LSTM)


def gru_tagger() -> dict[str, Any]:
    return tagger(torch.nn.GRU)


def rnn_tagger() -> dict[str, Any]:
    return tagger(torch.nn.RNN)


def transformer_block() -> dict[str, Any]:
    """Seconds to the end of the first training step; both caches empty, imports and one warm-up
    graph done before.
    """
    x = torch.randn(4, 128, 256, requires_grad=True)
    with (
        tempfile.TemporaryDirectory() as ours_cache,
        tempfile.TemporaryDirectory() as incumbent_cache,
    ):
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = incumbent_cache
        torchstrata.compile(lambda x: x + 1, options={"cache_dir": ours_cache})(torch.ones(2))
        ours = _training_step(
            torchstrata.compile(GPTBlock(256, 8), options={"cache_dir": ours_cache}), x
        )
        torch.compile(lambda x: x + 1)(torch.ones(2))
        incumbent = _training_step(torch.compile(GPTBlock(256, 8)), x)
    return {"ours s": round(ours, 2), "torch.compile s": round(incumbent, 2)}


def densenet() -> dict[str, Any]:
    """Seconds of the first call of DenseNet-264, in inference, on two images of 64 by 64."""
    from integration_tests.models.vision import import_torchvision

    net = import_torchvision().models.DenseNet(32, (6, 12, 64, 48), 64).eval()
    images = torch.randn(2, 3, 64, 64)
    with tempfile.TemporaryDirectory() as ours, tempfile.TemporaryDirectory() as theirs:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = theirs
        calls = {
            "ours s": torchstrata.compile(net, options={"cache_dir": ours}),
            "torch.compile s": torch.compile(net),
        }
        seconds = {}
        with torch.no_grad():
            net(images)
            for name, call in calls.items():
                started = time.perf_counter()
                call(images)
                seconds[name] = round(time.perf_counter() - started, 2)
    return seconds


CASES = [transformer_block, lstm_tagger, gru_tagger, rnn_tagger, densenet]
