"""``save``: what ``precompile`` made, as one file."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import bytecode_dynamo
import torch
from bytecode_dynamo import WholeProgram

from torchstrata.config import Config
from torchstrata.errors import CompileError, UsageError
from torchstrata.extensions import Extensions
from torchstrata.host_calls import has_host_calls
from torchstrata.stages import compile_captured, user_lines

from .archive import sources, write_archive
from .builder import build_signature
from .recording import RecordedGraph
from .signature import Signature
from .weights import CONSTANTS, WEIGHTS, to_bytes


@dataclass(frozen=True, slots=True)
class Precompiled:
    """A program compiled for one kind of arguments.

    Attributes:
        signature: the arguments that it takes, and its result.
        recorded: what was compiled.
        config: the settings.
        weights: the parameters and buffers that it reads.
    """

    signature: Signature
    recorded: RecordedGraph
    config: Config
    weights: Mapping[str, torch.Tensor]


def precompile(
    config: Config,
    extensions: Extensions,
    target: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dynamic: bool | None,
) -> Precompiled:
    """Compiles ``target`` for arguments like these; nothing runs. Raises UsageError for what no
    file can hold, Unsupported for a program that would break the graph, CompileError.
    """
    if any(getattr(extensions, field.name) for field in fields(extensions)):
        raise UsageError("can't save a program with codegens, passes or decompositions of its own")
    if config.freeze:
        raise UsageError("can't save a program with the option 'freeze': it would hold the weights")
    recorded = RecordedGraph()

    def backend(graph: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        if has_host_calls(graph):
            raise UsageError(
                f"can't save a program that needs Python between its graphs\n{user_lines(graph)}"
            )
        recorded.start(graph)
        compile_captured(config, graph, example_inputs, extensions, recorded)
        if not recorded.calls:
            raise UsageError(
                f"can't save a program that computes on no data, or that needs Python between its "
                f"graphs\n{user_lines(graph)}"
            )

    try:
        program = bytecode_dynamo.capture_whole(target, backend, args, kwargs, dynamic=dynamic)
    except bytecode_dynamo.BackendCompilerFailed as error:
        if isinstance(error.__cause__, (CompileError, UsageError)):
            raise error.__cause__ from error.__cause__.__cause__
        raise
    except bytecode_dynamo.UserError as error:
        raise UsageError(f"can't save the program: {error}") from error
    if program.graph is None:
        raise UsageError("can't save a program that computes nothing")
    signature = build_signature(program)
    return Precompiled(signature, recorded, config, _weights(program, signature))


def _weights(program: WholeProgram, signature: Signature) -> dict[str, torch.Tensor]:
    names = program.names_of_tensors
    found = {names[id(t)]: t for t in program.examples.values() if id(t) in names}
    return {name: found[name] for name in signature.state if name in found}


def save(compiled: Any, path: str | os.PathLike[str], *, weights: bool = False) -> None:
    """Writes what ``compiled.precompile(...)`` compiled to one file, for ``load``.

    ``weights``: with the parameters and buffers, whose values are those of now; else ``load`` gets
    them from a module or a safetensors file. Raises UsageError if nothing is precompiled,
    ArtifactError if the file can't be written; a file of this name is then as before.
    """
    try:
        found: list[Precompiled] = bytecode_dynamo.precompiled(compiled)
    except bytecode_dynamo.UserError as error:
        raise UsageError(f"save() takes what compile() returned, {error}") from error
    if not found:
        raise UsageError("nothing to save: call compiled.precompile(...) with arguments first")
    parts: dict[str, bytes] = {}
    entries, values = [], dict[str, torch.Tensor]()
    for number, one in enumerate(found):
        entries.append(_add(parts, number, one))
        values |= one.weights
    if weights:
        parts[WEIGHTS] = to_bytes(values)
    manifest = {
        "torch": str(torch.__version__),
        "sources": sources(),
        "machine": platform.machine(),
        "signatures": entries,
    }
    write_archive(Path(path), manifest, parts)


def _add(parts: dict[str, bytes], number: int, one: Precompiled) -> dict[str, Any]:
    """Adds the files of a program; returns its entry in the manifest."""
    recorded = one.recorded
    parts[f"{number}/captured.txt"] = recorded.captured.encode()
    parts[f"{number}/calls.json"] = recorded.calls.encode()
    for what, (text, _) in recorded.programs.items():
        parts[f"{number}/{what}.json"] = text.encode()
    if recorded.constants:
        parts[f"{number}/{CONSTANTS}"] = to_bytes(recorded.constants)
    artifacts = []
    for (key, suffix), (data, key_parts) in recorded.artifacts.items():
        parts[f"artifacts/{key}{suffix}"] = data
        artifacts.append([key, suffix, key_parts])
    return {
        "signature": one.signature.to_json(),
        "settings": one.config.saved(),
        "devices": sorted(recorded.devices),
        "programs": {what: meta for what, (_, meta) in recorded.programs.items()},
        "constants": [*recorded.constants],
        "artifacts": artifacts,
    }
