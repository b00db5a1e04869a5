"""Entry points: a graph backend, and wrappers for functions and modules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .capture import CapturedGraph
from .compile import Options
from .partition import PARTITIONERS, Partitioner
from .errors import UserError

Compiler = Callable[[torch.fx.GraphModule, list[Any]], Callable[..., Sequence[Any]]]


def run_eager(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Sequence[Any]]:
    """The trivial compiler: runs the graph's ATen ops one by one."""
    return gm.forward


def aot_backend(
    forward_compiler: Compiler,
    backward_compiler: Compiler | None = None,
    *,
    inference_compiler: Compiler | None = None,
    passes: Sequence[Callable[[torch.fx.GraphModule], torch.fx.GraphModule | None]] = (),
    partition: str | Partitioner = "min_cut",
    fallback_random: bool = False,
    on_artifact: Callable[[str, str], None] | None = None,
) -> Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]:
    """A graph backend (contract B) that hands functional ATen graphs (contract C2) to compilers.

    Args:
        forward_compiler: compiles forward graphs; ``compiler(gm, example_inputs) -> callable``.
        backward_compiler: compiles backward graphs; ``forward_compiler`` by default.
        inference_compiler: compiles graphs without backward; ``forward_compiler`` by default.
        passes: run in order on the joint graph; each edits it or returns a new one with the same placeholders and outputs.
        partition: ``"min_cut"``, ``"default"``, or a callable that chooses what is saved for backward.
        fallback_random: keeps every random op, used or not, so that eager's random sequence is reproduced exactly.
        on_artifact: called with (name, text) for the joint, forward, backward and runtime code.

    The backend raises Unsupported for programs that must stay eager, CompilerError when a compiler misbehaves, and
    what eager raises for programs that are wrong.
    """
    options = Options(
        forward_compiler,
        backward_compiler or forward_compiler,
        inference_compiler or forward_compiler,
        tuple(passes),
        _partitioner(partition),
        fallback_random,
        on_artifact or (lambda name, text: None),
    )

    def backend(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        return CapturedGraph(gm, example_inputs, options).build()

    return backend


def _partitioner(partition: str | Partitioner) -> Partitioner:
    if callable(partition):
        return partition
    if partition not in PARTITIONERS:
        raise UserError(f"unknown partition {partition!r}; choose one of {sorted(PARTITIONERS)} or pass a callable")
    return PARTITIONERS[partition]
