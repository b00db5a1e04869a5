"""Trains a small CNN on scikit-learn's digits, eager and compiled from the same seed, and shows
what the compiler made.

usage: python examples/quickstart.py [--epochs N=3] [--dump DIRECTORY]
"""

from __future__ import annotations

import argparse
import copy
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
import torchstrata
from sklearn.datasets import load_digits
from torch import nn
from tqdm import tqdm

BATCH = 64


class DigitsCNN(nn.Module):
    """Two convolutions with batch normalisation, one hidden layer; 8x8 grey images to ten
    logits.
    """

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        )  # fmt: skip
        self.hidden = nn.Linear(64 * 4 * 4, 128)
        self.norm = nn.LayerNorm(128)
        self.head = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.flatten(self.features(x), 1)
        return self.head(F.gelu(self.norm(self.hidden(x))))


def load() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Train images [1437, 1, 8, 8] and labels, test images and labels."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    images, labels = images[order], labels[order]
    cut = int(0.8 * len(labels))
    return images[:cut], labels[:cut], images[cut:], labels[cut:]


def train(
    name: str,
    model: nn.Module,
    call: Callable[[torch.Tensor], torch.Tensor],
    images: torch.Tensor,
    labels: torch.Tensor,
    epochs: int,
) -> tuple[list[float], float, float]:
    """Losses per step, seconds of the first step, steps per second of the others."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    order = torch.Generator().manual_seed(1)
    losses, first, started = [], 0.0, 0.0
    steps = len(labels) // BATCH
    with tqdm(total=epochs * steps, desc=name, unit="step") as bar:
        for _ in range(epochs):
            for rows in torch.randperm(len(labels), generator=order)[: steps * BATCH].split(BATCH):
                before = time.perf_counter()
                optimizer.zero_grad(set_to_none=True)
                loss = F.cross_entropy(call(images[rows]), labels[rows])
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
                if len(losses) == 1:
                    started = time.perf_counter()
                    first = started - before
                bar.update()
    return losses, first, (len(losses) - 1) / (time.perf_counter() - started)


def accuracy(
    call: Callable[[torch.Tensor], torch.Tensor], images: torch.Tensor, labels: torch.Tensor
) -> float:
    with torch.no_grad():
        return (call(images).argmax(dim=1) == labels).float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument(
        "--dump", type=Path, default=Path(tempfile.gettempdir()) / "torchstrata-quickstart"
    )
    arguments = parser.parse_args()
    torch.manual_seed(0)
    train_images, train_labels, test_images, test_labels = load()
    model = DigitsCNN()
    twin = copy.deepcopy(model)
    dump = tempfile.mkdtemp(prefix=f"{arguments.dump.name}-", dir=arguments.dump.parent)
    empty_cache = tempfile.mkdtemp(prefix="torchstrata-cache-")
    compiled = torchstrata.compile(twin, options={"dump": dump, "cache_dir": empty_cache})

    eager_losses, _, eager_speed = train(
        "eager", model, model, train_images, train_labels, arguments.epochs
    )
    losses, cold, speed = train(
        "compiled", twin, compiled, train_images, train_labels, arguments.epochs
    )
    difference = max(abs(a - b) for a, b in zip(eager_losses, losses, strict=True))
    counts = torchstrata.counters
    test_accuracy = (
        accuracy(model.eval(), test_images, test_labels),
        accuracy(compiled.eval(), test_images, test_labels),
    )

    print(
        f"\nlargest difference of the loss curves  {difference:.2e}  (loss {losses[0]:.3f} -> "
        f"{losses[-1]:.3f})"
    )
    print(
        f"test accuracy                          eager {test_accuracy[0]:.3f}   compiled "
        f"{test_accuracy[1]:.3f}"
    )
    print(f"training steps per second              eager {eager_speed:.1f}   compiled {speed:.1f}")
    print(f"first step with an empty cache         {cold:.2f} s, compilation included")
    print(f"what was compiled                      {dict(counts)}")
    print(f"every stage as text                    {dump}")
    for path in sorted(Path(dump).rglob("*.*")):
        print(f"    {path.relative_to(dump)}  {len(path.read_text().splitlines())} lines")


if __name__ == "__main__":
    main()
