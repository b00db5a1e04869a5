"""Kernels, bytes and planned peak memory of the models of the CPU and GPU suites, next to
torch.compile's on the same models.

usage: python -m benchmarks.kernel_counts [MODEL...] [--modes inference training] [--again]
[--table] [--shard I/N]

Small configurations from random weights, on the CPU. Nothing generated is compiled or run: what
torch.compile does is counted from its scheduler (fused groups, and the bytes that they and its
library calls read and write), ours from the program without offers or templates of a generator.
Rows are kept in results/kernel_counts.json; a run goes on where the last one stopped (``--again``
measures ours anew), and ``--table`` only prints them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import re
import statistics
import sys
import tempfile
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import aotgrad
import bytecode_dynamo
import loopir
import sympy
import torch
from loopir.host.runs import RunStep, cut_runs
from loopir.ir.expr import substitute, symbols_of
from loopir.ir.node import View, views_in
from loopir.ir.program import ExternCall, Launch, Program
from torch import nn
from torch.profiler import ProfilerActivity, profile

from benchmarks import cpu_models
from benchmarks.measure import environment, save_rows

PAGE = """\
# Kernels, bytes and memory by model

Written by `python -m benchmarks.kernel_counts --markdown docs/kernel_counts.md` from `benchmarks/results/kernel_counts.json`
(torch {torch}, Python {python}). Small configurations from random weights; ours / torch.compile's on the same model.
*Kernels*: launches, and fused groups of its scheduler; *calls*: runs of launches, and calls of its generated functions;
*KiB moved*: read and written by kernels and library calls; *peak*: what the larger direction allocates at once beyond what
was there before, by the profiler's record, workspace of library calls included; *planned*: what the program foresees. Models
of the CPU suite in float32, of the GPU suite (from bert_lm on) in bfloat16, both on the CPU.
"""
RESULTS = Path(__file__).parent / "results" / "kernel_counts.json"


MEASURES = ("kernels", "calls", "KiB", "peak KiB")


class WithLoss(nn.Module):
    """A language model that returns its loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=tokens, labels=tokens).loss


class Features(nn.Module):
    """Of a model that takes inputs by name, the first result."""

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.model(**dict(zip(self.names, inputs, strict=True)))[0]


def hugging_face(name: str, **settings: Any) -> nn.Module:
    import transformers

    cls = getattr(transformers, name)
    config = cls.config_class(**settings)
    config.use_cache = False
    return cls(config)


def language_model(name: str, **settings: Any) -> Callable[[], cpu_models.Built]:
    return lambda: (
        WithLoss(hugging_face(name, vocab_size=500, **settings)),
        (cpu_models.tokens(2, 32, 500),),
    )


def image_model(name: str, **settings: Any) -> Callable[[], cpu_models.Built]:
    return lambda: (
        Features(hugging_face(name, **settings), ("pixel_values",)),
        (torch.randn(4, 3, 32, 32),),
    )


def whisper() -> cpu_models.Built:
    model = hugging_face(
        "WhisperForConditionalGeneration", vocab_size=500, num_mel_bins=8, max_source_positions=20,
        pad_token_id=0,
        bos_token_id=1, eos_token_id=2, decoder_start_token_id=2, **SEQUENCES,
    )  # fmt: skip
    return Features(model, ("input_features", "decoder_input_ids")), (
        torch.randn(2, 8, 40),
        cpu_models.tokens(2, 32, 500),
    )


def clip() -> cpu_models.Built:
    model = hugging_face(
        "CLIPModel", text_config={**WIDTH, "vocab_size": 500}, vision_config={**WIDTH, **PATCHES}
    )
    return Features(model, ("input_ids", "pixel_values")), (
        cpu_models.tokens(2, 32, 500),
        torch.randn(2, 3, 32, 32),
    )


