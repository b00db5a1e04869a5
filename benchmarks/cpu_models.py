"""Models on the CPU: ours and torch.compile over eager, inference and training, with cold and warm
compile times and memory.

usage: python benchmarks/cpu_models.py [MODEL...] [--dtypes fp32 bf16] [--modes inference training]
[--save] [--check]

Every case runs in a process of its own with empty caches; a second process compiles again with the
caches that the first left.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).parents[1])  # this directory has files named like packages

import torch
from torch import nn

from benchmarks import hugging_face

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
Built = tuple[nn.Module, tuple[Any, ...]]


def tokens(batch: int, length: int, vocabulary: int = 1000) -> torch.Tensor:
    return torch.randint(0, vocabulary, (batch, length))


def bert() -> Built:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=1000,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
    )
    return BertModel(config), (tokens(4, 128),)


def gpt2() -> Built:
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(vocab_size=1000, n_embd=256, n_layer=4, n_head=4, use_cache=False)
    return GPT2Model(config), (tokens(4, 128),)


def llama() -> Built:
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        vocab_size=1000, hidden_size=256, intermediate_size=688, num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2, use_cache=False,
    )  # fmt: skip
    return LlamaModel(config), (tokens(4, 128),)


def t5() -> Built:
    from transformers import T5Config, T5EncoderModel

    config = T5Config(vocab_size=1000, d_model=256, d_kv=64, d_ff=1024, num_layers=4, num_heads=4)
    return T5EncoderModel(config), (tokens(4, 128),)


def timm_model(name: str, size: int, batch: int, **options: Any) -> Callable[[], Built]:
    def build() -> Built:
        import timm

        return timm.create_model(name, num_classes=100, **options), (
            torch.randn(batch, 3, size, size),
        )

    return build


def zoo(name: str, batch: int) -> Callable[[], Built]:
    def build() -> Built:
        from integration_tests.models.zoo import ZOO

        entry = next(entry for entry in ZOO if entry.name == name)
        return entry.build(), tuple(entry.inputs(batch))

    return build


def resnet18() -> Built:
    from integration_tests.models.zoo import ResNet18

    return ResNet18(width=64), (torch.randn(4, 3, 64, 64),)


def unet() -> Built:
    from integration_tests.models.zoo import UNet

    return UNet(width=16), (torch.randn(4, 3, 64, 64),)


class WithKeywords(nn.Module):
    """A model that takes its keyword arguments in order."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *values: torch.Tensor) -> Any:
        return self.model(**dict(zip(self.names, values)))


def hugging_face_model(name: str) -> Callable[[], Built]:
    def build() -> Built:
        model, inputs = hugging_face.MODELS[name]()
        return WithKeywords(model, tuple(inputs)), tuple(inputs.values())

    return build


