"""Models on a CUDA device in bfloat16: eager, ours and torch.compile in turns; time, cold compile
time, accuracy.

usage: python -m benchmarks.gpu_models [--alone] [--again] [--default-mode] [--rotate] [--rounds N]
[--gpus N] [--jobs N] [--timeout S] [NAME[:inference|:training|:autocast]...]

A row per model and mode in results/gpu_models.json, each from a process of its own; rows that are
there are kept (``--again``: measured anew). ``--gpus``: rows are spread over so many devices, each
with its share of the cores. ``--jobs``: processes per device that compile at once; measuring waits
until nobody does there. ``--alone``: not next to torch.compile, nothing written.
``--default-mode``: not next to mode reduce-overhead. ``--rotate``: each call gets the next of four
copies of the inputs, rows of their own. ``hf`` stands for all names that begin with it;
``timm-NAME`` is any image net of timm. ``--rounds``: turns of each, of which the median counts.
``autocast``: training with parameters in float32, forward under autocast; only where it is named.
"""

from __future__ import annotations

import argparse
import copy
import functools
import itertools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks import hugging_face
from benchmarks.measure import counts_of_torch_compile, environment, save_rows
from benchmarks.processes import spread
from benchmarks.turns import turn
from integration_tests.models.zoo import ZOO

ROUNDS, SECONDS, WARM_STEPS = 7, 0.15, 7
COPIES = 4
"""Copies of the inputs that take turns with ``--rotate``."""
RESULTS = Path(__file__).parent / "results" / "gpu_models.json"
SHOWN = (
    "model", "mode", "ms", "eager", "tc", "reduce_overhead", "tc_reduce_overhead", "error",
    "cold_s", "cold_tc_s",
    "counts", "counts_tc", "replays",
)  # fmt: skip
Built = tuple[nn.Module, dict[str, torch.Tensor]]
TIMM = "timm-"


def _tokens(batch: int, length: int, vocabulary: int) -> torch.Tensor:
    return torch.randint(vocabulary, (batch, length), device="cuda")


def _transformer(name: str, batch: int, length: int, **settings: Any) -> Built:
    import transformers

    config = getattr(transformers, f"{name[0]}Config")(**settings)
    model = getattr(transformers, name[1])(config)
    tokens = _tokens(batch, length, config.vocab_size)
    return model, {"input_ids": tokens, "labels": tokens}


def _image(name: str, batch: int) -> Built:
    import timm

    net = timm.create_model(name)
    for matrix in net.parameters():
        # a head of zeros: its results are zeros, whatever was computed before
        if matrix.ndim > 1 and not matrix.any():
            nn.init.normal_(matrix, std=0.02)
    shape = net.default_cfg["input_size"]
    return net, {"x": torch.randn(batch, *shape, device="cuda", dtype=torch.bfloat16)}


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
        ("Albert", "AlbertForMaskedLM"),
        8,
        512,
        hidden_size=768,
        num_attention_heads=12,
        intermediate_size=3072,
    ),
    "t5": lambda: _transformer(
        ("T5", "T5ForConditionalGeneration"), 8, 256, decoder_start_token_id=0
    ),
    "bart": lambda: _transformer(
        ("Bart", "BartForConditionalGeneration"),
        8,
        256,
        encoder_layers=6,
        decoder_layers=6,
        d_model=768,
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
    "deberta_v2": lambda: _transformer(
        ("DebertaV2", "DebertaV2ForMaskedLM"),
        8,
        512,
        hidden_size=768,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=3072,
        vocab_size=32000,
        relative_attention=True,
        pos_att_type=["c2p", "p2c"],
        position_buckets=256,
        share_att_key=True,
    ),
    "mobilenet": lambda: _image("mobilenetv3_large_100", 128),
    "resnet50": lambda: _image("resnet50", 32),
    "convnext_tiny": lambda: _image("convnext_tiny", 32),
    "efficientnet_b0": lambda: _image("efficientnet_b0", 32),
    "vit_base": lambda: _image("vit_base_patch16_224", 32),
    "swin_tiny": lambda: _image("swin_tiny_patch4_window7_224", 32),
    "mixer": lambda: _image("mixer_b16_224", 32),
    "zoo_gpt": lambda: _zoo("gpt", 64),
    "zoo_dlrm": lambda: _zoo("dlrm", 1024),
    "zoo_unet": lambda: _zoo("unet", 16),
    **hugging_face.MODELS,
}


def _output(model: Callable[..., Any], inputs: dict[str, torch.Tensor]) -> Any:
    return model(*inputs.values()) if "0" in inputs or "x" in inputs else model(**inputs)


def _call(model: Callable[..., Any], inputs: dict[str, torch.Tensor]) -> Any:
    result = _output(model, inputs)
    return (
        result
        if isinstance(result, torch.Tensor)
        else (result.loss if getattr(result, "loss", None) is not None else result[0])
    )