WIDTH = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
}
GROUPED = {**WIDTH, "num_key_value_heads": 2}
PATCHES = {"image_size": 32, "patch_size": 8}
SEQUENCES = {
    "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128, "decoder_ffn_dim": 128,
}  # fmt: skip
# What the Triton back end is measured on, in bfloat16, the 17 named ones and seven more families.
GPU_MODELS: dict[str, Callable[[], cpu_models.Built]] = {
    "bert_lm": language_model("BertForMaskedLM", **WIDTH),
    "gpt2_lm": language_model("GPT2LMHeadModel", n_embd=64, n_layer=2, n_head=4),
    "distilbert_lm": language_model("DistilBertForMaskedLM", dim=64, n_layers=2, n_heads=4,
    hidden_dim=128),
    "albert_lm": language_model("AlbertForMaskedLM", embedding_size=32, **WIDTH),
    "t5_lm": language_model(
        "T5ForConditionalGeneration", d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4,
        decoder_start_token_id=0
    ),
    "bart_lm": language_model("BartForConditionalGeneration", **SEQUENCES),
    "llama_lm": language_model("LlamaForCausalLM", **GROUPED),
    "vit_classifier": image_model("ViTForImageClassification", **WIDTH, **PATCHES),
    "resnet50_gpu": cpu_models.MODELS["resnet50"],
    "convnext_gpu": cpu_models.timm_model("convnext_tiny", 64, 4, depths=(2, 2, 2, 2),
    dims=(32, 64, 128, 256)),
    "efficientnet_gpu": cpu_models.MODELS["efficientnet_b0"],
    "vit_base": cpu_models.timm_model("vit_base_patch16_224", 64, 2, img_size=64, embed_dim=96,
    depth=2, num_heads=4),
    "swin_gpu": cpu_models.MODELS["swin_tiny"],
    "mixer_gpu": cpu_models.timm_model("mixer_s16_224", 64, 4, img_size=64),
    "nanogpt": cpu_models.zoo("gpt", 4),
    "dlrm_gpu": cpu_models.zoo("dlrm", 256),
    "unet_gpu": cpu_models.unet,
    "roberta_lm": language_model("RobertaForMaskedLM", **WIDTH),
    "electra_lm": language_model("ElectraForMaskedLM", embedding_size=32, **WIDTH),
    "opt_lm": language_model("OPTForCausalLM", ffn_dim=128, word_embed_proj_dim=64, **WIDTH),
    "qwen2_lm": language_model("Qwen2ForCausalLM", **GROUPED),
    "mistral_lm": language_model("MistralForCausalLM", sliding_window=16, **GROUPED),
    "clip": clip,
    "whisper": whisper,
}  # fmt: skip
MODELS = {**cpu_models.MODELS, **GPU_MODELS}


def build(name: str, training: bool) -> cpu_models.Built:
    """The model and its inputs, the same for both."""
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    dtype = torch.bfloat16 if name in GPU_MODELS else torch.float32
    return model.to(dtype).train(training), tuple(
        x.to(dtype) if x.is_floating_point() else x for x in inputs
    )


class NoCode:
    """A generator of kernels that only write zeros: library calls read them, and indices must be
    valid.
    """

    device = "cpu"

    def generate(self, kernel: loopir.Kernel) -> loopir.KernelSource:
        return loopir.KernelSource(kernel, "")

    def build(
        self, sources: Sequence[loopir.KernelSource], store: object
    ) -> list[Callable[..., None]]:
        raise NotImplementedError("runs only")

    def link(
        self, sources: Sequence[loopir.KernelSource], runs: Sequence[loopir.Run], store: object
    ) -> list[Callable[..., None]]:
        return [self.launcher([source.kernel for source in sources], run) for run in runs]

    def launcher(self, kernels: Sequence[Any], run: loopir.Run) -> Callable[..., None]:
        pairs = [
            pair
            for call in run.calls
            for pair in zip(call.places, kernels[call.source].buffers, strict=True)
        ]
        written = {place.parameter for place, buffer in pairs if buffer.role != "in"}

        def launch(*arguments: Any) -> None:
            for position in written:
                arguments[position].zero_()

        return launch