class Stencil(nn.Module):
    """Ten steps of a reaction and diffusion equation on a periodic grid."""

    def __init__(self) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.tensor(0.1))

    def forward(self, u: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        for _ in range(10):
            reaction = u * v * v
            u, v = (
                u + self.rate * self.laplacian(u) - reaction + 0.04 * (1 - u),
                v + 0.5 * self.rate * self.laplacian(v) + reaction - 0.1 * v,
            )
        return torch.stack([u, v])

    @staticmethod
    def laplacian(x: torch.Tensor) -> torch.Tensor:
        return x.roll(1, 0) + x.roll(-1, 0) + x.roll(1, 1) + x.roll(-1, 1) - 4 * x


def stencil() -> Built:
    return Stencil(), (torch.rand(256, 256), torch.rand(256, 256))


MODELS: dict[str, Callable[[], Built]] = {
    "bert": bert,
    "gpt2": gpt2,
    "llama": llama,
    "t5": t5,
    "vit": timm_model("vit_tiny_patch16_224", 96, 4, img_size=96, depth=6),
    "resnet50": timm_model("resnet50", 64, 2),
    "convnext_tiny": timm_model("convnext_atto", 64, 4),
    "efficientnet_b0": timm_model("efficientnet_b0", 64, 4),
    "swin_tiny": timm_model("swin_tiny_patch4_window7_224", 112, 2, img_size=112, embed_dim=48,
    depths=(2, 2, 2, 2)),
    "mixer": timm_model("mixer_s32_224", 224, 4),
    "resnet18": resnet18,
    "unet": unet,
    "dlrm": zoo("dlrm", 256),
    "lstm": zoo("lstm", 16),
    "stencil": stencil,
    **{name: hugging_face_model(name) for name in hugging_face.MODELS},
}  # fmt: skip


def first_tensor(value: Any) -> torch.Tensor:
    """The first tensor of a model's output."""
    if isinstance(value, torch.Tensor):
        return value
    items = value.values() if isinstance(value, dict) else value
    return first_tensor(next(iter(items)))


def one_step(call: Callable[..., Any], inputs: tuple[Any, ...], training: bool) -> None:
    if not training:
        call(*inputs)
        return
    first_tensor(call(*inputs)).float().square().mean().backward()


def build(name: str, dtype: torch.dtype, training: bool) -> Built:
    from integration_tests.models.vision import import_torchvision

    import_torchvision()  # transformers and timm import it
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    return model.to(dtype).train(training), cast_inputs(inputs, dtype)


def cast_inputs(inputs: tuple[Any, ...], dtype: torch.dtype) -> tuple[Any, ...]:
    return tuple(
        x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in inputs
    )


def compiler(name: str) -> Callable[[nn.Module], Callable[..., Any]]:
    if name == "ours":
        import torchstrata

        return torchstrata.compile
    return torch.compile


def run_case(name: str, dtype: str, training: bool, peer: bool, steady: bool) -> dict[str, Any]:
    """Seconds to the end of the first step, per compiler in a process of its own (``steady``
    False), or medians in turns.
    """
    from benchmarks.measure import alternate, counts_of_torch_compile, single_thread_clock

    model, inputs = build(name, DTYPES[dtype], training)
    with torch.set_grad_enabled(training):
        if not steady:
            one_step(model, inputs, training)
            call = compiler("torch.compile" if peer else "ours")(model)
            below = [] if peer else time_below_autograd()
            started = time.perf_counter()
            one_step(call, inputs, training)
            seconds = time.perf_counter() - started
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
            return {"compile s": round(seconds, 2), "peak MB": peak} | (
                {"graphs/breaks": counts_of_torch_compile()}
                if peer
                else {"back end s": round(sum(below), 2), "graphs/breaks/fallbacks": counts()}
            )
        calls = {"eager": model, "ours": compiler("ours")(build(name, DTYPES[dtype], training)[0])}
        if peer:
            calls["torch.compile"] = compiler("torch.compile")(
                build(name, DTYPES[dtype], training)[0]
            )
        timed = {
            key: (lambda call=call: one_step(call, inputs, training)) for key, call in calls.items()
        }
        result = alternate(timed, rounds=11, seconds=0.05, clock=single_thread_clock())
    row = {f"{key} ms": round(1e3 * value, 3) for key, value in result.items()}
    return row | {
        f"{key} over eager": round(result["eager"] / value, 2)
        for key, value in result.items()
        if key != "eager"
    }


def counts() -> str:
    """Our graphs, breaks and fallbacks so far."""
    from torchstrata import counters

    return "/".join(str(counters[key]) for key in ("graphs", "graph_breaks", "fallbacks"))


def time_below_autograd() -> list[float]:
    """Grows by the seconds of every functional graph that the stack compiles from now on."""
    from torchstrata import stages

    seconds, compile_functional = [], stages.compile_functional

    def timed(*arguments: Any) -> Any:
        started = time.perf_counter()
        try:
            return compile_functional(*arguments)
        finally:
            seconds.append(time.perf_counter() - started)

    stages.compile_functional = timed
    return seconds


def judged(
    model: nn.Module, call: Callable[..., Any], inputs: tuple[Any, ...], training: bool
) -> dict[str, torch.Tensor]:
    """Output, and with ``training`` gradients and buffers."""
    from integration_tests.rule import train_step

    if training:
        return train_step(lambda *x: first_tensor(call(*x)), model, inputs)
    with torch.no_grad():
        return {"output": first_tensor(call(*inputs))}


def check_case(
    name: str, dtype: str, training: bool, draws: tuple[int, ...] = (16, 64)
) -> dict[str, Any]:
    """Whether our results follow the rule (``integration_tests/rule.py``); dropout is off, for its
    numbers are other ones.

    When a tensor's median over the first number of ``draws`` is too large, the next number decides.
    """
    from integration_tests.rule import assert_draws_by_rule, draw_errors, to_double

    model, _ = build(name, DTYPES[dtype], training)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if hasattr(module, "drop_prob"):  # timm's DropPath
            module.drop_prob = 0.0
    twin, double = copy.deepcopy(model), to_double(model)
    call, eps = compiler("ours")(twin), torch.finfo(DTYPES[dtype]).eps
    states = [(net, copy.deepcopy(net.state_dict())) for net in (model, twin, double)]
    found: dict[str, list[tuple[float, float]]] = {}
    for seed in range(draws[-1]):
        torch.manual_seed(seed)
        inputs = cast_inputs(MODELS[name]()[1], DTYPES[dtype])
        for net, state in states:
            net.load_state_dict(state)
        exact = judged(double, double, to_double(inputs), training)
        eager = judged(model, model, inputs, training)
        for key, value in judged(twin, call, inputs, training).items():
            found.setdefault(key, []).append(draw_errors(value, eager[key], exact[key], key))
        if seed + 1 not in draws:
            continue
        try:
            worst = max(assert_draws_by_rule(errors, eps, key) for key, errors in found.items())
            return {
                "correct": len(found),
                "draws": seed + 1,
                "worst error over eager's": round(worst, 2),
            }
        except AssertionError:
            if seed + 1 == draws[-1]:
                raise
    raise ValueError(f"no draws: {draws}")


def in_process(arguments: list[str], caches: str) -> dict[str, Any]:
    """A case in a fresh interpreter; its last line is JSON."""
    environment = {
        **os.environ,
        "STRATA_CACHE_DIR": f"{caches}/ours",
        "TORCHINDUCTOR_CACHE_DIR": f"{caches}/peer",
    }
    Path(f"{caches}/ours").mkdir(mode=0o700, exist_ok=True)
    done = subprocess.run(
        [sys.executable, __file__, *arguments], capture_output=True, text=True, env=environment
    )
    if done.returncode:
        return {
            "failed": done.stderr.strip().splitlines()[-1][:200] if done.stderr.strip() else "?"
        }
    return json.loads(done.stdout.strip().splitlines()[-1])


def measure(
    name: str, dtype: str, mode: str, peer: bool, compile_times: bool, check: bool
) -> dict[str, Any]:
    row: dict[str, Any] = {"case": name, "dtype": dtype, "mode": mode}
    with tempfile.TemporaryDirectory() as caches:
        if check:
            return row | in_process(["--case", name, dtype, mode, "check"], caches)
        for who in ("ours", "peer") if compile_times else ():
            if who == "peer" and not peer:
                continue
            label = "torch.compile" if who == "peer" else "ours"
            for state in ("cold", "warm"):
                found = in_process(["--case", name, dtype, mode, who], caches)
                row |= {f"{label} {state} {key}": value for key, value in found.items()}
        row |= in_process(
            ["--case", name, dtype, mode, "steady-peer" if peer else "steady"], caches
        )
    return row


def saved_rows(commit: str) -> list[dict[str, Any]]:
    """Rows without failures that an earlier run of a commit saved."""
    path = Path(__file__).parent / "results" / "cpu_models.json"
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    return [
        row
        for row in rows
        if row.get("commit") == commit and not any("failed" in name for name in row)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", default=[])
    parser.add_argument("--dtypes", nargs="*", default=["fp32"], choices=DTYPES)
    parser.add_argument(
        "--modes", nargs="*", default=["inference", "training"], choices=["inference", "training"]
    )
    parser.add_argument("--no-peer", action="store_true", help="leave torch.compile out")
    parser.add_argument("--no-compile-times", action="store_true")
    parser.add_argument(
        "--check",
        action="store_true",
        help="results by the rule of integration_tests/rule.py, not times",
    )
    parser.add_argument(
        "--save", action="store_true", help="write benchmarks/results/cpu_models.json"
    )
    parser.add_argument(
        "--resume", action="store_true", help="leave out rows that are saved for this commit"
    )
    parser.add_argument("--case", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        name, dtype, mode, kind = arguments.case
        training = mode == "training"
        steady, peer = kind.startswith("steady"), kind.endswith("peer")
        print(
            json.dumps(
                check_case(name, dtype, training)
                if kind == "check"
                else run_case(name, dtype, training, peer, steady)
            )
        )
        return
    from benchmarks.measure import environment, save_rows

    context, key = environment(), ("case", "dtype", "mode")
    print("  ".join(f"{name} {value}" for name, value in context.items()))
    rows = saved_rows(context["commit"]) if arguments.resume else []
    done = {tuple(row[part] for part in key) for row in rows}
    for case in itertools.product(arguments.models or MODELS, arguments.dtypes, arguments.modes):
        if case in done:
            continue
        row = measure(*case, not arguments.no_peer, not arguments.no_compile_times, arguments.check)
        rows.append(row)
        print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
        if arguments.save:
            save_rows("cpu_models", context, rows, key)
    for ratio in ("ours over eager", "torch.compile over eager"):
        values = [row[ratio] for row in rows if ratio in row]
        if values:
            print(f"geomean {ratio}: {statistics.geometric_mean(values):.2f} of {len(values)}")


if __name__ == "__main__":
    main()
