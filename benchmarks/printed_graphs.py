"""Graphs that tracers print, compiled as programs: the text, with the weights as arguments or as
attributes.

usage: python -m benchmarks.printed_graphs make DIRECTORY [NAME...] [--device cuda]
                                                [--tracers export module fx dynamo]
       python -m benchmarks.printed_graphs run DIRECTORY [NAME...] [--incumbent] [--jobs N]
                                               [--training]

``make`` traces timm, torchvision and transformers architectures with random weights. ``export``:
ATen calls, weights as arguments; ``module``: the same, weights as attributes; ``fx``: symbolic
tracing, which calls submodules; ``dynamo``: torch calls, weights as arguments, and the constants of
normalisation as tensors of no dimension whose numbers the text reads. ``run`` compiles each program
in a process of its own and compares with eager mode.
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import json
import os
import runpy
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from types import ModuleType, NoneType
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from benchmarks.measure import alternate
from integration_tests.models import hf, vision

OTHER_SIZES = {
    "hiera_tiny_224": 224, "mvitv2_tiny": 224, "nest_tiny": 224, "swiftformer_xs": 224,
    "tiny_vit_5m_224": 224, "vit_relpos_small_patch16_224": 224, "xception41": 96,
}  # fmt: skip
MORE = """
    davit_tiny efficientvit_b0 efficientvit_m0 fasternet_t0 fastvit_t8 focalnet_tiny_srf hgnet_tiny
    hiera_tiny_224 inception_next_atto mambaout_femto caformer_s18 mobilenetv4_conv_small
    mvitv2_tiny nest_tiny nextvit_small rdnet_tiny repghostnet_050 repvit_m0_9 starnet_s1
    swiftformer_xs tiny_vit_5m_224 vit_relpos_small_patch16_224 resnetv2_50 xception41 shvit_s1
    lowformer_b0 cs3darknet_s