def compiled_with(
    model: nn.Module, compiler: Callable[[torch.fx.GraphModule, Sequence[Any]], Callable]
) -> Callable[..., Any]:
    """The model, its functional graphs compiled by ``compiler``."""
    bytecode_dynamo.reset()
    return bytecode_dynamo.optimize(
        aotgrad.aot_backend(compiler, compiler, inference_compiler=compiler)
    )(model)


def functional_graphs(
    model: nn.Module, inputs: Sequence[Any], training: bool
) -> list[torch.fx.GraphModule]:
    """The functional graphs (C2) of one step."""
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, _: Sequence[Any]) -> Callable:
        graphs.append(graph)
        return lambda *args: graph(*args)

    with torch.set_grad_enabled(training):
        cpu_models.one_step(compiled_with(model, keep), tuple(inputs), training)
    return graphs


def bytes_of(program: Program) -> int:
    """Bytes that kernels and extern calls read and write: of each buffer the elements that some
    access can reach.
    """

    def value(expr: sympy.Expr) -> int:
        return int(
            substitute(expr, {s: sympy.Integer(program.hints.get(s, 1)) for s in symbols_of(expr)})
        )  # type: ignore[arg-type]

    def elements(view: View) -> int:
        repeated = [
            sympy.Integer(1) if step == 0 else size
            for size, step in zip(view.shape, view.stride, strict=True)
        ]
        return value(sympy.Mul(*repeated)) * program.buffers[view.buffer].dtype.itemsize

    views = {step.name: step.view for step in program.steps if hasattr(step, "view")}
    total = 0
    for step in program.steps:
        if isinstance(step, Launch):
            total += sum(_kernel_bytes(program.kernels[step.kernel], value))
        elif isinstance(step, ExternCall):
            given = {
                view.buffer: views.get(view.buffer, view)
                for view in views_in((step.node.args, dict(step.node.kwargs)))
            }
            total += sum(elements(view) for view in given.values())
            made = [program.buffers[name] for name in step.node.results if name]
            total += (
                0
                if step.node.aliases
                else sum(value(sympy.Mul(*b.shape)) * b.dtype.itemsize for b in made)
            )
    return total


def _kernel_bytes(kernel: Any, value: Callable[[sympy.Expr], int]) -> Iterator[int]:
    extents = {item.symbol: value(item.extent) for item in (*kernel.ranges, *kernel.reduction)}
    points = math.prod(extents[item.symbol] for item in kernel.ranges)
    inner_points = points * math.prod(extents[item.symbol] for item in kernel.reduction)
    accesses: dict[tuple[str, str], dict[sympy.Expr, int]] = defaultdict(dict)
    for body in kernel.bodies:
        for step in body.instructions:
            if step.op in ("load", "store"):
                accesses[step.args[0], step.op][step.args[1]] = (
                    inner_points if body.inner else points
                )
    for buffer in kernel.buffers:
        for op in ("load", "store"):
            reached = 0
            for index, most in accesses[buffer.name, op].items():
                count = math.prod(
                    extents.get(free, most if free.name.startswith("i") else 1)
                    for free in index.free_symbols
                )
                reached += min(count, most)
            yield min(reached, value(buffer.numel)) * buffer.dtype.itemsize


