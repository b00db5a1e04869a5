"""Training of language models and image nets on a CUDA device in float16 with autocast: losses and
step times next to torch.compile.

usage: python -m benchmarks.gpu_training [MODEL...] [--steps N] [--alone] [--layers N] [--batch N]
[--jobs N] [--timeout S]

A step: forward and loss under autocast, scaled backward, unscaling, clipping, ``AdamW.step`` (eager
mode's is the fused one), the scheduler's step. Forward, clipping and the optimizer's step are
compiled. Half way, model, optimizer, scaler and scheduler are saved, made anew, loaded and compiled
again. All see the same batches. Dropout is off, since the compilers draw other numbers. The
schedule leaves momentum alone: torch.compile guards on the value of ``betas`` and would run the
optimizer eagerly after eight of them.

``error``: how far our losses are from float32 eager's (root mean square over the steps), over the
same of eager's under autocast. ``ms``: our median step; the others' columns are how many times
longer theirs take. ``cold_s``: the first two steps. Last comes the geometric mean over the models.

A row is a process of its own. ``--jobs``: processes that compile at once; measuring waits until
nobody does. With ``--steps 1`` the checkpoint comes before the first step.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
import torchstrata
from torch import nn

from benchmarks.processes import spread
from benchmarks.turns import turn

SHOWN = ("model", "ms", "eager", "tc", "error", "first", "last", "cold_s", "cold_tc_s", "counts")
Compiler = Callable[[Callable[..., Any]], Callable[..., Any]]
VOCABULARY = 8192


class Classifier(nn.Module):
    """An image net with its loss, called like the models of transformers."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> Any:
        return SimpleNamespace(loss=F.cross_entropy(self.net(pixel_values).float(), labels))


def _text(name: str, layers: int) -> nn.Module:
    import transformers

    kind, model, depth, settings = TEXT[name]
    config = getattr(transformers, f"{kind}Config")
    own = {"vocab_size": VOCABULARY, **dict.fromkeys(depth, layers), **settings}
    return getattr(transformers, f"{kind}{model}")(config(**own))


def _image(name: str, layers: int) -> nn.Module:
    if name == "vit":
        import transformers

        off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        config = transformers.ViTConfig(num_hidden_layers=layers, num_labels=CLASSES, **off)
        return transformers.ViTForImageClassification(config)
    import timm

    return Classifier(timm.create_model(IMAGES[name], num_classes=CLASSES))


CAUSAL, MASKED = "LMHeadModel", "ForMaskedLM"
BERT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
TEXT: dict[str, tuple[str, str, tuple[str, ...], dict[str, Any]]] = {
    "gpt2": (
        "GPT2", CAUSAL, ("n_layer",),
        {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "use_cache": False,
         "bos_token_id": 0, "eos_token_id": 0},
    ),
    "bert": ("Bert", MASKED, ("num_hidden_layers",), BERT),
    "roberta": ("Roberta", MASKED, ("num_hidden_layers",), BERT),
    "distilbert": (
        "DistilBert", MASKED, ("n_layers",), {"dropout": 0.0, "attention_dropout": 0.0},
    ),
    "llama": (
        "Llama", "ForCausalLM", ("num_hidden_layers",),
        {"hidden_size": 768, "intermediate_size": 2048, "num_attention_heads": 12,
         "use_cache": False},
    ),
    "opt": (
        "OPT", "ForCausalLM", ("num_hidden_layers",),
        {"dropout": 0.0, "attention_dropout": 0.0, "use_cache": False},
    ),
    "t5": (
        "T5", "ForConditionalGeneration", ("num_layers", "num_decoder_layers"),
        {"dropout_rate": 0.0, "decoder_start_token_id": 0, "use_cache": False},
    ),
}  # fmt: skip
"""Names in transformers, the settings of the number of layers, and others; without dropout."""
IMAGES = {
    "vit": "", "resnet18": "resnet18", "resnet50": "resnet50", "convnext_tiny": "convnext_tiny",
    "mixer": "mixer_b16_224",
}  # fmt: skip
"""Names in timm."""
CLASSES = 100


def _model(name: str, layers: int) -> nn.Module:
    return (_text if name in TEXT else _image)(name, layers)


def _batch(name: str, size: int, step: int) -> dict[str, torch.Tensor]:
    source = torch.Generator("cuda").manual_seed(step % 16)
    if name in IMAGES:
        labels = torch.randint(CLASSES, (size,), device="cuda", generator=source)
        return {
            "pixel_values": torch.randn(size, 3, 224, 224, device="cuda", generator=source),
            "labels": labels,
        }
    tokens = torch.randint(VOCABULARY, (size, 256), device="cuda", generator=source)
    return {"input_ids": tokens, "labels": tokens}