"""
ENTRIES = {
    entry.name: entry
    for entry in (
        *hf.NAMED, *hf.EXTRA, *vision.NAMED, *vision.EXTRA,
        *(vision.timm_(name, OTHER_SIZES.get(name, 64)) for name in MORE.split()),
    )
}  # fmt: skip
WITH_CONSTANTS = {
    torch.nn.functional.batch_norm,
    torch.nn.functional.layer_norm,
    torch.nn.functional.group_norm,
}
SECONDS = 400


def export(model: nn.Module, inputs: dict[str, Any]) -> Iterator[tuple[nn.Module, list[Any]]]:
    """The exported graph and what stands for its placeholders."""
    program = torch.export.export(model, (), inputs, strict=False)
    signature, state = program.graph_signature, {**program.state_dict, **program.constants}
    given = iter(pytree.tree_leaves(inputs))
    values = []
    for spec in signature.input_specs:
        stored = spec.target is not None
        values.append(state[spec.target] if stored else next(given))
    yield program.graph_module, values


def module(model: nn.Module, inputs: dict[str, Any]) -> Iterator[tuple[nn.Module, list[Any]]]:
    """The exported program with its weights as attributes."""
    made = torch.export.export(model, (), inputs, strict=False).module()
    assert isinstance(made, GraphModule)
    graph = torch.fx.Graph()
    result = graph.graph_copy(made.graph, {})
    graph.output(result)
    for node in graph.find_nodes(op="call_module", target="_guards_fn"):
        graph.erase_node(node)
    graph.set_codegen(torch.fx.graph.CodeGen())
    yield (
        GraphModule(dict(made.named_modules()) | tensors_of(made), graph),
        pytree.tree_leaves(inputs),
    )


def tensors_of(model: nn.Module) -> dict[str, Any]:
    """Parameters, buffers and constants by their dotted names."""
    held: dict[str, Any] = dict(model.named_parameters(remove_duplicate=False))
    held |= dict(model.named_buffers(remove_duplicate=False))
    for name, child in model.named_modules():
        for key, value in vars(child).items():
            if isinstance(value, torch.Tensor):
                held[f"{name}.{key}".lstrip(".")] = value
    return held


def fx(model: nn.Module, inputs: dict[str, Any]) -> Iterator[tuple[nn.Module, list[Any]]]:
    """The symbolic trace, whose text reads attributes and calls submodules."""
    yield torch.fx.symbolic_trace(model), list(inputs.values())


def dynamo(model: nn.Module, inputs: dict[str, Any]) -> Iterator[tuple[nn.Module, list[Any]]]:
    """torch.compile's graphs, with the constants of normalisation as tensors."""
    found: list[tuple[GraphModule, list[Any]]] = []

    def backend(gm: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        graph = torch.fx.Graph()
        graph.output(graph.graph_copy(gm.graph, {}))
        found.append((GraphModule(gm, graph), [*example_inputs]))
        return gm.forward

    torch._dynamo.reset()
    torch.compile(model, backend=backend)(**inputs)
    for gm, values in found:
        values += lift_constants(gm)
        yield gm, values


def lift_constants(gm: GraphModule) -> list[torch.Tensor]:
    """Turns numbers that normalisation is called with into arguments; their values."""
    lifted: dict[float, torch.fx.Node] = {}
    last = gm.graph.find_nodes(op="placeholder")[-1]
    for node in [node for node in gm.graph.nodes if node.target in WITH_CONSTANTS]:
        for number in {v for v in (*node.args, *node.kwargs.values()) if type(v) is float}:
            if number not in lifted:
                with gm.graph.inserting_after(last):
                    last = lifted[number] = gm.graph.placeholder(f"number_{len(lifted)}")
            with gm.graph.inserting_before(node):
                read = gm.graph.call_method("item", (lifted[number],))
            node.args = tuple(read if v == number and type(v) is float else v for v in node.args)
            node.kwargs = {
                k: read if v == number and type(v) is float else v for k, v in node.kwargs.items()
            }
    gm.recompile()
    return [torch.tensor(number, dtype=torch.float64) for number in lifted]


TRACERS = {function.__name__: function for function in (export, module, fx, dynamo)}


def make(directory: Path, name: str, tracers: list[str], device: str) -> None:
    """Writes the programs of one architecture."""
    for tracer in tracers:
        torch.manual_seed(0)
        entry = ENTRIES[name]
        model = entry.build().eval().to(device)
        inputs: dict[str, Any] = entry.example(model, 2, 16)
        inputs = {key: value.to(device) for key, value in inputs.items()}
        inputs.pop("labels", None)
        if "use_cache" in inspect.signature(model.forward).parameters:
            inputs["use_cache"] = False
        path = directory / f"{name}.{tracer}.0"
        try:
            for index, (gm, values) in enumerate(TRACERS[tracer](model, inputs)):
                path = directory / f"{name}.{tracer}.{index}"
                path.mkdir(parents=True, exist_ok=True)
                write(path, gm, values)
        except Exception as error:
            shutil.rmtree(path, ignore_errors=True)
            print(f"{name}.{tracer}: not traced: {type(error).__name__}: {str(error)[:90]!r}")


def write(path: Path, gm: nn.Module, values: list[Any]) -> None:
    """Text, attributes and arguments of one program."""
    assert isinstance(gm, GraphModule)
    code = gm.graph.python_code("self")
    imports = [imported(name, value) for name, value in code.globals.items()]
    (path / "program.py").write_text("\n".join([*imports, code.src]))
    held = {**vars(gm), **gm._parameters, **gm._buffers}
    arguments = [
        value.detach().requires_grad_(value.requires_grad)
        if isinstance(value, torch.Tensor)
        else value
        for value in values
    ]
    attributes = {name: value for name, value in held.items() if isinstance(value, torch.Tensor)}
    attributes |= dict(gm.named_children())
    torch.save({"attributes": attributes, "arguments": arguments}, path / "state.pt")


def imported(name: str, value: Any) -> str:
    """The statement that makes a name of a printed graph known."""
    if isinstance(value, ModuleType):
        return f"import {value.__name__} as {name}"
    if isinstance(value, float):
        return f"{name} = float('{value}')"
    if value is NoneType:
        return f"{name} = type(None)"
    return f"from {value.__module__} import {value.__qualname__} as {name}"


def load(path: Path) -> tuple[nn.Module, list[Any]]:
    """A module with the printed ``forward``, and its arguments."""
    vision.import_torchvision()
    if importlib.util.find_spec("transformers.integrations.moe") is not None:
        importlib.import_module("transformers.integrations.moe")  # defines operators
    held = torch.load(path / "state.pt", weights_only=False)
    space = runpy.run_path(str(path / "program.py"))
    program = type("Printed", (nn.Module,), {"forward": space["forward"]})()
    for name, value in held["attributes"].items():
        setattr(program, name, value)
    return program, held["arguments"]


def judge(path: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Compiles one program; what happened."""
    import torchstrata

    torch.manual_seed(0)
    torch.backends.cudnn.allow_tf32 = False  # the algorithm that is chosen would decide the digits
    program, values = load(path)
    with torch.set_grad_enabled(arguments.training):
        expected = program(*values)
        started = time.perf_counter()
        program(*values)
        row: dict[str, Any] = {"name": path.name}
        eager = time.perf_counter() - started
        compiled = torchstrata.compile(program)
        started = time.perf_counter()
        result = compiled(*values)
        row["cold"] = round(time.perf_counter() - started - eager, 2)
        row["difference"] = difference(result, expected)
        counters = torchstrata.counters
        row |= {key: counters[key] for key in ("graphs", "graph_breaks", "fallbacks")}
        calls = {"eager": lambda: program(*values), "ours": lambda: compiled(*values)}
        if arguments.incumbent:
            importlib.import_module("torch._inductor.compile_fx")  # as ours was, before the clock
            theirs = torch.compile(program)
            started = time.perf_counter()
            try:
                theirs(*values)
                calls["theirs"] = lambda: theirs(*values)
            except Exception as error:
                row["their error"] = f"{type(error).__name__}: {str(error)[:90]}"
            row["their cold"] = round(time.perf_counter() - started - eager, 2)
            counts = torch._dynamo.utils.counters
            row["their graphs"] = counts["stats"]["unique_graphs"]
            row["their breaks"] = sum(counts["graph_break"].values())
        on_cuda = any(isinstance(v, torch.Tensor) and v.is_cuda for v in values)
        medians = alternate(calls, rounds=5, clock=awaited_clock if on_cuda else None)
        later = difference(compiled(*values), program(*values))  # recordings are replayed by now
        row["difference"] = max(row["difference"], later)
        row |= {
            f"{key} speed": round(medians["eager"] / medians[key], 3)
            for key in calls
            if key != "eager"
        }
    return row


def awaited_clock() -> float:
    """The time once the device has done what was queued."""
    torch.cuda.synchronize()
    return time.perf_counter()


def difference(result: Any, expected: Any) -> float:
    """Largest difference over the scale; infinite where kinds or shapes differ."""
    found, wanted = pytree.tree_leaves(result), pytree.tree_leaves(expected)
    largest = 0.0 if len(found) == len(wanted) else float("inf")
    for a, b in zip(found, wanted):
        if not isinstance(b, torch.Tensor):
            largest = max(largest, 0.0 if a == b else float("inf"))
            continue
        if (a.shape, a.dtype, a.device) != (b.shape, b.dtype, b.device):
            return float("inf")
        if b.numel():
            wide_a, wide_b = a.detach().to(torch.complex128), b.detach().to(torch.complex128)
            gap = torch.where(wide_a == wide_b, 0, wide_a - wide_b).abs()
            scale = wide_b.abs().nan_to_num(0, 0, 0).max().item()
            largest = max(largest, gap.nan_to_num(0).max().item() / max(scale, 1e-12))
    return largest


def child(command: list[str]) -> str:
    """Runs this file again for one name, with caches of its own; what it printed."""
    with tempfile.TemporaryDirectory() as caches:
        own = {
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
            "STRATA_CACHE_DIR": f"{caches}/ours",
            "TORCHINDUCTOR_CACHE_DIR": f"{caches}/theirs",
            "TRITON_CACHE_DIR": f"{caches}/triton",
        }
        try:
            done = subprocess.run(
                [sys.executable, "-W", "ignore", "-m", "benchmarks.printed_graphs", *command],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SECONDS,
                env=os.environ | own,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"not finished after {SECONDS} s"
    return done.stdout.strip()


def summary(rows: list[dict[str, Any]], asked: int) -> str:
    """What became one graph, and the medians next to torch.compile where it ran."""

    def whole(prefix: str, breaks: str) -> list[dict[str, Any]]:
        return [r for r in rows if r.get(f"{prefix}graphs") == 1 and not r[f"{prefix}{breaks}"]]

    ours = [r for r in whole("", "graph_breaks") if not r["fallbacks"]]
    text = f"{asked} programs, {len(rows)} ran, {len(ours)} whole"
    beside = [r for r in rows if "theirs speed" in r]
    if beside:
        cold = statistics.median(r["cold"] / r["their cold"] for r in beside)
        speed = statistics.median(r["ours speed"] / r["theirs speed"] for r in beside)
        text += f"; torch.compile: {len(beside)} ran, {len(whole('their ', 'breaks'))} whole"
        text += f"; median of our cold time over theirs {cold:.2f}, of our speed {speed:.2f}"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=["make", "run"])
    parser.add_argument("directory", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--tracers", nargs="*", default=[*TRACERS], choices=TRACERS)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--device", default="cpu", help="of the programs that are made")
    parser.add_argument("--training", action="store_true")
    parser.add_argument("--incumbent", action="store_true", help="torch.compile beside ours")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        if arguments.task == "make":
            make(arguments.directory, arguments.names[0], arguments.tracers, arguments.device)
        else:
            print("row", json.dumps(judge(arguments.directory / arguments.names[0], arguments)))
        return
    if arguments.task == "make":
        names = arguments.names or [*ENTRIES]
    else:
        names = arguments.names or sorted(path.name for path in arguments.directory.iterdir())
    options = [argument for argument in sys.argv[3:] if argument not in arguments.names]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        made = {
            pool.submit(
                child, [arguments.task, str(arguments.directory), name, "--one", *options]
            ): name
            for name in names
        }
        rows = []
        for future in as_completed(made):
            lines = future.result().splitlines()
            if lines and lines[-1].startswith("row "):
                rows.append(json.loads(lines.pop()[4:]))
                print(rows[-1], flush=True)
            for line in lines[-3:]:
                print(f"{made[future]}: {line}"[:300], flush=True)
    if rows:
        print(summary(rows, len(names)))


if __name__ == "__main__":
    main()