def ours(name: str, training: bool) -> dict[str, float]:
    """Kernels, calls of runs, extern calls, KiB moved, planned and measured peak KiB (of the larger
    direction).
    """
    model, inputs = build(name, training)
    hosts: list[loopir.HostProgram] = []
    options = loopir.Options(inference=not training, threads=1)

    def compiler(graph: torch.fx.GraphModule, given: Sequence[Any]) -> Callable:
        hosts.append(
            loopir.compile_graph(graph, given, codegens={"cpu": NoCode()}, options=options)
        )
        return hosts[-1]

    peak = measured_peak(compiled_with(model, compiler), model, inputs, training)
    programs = [host.program for host in hosts]
    steps = [step for program in programs for step in program.steps]
    runs = [
        step
        for program in programs
        for step in cut_runs(program, ["cpu"]).steps
        if isinstance(step, RunStep)
    ]
    return {
        "kernels": sum(program.launch_count for program in programs),
        "calls": len(runs),
        "externs": sum(isinstance(step, ExternCall) for step in steps),
        "KiB": sum(map(bytes_of, programs)) >> 10,
        "planned KiB": max(host.planned_peak for host in hosts) >> 10,
        "peak KiB": peak >> 10,
    }


def measured_peak(
    compiled: Callable, model: nn.Module, inputs: Sequence[Any], training: bool
) -> int:
    """Bytes that the larger direction of a second step allocates at once beyond what was there
    before.
    """
    with torch.set_grad_enabled(training):
        cpu_models.one_step(compiled, tuple(inputs), training)
        model.zero_grad(set_to_none=True)
        results: list[Any] = []
        peaks = [peak_of(lambda: results.append(compiled(*inputs)))]
        if training:
            peaks.append(
                peak_of(cpu_models.first_tensor(results[0]).float().square().mean().backward)
            )
    return max(peaks)