def step_of(
    model: Any, net: nn.Module, inputs: dict[str, torch.Tensor], training: bool
) -> torch.Tensor:
    if not training:
        with torch.no_grad():
            return _call(model, inputs)
    net.zero_grad(set_to_none=True)
    loss = _call(model, inputs).float().mean()
    loss.backward()
    return loss


def wake_libraries(
    net: nn.Module,
    inputs: dict[str, torch.Tensor],
    training: bool,
    wrap: Callable[[Any], Any] = lambda net: net,
) -> None:
    """Eager steps in both layouts of images: what libraries choose and build at the first use of a
    shape, up to 25 s, would be charged to whoever compiles first.
    """
    images = {key: value.ndim == 4 and value.is_floating_point() for key, value in inputs.items()}
    for layout in (
        (torch.contiguous_format, torch.channels_last)
        if any(images.values())
        else (torch.contiguous_format,)
    ):
        own = copy.deepcopy(net).to(memory_format=layout)
        given = {
            key: value.contiguous(memory_format=layout) if images[key] else value
            for key, value in inputs.items()
        }
        step_of(wrap(own), own, given, training)
    torch.cuda.synchronize()


def _seconds(step: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    started = time.perf_counter()
    step()
    torch.cuda.synchronize()
    return time.perf_counter() - started


def _repeat(step: Callable[[], object], count: int) -> None:
    for _ in range(count):
        step()


def _alternate(steps: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    repeats = {
        name: max(1, int(SECONDS / min(_seconds(step) for _ in range(3))))
        for name, step in steps.items()
    }
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            times[name].append(
                _seconds(functools.partial(_repeat, step, repeats[name])) / repeats[name]
            )
    return {name: statistics.median(values) for name, values in times.items()}


def _result(model: Callable[..., Any], inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """The logits where there are some: errors of a loss, one number, nearly cancel, which says
    nothing of who is closer.
    """
    result = _output(model, inputs)
    return result if isinstance(result, torch.Tensor) else getattr(result, "logits", result[0])


def _relative_error(
    net: nn.Module,
    ours: Any,
    inputs: dict[str, torch.Tensor],
    training: bool,
    wrap: Callable[[Any], Any],
) -> float:
    """Our error over eager's (``wrap`` of a net), both against float32: of the logits or the first
    result, or of all gradients, in evaluation mode; several calls, so that replays count.
    """
    net.eval()
    wide = {
        key: value.float() if value.is_floating_point() else value for key, value in inputs.items()
    }
    exact_net, eager_net = copy.deepcopy(net).float(), copy.deepcopy(net)

    def values(call: Any, owner: nn.Module, given: dict[str, torch.Tensor]) -> torch.Tensor:
        if not training:
            with torch.no_grad():
                return _result(call, given).double().flatten()
        owner.zero_grad(set_to_none=True)
        _call(call, given).float().square().mean().backward()
        return torch.cat(
            [p.grad.double().flatten() for p in owner.parameters() if p.grad is not None]
        )

    exact, eager = values(exact_net, exact_net, wide), values(wrap(eager_net), eager_net, inputs)
    found = [values(ours, net, inputs) for _ in range(5)][-1]
    return ((found - exact).norm() / (eager - exact).norm().clamp(min=1e-6 * exact.norm())).item()


def _first_step(step: Callable[[], object], nets: list[nn.Module]) -> float:
    """Seconds of the first call; a few more follow."""
    torch.manual_seed(0)
    cold = _seconds(step)
    _repeat(step, WARM_STEPS)
    for net in nets:
        net.zero_grad(set_to_none=True)
    return cold


def build(
    name: str, training: bool, dtype: torch.dtype = torch.bfloat16
) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """A model on the device, with inputs."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        net, inputs = _image(name[len(TIMM) :], 32) if name.startswith(TIMM) else MODELS[name]()
    inputs = {
        key: value.to(dtype) if value.is_floating_point() else value
        for key, value in inputs.items()
    }
    return net.to("cuda", dtype).train(training), inputs


def _under_autocast(call: Callable[..., Any]) -> Callable[..., Any]:
    def run_under_autocast(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cuda", torch.bfloat16):
            return call(*args, **kwargs)

    return run_under_autocast


def _compilers(alone: bool, default_mode: bool) -> dict[str, Callable[[nn.Module], Any]]:
    import torchstrata

    found: dict[str, Callable[[nn.Module], Any]] = {"eager": lambda net: net}
    for name, compiler in (("", torchstrata.compile), ("tc", torch.compile)):
        if alone and name:
            continue
        found[name or "ours"] = compiler
        if not default_mode:
            found["_".join(filter(None, (name, "reduce_overhead")))] = functools.partial(
                compiler, mode="reduce-overhead"
            )
    return found


def _in_turn(
    inputs: dict[str, torch.Tensor], rotate: bool
) -> Callable[[], dict[str, torch.Tensor]]:
    """Gives the inputs of the next call."""
    copies = [inputs]
    if rotate:
        copies += [{k: v.clone() for k, v in inputs.items()} for _ in range(COPIES - 1)]
    return functools.partial(next, itertools.cycle(copies))


def run(name: str, mode: str, options: argparse.Namespace) -> dict[str, Any]:
    """One row: our milliseconds, and how many times longer the others take; seconds and
    megabytes.
    """
    import inductor_triton
    import torchstrata

    training, wrap = mode != "inference", _under_autocast if mode == "autocast" else lambda net: net
    net, inputs = build(name, training, torch.float32 if mode == "autocast" else torch.bfloat16)
    compilers = _compilers(options.alone, options.default_mode)
    wake_libraries(net, inputs, training, wrap)
    nets = {key: copy.deepcopy(net) for key in compilers}
    calls = {key: wrap(compilers[key](nets[key])) for key in compilers}
    given = _in_turn(inputs, options.rotate)
    steps = {
        key: lambda key=key: step_of(calls[key], nets[key], given(), training) for key in calls
    }
    cold = {}
    with turn(exclusive=False):
        for key, step in steps.items():
            cold[key] = _first_step(step, list(nets.values()))
            if key == "ours":
                counts = dict(torchstrata.counters)
            if key == "tc":
                counts["tc"] = counts_of_torch_compile()
    with turn(exclusive=True):
        times = _alternate(steps, options.rounds)
    row: dict[str, Any] = {
        "model": name,
        "mode": mode + " rotating" * options.rotate,
        "ms": round(times["ours"] * 1e3, 3),
    }
    row |= {
        key: round(times[key] / times["ours"], 3)
        for key in ("eager", "tc", "reduce_overhead", "tc_reduce_overhead")
        if key in times
    }
    with turn(exclusive=False):
        error = _relative_error(nets["ours"], calls["ours"], inputs, training, wrap)
    row |= {"error": round(error, 2), "cold_s": round(cold["ours"], 1)}
    if not options.alone:
        row["cold_tc_s"] = round(cold["tc"], 1)
        row["counts_tc"] = counts["tc"]
    shown = (
        "graphs",
        "graph_breaks",
        "fallbacks",
        "generated_kernels",
        "extern_calls",
        "cuda_graphs",
    )
    row["counts"] = "/".join(str(counts[key]) for key in shown)
    row["replays"] = "/".join(
        str(inductor_triton.counters[key]) for key in ("recorded", "replayed", "ran", "held")
    )
    return row


def _task(name: str, mode: str, options: argparse.Namespace) -> list[str]:
    return [
        "benchmarks.gpu_models",
        "--row",
        f"{name}:{mode}",
        *(["--alone"] if options.alone else []),
        *(["--default-mode"] if options.default_mode else []),
        *(["--rotate"] if options.rotate else []),
        f"--rounds={options.rounds}",
    ]


def _wanted(options: argparse.Namespace) -> list[tuple[str, str]]:
    names = options.names or MODELS
    asked = [
        entry.partition(":")
        for name in names
        for entry in (hugging_face.MODELS if name == "hf" else [name])
    ]
    modes = [
        (name, mode)
        for name, _, only in asked
        for mode in ("inference", "training", "autocast")
        if only in ("", mode) and (only or mode != "autocast")
    ]
    known: set[tuple[str, str]] = set()
    if RESULTS.exists() and not options.again and not options.alone:
        known = {
            (row["model"], row["mode"])
            for row in json.loads(RESULTS.read_text())["rows"]
            if "failed" not in row
        }
    return sorted(
        (entry for entry in modes if entry not in known), key=lambda entry: entry[1] == "inference"
    )


def _summarise(rows: list[dict[str, Any]]) -> None:
    """Geometric means, worst and number of rows by mode, Hugging Face's small models apart."""
    for small, mode in itertools.product((False, True), ("inference", "training", "autocast")):
        part = [r for r in rows if r["mode"] == mode and r["model"].startswith("hf-") == small]
        for key in ("eager", "tc", "tc_reduce_overhead"):
            found = [row[key] for row in part if key in row]
            if found:
                print(
                    f"{'Hugging Face, ' * small}{mode} over {key}: geomean {statistics.geometric_mean(found):.3f}, worst "
                    f"{min(found)}, of {len(found)}"
                )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    for flag in ("--alone", "--again", "--default-mode", "--rotate"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--timeout", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--row")
    options = parser.parse_args()
    if options.row:
        name, _, mode = options.row.partition(":")
        print(json.dumps(run(name, mode, options)), flush=True)
        return
    print(*SHOWN)
    for task, found in spread(
        [_task(name, mode, options) for name, mode in _wanted(options)], options
    ):
        name, _, mode = task[2].partition(":")
        row = {"model": name, "mode": mode, **found}
        print(*(row.get(key, "-") for key in SHOWN), row.get("failed", ""), flush=True)
        if not options.alone:
            save_rows("gpu_models", environment(), [row], ("model", "mode"))
    if RESULTS.exists() and not options.alone:
        _summarise(json.loads(RESULTS.read_text())["rows"])


if __name__ == "__main__":
    main()
