"""``python -m torchstrata compile`` and ``inspect``."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import bytecode_dynamo
import torch

from torchstrata import api
from torchstrata.errors import ArtifactError, CompileError, UsageError

from .archive import Archive, read_archive
from .facts import Json
from .saving import save
from .signature import Signature

SPEC = """the arguments as JSON: {"args": [...], "kwargs": {...}}, or a list of these. A tensor is
{"shape": [2, 16], "dtype": "int64", "device": "cpu", "dynamic": [0]}, everything but the shape
optional; other values stand for themselves. "training": true compiles forward and backward, else
the module is compiled in evaluation mode under no_grad"""


def add_commands(commands: argparse._SubParsersAction) -> None:
    """Adds both commands; each sets ``run``."""
    parser = commands.add_parser("compile", help="compile a function or module to a file")
    parser.add_argument("target", metavar="MODULE:FACTORY", help="a function without parameters "
                        "that returns the function or module to compile")  # fmt: skip
    parser.add_argument("--inputs", type=Path, required=True, metavar="SPEC", help=SPEC)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE")
    parser.add_argument("--weights", action="store_true", help="with parameters and buffers")
    parser.add_argument("--mode", help="as compile() takes it")
    parser.set_defaults(run=_compile)
    parser = commands.add_parser("inspect", help="what a file contains; nothing in it runs")
    parser.add_argument("file", type=Path)
    parser.add_argument("part", nargs="?", help="a member to print, such as 0/captured.txt")
    parser.set_defaults(run=_inspect)


def run(chosen: argparse.Namespace) -> int:
    """Runs the command chosen; 1 with a message where that fails."""
    try:
        print(chosen.run(chosen))
    except (ArtifactError, CompileError, UsageError, bytecode_dynamo.Unsupported) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _compile(chosen: argparse.Namespace) -> str:
    target = _target(chosen.target)
    compiled = api.compile(target, mode=chosen.mode)
    specs = _specs(chosen.inputs)
    for spec in specs:
        training = bool(spec.get("training"))
        if isinstance(target, torch.nn.Module):
            target.train(training)
        args, kwargs = _value(spec.get("args", [])), _value(spec.get("kwargs", {}))
        with torch.set_grad_enabled(training):
            compiled.precompile(*args, **kwargs)
    save(compiled, chosen.output, weights=chosen.weights)
    return f"{len(specs)} signatures written to {chosen.output}"


def _target(text: str) -> Any:
    module, _, name = text.partition(":")
    sys.path.insert(0, "")  # as python -m does for the module that it runs
    try:
        factory: Callable[[], Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"no factory {text!r}: {error}") from error
    return factory()


def _specs(path: Path) -> list[Mapping[str, Any]]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"can't read the inputs {path}: {error}") from error
    specs = found if isinstance(found, list) else [found]
    for spec in specs:
        if not isinstance(spec, dict):
            raise UsageError(f"{path}: {spec!r} is no object with args, kwargs or training")
        unknown = sorted(spec.keys() - {"args", "kwargs", "training"})
        if unknown:
            raise UsageError(f"{path}: {', '.join(unknown)}: not args, kwargs or training")
    return specs


def _value(value: Json) -> Any:
    """The value that JSON stands for; tensors have no meaningful contents."""
    if isinstance(value, list):
        return [*map(_value, value)]
    if not isinstance(value, dict):
        return value
    if "shape" not in value:
        return {key: _value(item) for key, item in value.items()}
    dtype = getattr(torch, value.get("dtype", "float32"), None)
    if not isinstance(dtype, torch.dtype):
        raise UsageError(f"{value['dtype']!r} is no dtype of torch")
    try:
        tensor = torch.zeros(value["shape"], dtype=dtype, device=value.get("device", "cpu"))
    except (RuntimeError, TypeError) as error:
        raise UsageError(f"no tensor {value}: {error}") from error
    for dim in value.get("dynamic", ()):
        bytecode_dynamo.mark_dynamic(tensor, dim)
    return tensor


def _inspect(chosen: argparse.Namespace) -> str:
    archive = read_archive(chosen.file, trust=False)
    if chosen.part is None:
        return "\n".join(describe(archive))
    if chosen.part not in archive.parts:
        raise UsageError(f"no part {chosen.part}; there are {', '.join(archive.parts)}")
    return archive.parts[chosen.part].decode(errors="replace")


def describe(archive: Archive) -> list[str]:
    """What a file contains, line by line."""
    manifest = archive.manifest
    lines = [f"{archive.path}: torch {manifest['torch']}, {manifest['machine']}"]
    for number, entry in enumerate(manifest["signatures"]):
        signature = Signature.from_json(entry["signature"])
        count = sum(torch.Size(need.sizes).numel() for need in signature.state.values())  # type: ignore[arg-type]  # fmt: skip
        grad = "grad mode" if signature.thread.grad_mode else "no_grad"
        lines.append(f"signature {number}: {', '.join(sorted(entry['programs']))}; {grad}")
        lines += [f"    {n} is {need}" for n, need in zip(signature.names, signature.needs)]
        lines += [f"    {text}" + (f"  # {line}" if line else "")
                  for text, line in signature.conditions]  # fmt: skip
        lines.append(f"    {len(signature.state)} parameters and buffers, {count:,} numbers")
    lines += [f"{len(data):>12,}  {name}" for name, data in archive.parts.items()]
    return lines