def peak_of(call: Callable[[], object]) -> int:
    """The most that is held at once, by the profiler's record of allocations."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        call()
    events = (e for e in record.profiler.kineto_results.events() if e.name() == "[memory]")  # type: ignore[union-attr]
    sizes = [e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())]
    return max(itertools.accumulate(sizes), default=0)


class Incumbent:
    """torch.compile that counts and compiles nothing: its kernels do nothing when called."""

    def __init__(self) -> None:
        from torch._inductor import config, metrics
        from torch._inductor.async_compile import AsyncCompile
        from torch._inductor.graph import GraphLowering

        self.metrics, self.bytes, self.fused, self.codes = metrics, 0, 0, []
        config.fx_graph_cache = False
        self.config = config
        AsyncCompile.cpp_pybinding = lambda *args, **options: lambda *arguments: None  # type: ignore[method-assign, assignment]
        AsyncCompile.wait = lambda *args: None  # type: ignore[method-assign, assignment]
        # Library calls read what no kernel wrote: indices and offsets must be valid.
        torch._C._dynamo.guards._empty_strided_cpu = lambda *given: torch.empty_strided(
            *given[:2], dtype=given[2]
        ).zero_()
        codegen = GraphLowering.codegen

        def counted(graph: Any) -> Any:
            result = codegen(graph)
            self.bytes += graph.count_bytes()[0]
            self.fused += sum(
                not (n.is_extern() or type(n).__name__.startswith("Nop"))
                for n in graph.scheduler.nodes
            )
            self.codes.append(getattr(result[0], "value", str(result[0])))
            return result

        GraphLowering.codegen = counted  # type: ignore[method-assign]

    def row(self, name: str, training: bool) -> dict[str, float]:
        """Fused groups of its scheduler, loop nests generated for them, calls of generated
        functions, KiB moved.
        """
        torch._dynamo.reset()
        self.metrics.reset()
        self.bytes, self.fused, self.codes = 0, 0, []
        model, inputs = build(name, training)
        peak = measured_peak(torch.compile(model), model, inputs, training)
        calls = sum(
            len(re.findall(r"^\s+cpp_fused\w*\(", code, re.MULTILINE)) for code in self.codes
        )
        nests = self.metrics.generated_kernel_count
        return {
            "kernels": self.fused,
            "nests": nests,
            "calls": calls,
            "KiB": self.bytes >> 10,
            "peak KiB": peak >> 10,
        }


def measure(
    name: str, mode: str, incumbent: Incumbent, known: dict[str, Any] | None
) -> dict[str, Any]:
    """One row; what torch.compile does is not measured again."""
    row: dict[str, Any] = {"model": name, "mode": mode, **ours(name, mode == "training")}
    peer = {key: value for key, value in (known or {}).items() if key.startswith("torch.compile")}
    return row | (
        peer
        or {f"torch.compile {key}": v for key, v in incumbent.row(name, mode == "training").items()}
    )


def show(row: dict[str, Any]) -> str:
    cells = [f"{row['model']:16s} {row['mode']:9s}"]
    for key in MEASURES:
        mine, peer = row[key], row.get(f"torch.compile {key}", 0)
        cells.append(f"{key} {mine:.0f} / {peer:.0f} = {mine / peer if peer else 0:.2f}")
    cells.append(f"nests {row.get('torch.compile nests', 0)}")
    return "   ".join(
        [*cells, f"externs {row['externs']:.0f}", f"planned {row['planned KiB']} KiB"]
    )


def summary(rows: Sequence[dict[str, Any]]) -> str:
    lines = []
    for mode in ("inference", "training"):
        chosen = [row for row in rows if row["mode"] == mode]
        parts = []
        for key in MEASURES:
            ratios = [
                row[key] / row[f"torch.compile {key}"]
                for row in chosen
                if row[key] and row.get(f"torch.compile {key}")
            ]
            parts.append(f"{key} {statistics.geometric_mean(ratios):.3f}" if ratios else f"{key} -")
        lines.append(
            f"geomean over torch.compile, {mode}, {len(chosen)} models: {', '.join(parts)}"
        )
    return "\n".join(lines)


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The page of docs."""
    context = json.loads(RESULTS.read_text())["environment"]
    lines = [
        PAGE.format(**context),
        "| model | mode | kernels | calls | KiB moved | extern calls | planned peak KiB | peak KiB "
        "|",
        "|" + "---|" * 8,
    ]
    for row in rows:
        cells = [f"{row[key]:.0f} / {row[f'torch.compile {key}']:.0f}" for key in MEASURES]
        cells[3:] = [f"{row['externs']:.0f}", f"{row['planned KiB']:.0f}", cells[3]]
        lines.append(f"| {row['model']} | {row['mode']} | {' | '.join(cells)} |")
    return "\n".join(
        [*lines, "", summary(rows).replace("geomean", "Geomean").replace("\n", ".\n\n") + ".", ""]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", default=[])
    parser.add_argument("--modes", nargs="*", default=["inference", "training"])
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--shard", default="0/1")
    parser.add_argument("--markdown", type=Path, help="write the table there, nothing else")
    arguments = parser.parse_args()
    known = (
        {(r["model"], r["mode"]): r for r in json.loads(RESULTS.read_text())["rows"]}
        if RESULTS.exists()
        else {}
    )
    cases = [(name, mode) for name in arguments.models or MODELS for mode in arguments.modes]
    index, count = map(int, arguments.shard.split("/"))
    if arguments.markdown:
        arguments.markdown.write_text(markdown([known[case] for case in cases if case in known]))
        return
    if not arguments.table:
        import os

        from integration_tests.models.vision import import_torchvision

        import_torchvision()  # transformers and timm import it
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", tempfile.mkdtemp())
        incumbent = Incumbent()
        for name, mode in cases[index::count]:
            if (name, mode) in known and not arguments.again:
                continue
            try:
                row = measure(name, mode, incumbent, known.get((name, mode)))
            except Exception as error:
                print(name, mode, f"{type(error).__name__}: {str(error)[:300]}", file=sys.stderr)
                traceback.print_exc(limit=-3)
                continue
            known[name, mode] = row
            print(show(row), flush=True)
            save_rows("kernel_counts", environment(), [row], ("model", "mode"))
    rows = [known[case] for case in cases if case in known]
    if arguments.table:
        print("\n".join(map(show, rows)))
    print(summary(rows))


if __name__ == "__main__":
    main()