class Training:
    """A model with all that takes a step."""

    def __init__(self, name: str, layers: int, half: bool, wrap: Compiler | None) -> None:
        torch.manual_seed(0)
        self.half = half
        self.net = _model(name, layers).cuda().train()
        rate = torch.tensor(3e-4, device="cuda")
        form: dict[str, Any] = (
            {"fused": True} if wrap is None else {"foreach": True, "capturable": True}
        )
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=rate, **form)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, 3e-3, total_steps=1000, cycle_momentum=False
        )
        self.scaler = torch.amp.GradScaler("cuda", enabled=half)
        parameters = list(self.net.parameters())
        self.call: Callable[..., Any] = self.net
        self.clip = lambda: nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        if wrap is not None:
            self.call, self.clip = wrap(self.net), wrap(self.clip)
            self.optimizer.step = wrap(self.optimizer.step)

    def step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        with torch.autocast("cuda", torch.float16, enabled=self.half):
            loss = self.call(**batch).loss
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        self.clip()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def parts(self) -> list[Any]:
        return [self.net, self.optimizer, self.scheduler, self.scaler]


def _saved(training: Training) -> io.BytesIO:
    file = io.BytesIO()
    torch.save([part.state_dict() for part in training.parts()], file)
    file.seek(0)
    return file


def _train(
    make: Callable[[], Training], name: str, size: int, steps: int
) -> tuple[list[float], list[float], Training]:
    """Losses and seconds of each step, with a checkpoint half way."""
    training, losses, seconds = make(), [], []
    for number in range(steps):
        if number == steps // 2:
            file = _saved(training)
            training = make()
            for part, state in zip(
                training.parts(), torch.load(file, weights_only=True), strict=True
            ):
                part.load_state_dict(state)
        batch = _batch(name, size, number)
        torch.cuda.synchronize()
        started = time.perf_counter()
        losses.append(training.step(batch))
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return [loss.item() for loss in losses], seconds, training


def _alternate(trainings: dict[str, Training], name: str, size: int) -> dict[str, float]:
    samples: dict[str, list[float]] = {key: [] for key in trainings}
    for number in range(7):
        for key, training in trainings.items():
            batch = _batch(name, size, number)
            torch.cuda.synchronize()
            started = time.perf_counter()
            for _ in range(5):
                training.step(batch)
            torch.cuda.synchronize()
            samples[key].append((time.perf_counter() - started) / 5)
    return {key: statistics.median(each) for key, each in samples.items()}


def _distance(losses: list[float], exact: list[float]) -> float:
    return statistics.fmean((a - b) ** 2 for a, b in zip(losses, exact, strict=True)) ** 0.5


def row(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Losses and times of one model."""
    compilers: dict[str, Compiler | None] = {"eager": None, "ours": torchstrata.compile}
    if not options.alone:
        compilers["tc"] = torch.compile
    size, steps = options.batch, options.steps
    losses, cold, trainings = {}, {}, {}
    with turn(exclusive=False):
        exact, _, _ = _train(lambda: Training(name, options.layers, False, None), name, size, steps)
        for key, wrap in compilers.items():
            make = lambda wrap=wrap: Training(name, options.layers, True, wrap)  # noqa: E731
            losses[key], seconds, trainings[key] = _train(make, name, size, steps)
            cold[key] = sum(seconds[:2])
            if key == "ours":
                counts = dict(torchstrata.counters)
    with turn(exclusive=True):
        times = _alternate(trainings, name, size)
    result: dict[str, Any] = {"model": name, "ms": round(1e3 * times["ours"], 2)}
    result |= {key: round(times[key] / times["ours"], 3) for key in ("eager", "tc") if key in times}
    if apart := _distance(losses["eager"], exact):
        result["error"] = round(_distance(losses["ours"], exact) / apart, 2)
    result |= {"first": round(losses["ours"][0], 3), "last": round(losses["ours"][-1], 3)}
    result |= {
        f"cold{suffix}_s": round(cold[key], 1)
        for key, suffix in (("ours", ""), ("tc", "_tc"))
        if key in cold
    }
    shown = (
        "graphs",
        "graph_breaks",
        "fallbacks",
        "generated_kernels",
        "extern_calls",
        "cuda_graphs",
    )
    return result | {"counts": "/".join(str(counts[key]) for key in shown)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="*", default=[*TEXT, *IMAGES])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--timeout", type=int, default=1200)
    parser.add_argument("--row", action="store_true")
    options = parser.parse_args()
    if options.row:
        print(json.dumps(row(options.model[0], options)), flush=True)
        return
    options.gpus = 1
    print(*SHOWN)
    rows = []
    for task, found in spread([_task(name, options) for name in options.model], options):
        rows.append({"model": task[2], **found})
        print(*(rows[-1].get(each, "-") for each in SHOWN), found.get("failed", ""), flush=True)
    for key in ("eager", "tc"):
        times = [each[key] for each in rows if key in each]
        if times:
            mean = statistics.geometric_mean(times)
            print(f"geometric mean of {key}, of {len(times)} models: {mean:.3f}")


def _task(name: str, options: argparse.Namespace) -> list[str]:
    sizes = [f"--{each}={getattr(options, each)}" for each in ("steps", "layers", "batch")]
    return ["benchmarks.gpu_training", "--row", name, *sizes, *["--alone"] * options.alone]


if __name__ == "__main__":
    main()
