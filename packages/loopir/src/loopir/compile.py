"""The pipeline as a graph backend (contract B): lower, schedule, generate, build."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import primops
import torch

from loopir.cache.program_cache import Recall
from loopir.cache.store import ArtifactStore
from loopir.host.launched import check_launches
from loopir.host.source import HostProgram, build_host, generate
from loopir.ir.program import format_schedule
from loopir.ir.template import format_any

from .backend import CodeGenerator
from .lowering import check_graph, lower
from .options import Options
from .patterns import freeze, rewrite_patterns
from .schedule import schedule


def is_prim_graph(gm: torch.fx.GraphModule) -> bool:
    """Whether decomposition has run: the output says what the caller must receive (C3.6), no input
    is a fake tensor (C3.4).
    """
    inputs = gm.graph.find_nodes(op="placeholder")
    is_aten = any(isinstance(node.meta.get("val"), torch.Tensor) for node in inputs)
    return not is_aten and "val" in gm.graph.find_nodes(op="output")[-1].meta


def compile_graph(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[object],
    *,
    codegens: Mapping[str, CodeGenerator],
    store: ArtifactStore | None = None,
    options: Options | None = None,
    on_artifact: Callable[[str, str], None] | None = None,
) -> HostProgram:
    """Compiles a functional ATen graph (C2) or a prim graph (C3). ``codegens`` maps a device type
    to its code generator.

    A graph that ``store`` knows is only built. ``on_artifact(name, text)`` receives the loops, the
    kernels' sources and the host program as they are made, and has all of them made.
    """
    show, options, store = (
        on_artifact or (lambda name, text: None),
        options or Options(),
        store or ArtifactStore(),
    )
    recall = (
        None
        if on_artifact or options.check or options.freeze
        else Recall.of(gm, codegens, store, options)
    )
    found = recall.get() if recall is not None else None
    if found is not None:
        return build_host(*found, codegens, store)
    if is_prim_graph(gm):
        check_graph(gm)
    else:
        if options.freeze:
            gm, options = freeze(gm, example_inputs), replace(options, inference=True)
        gm = primops.decompose(rewrite_patterns(gm, codegens, options))
        show("30-prims.py", gm.print_readable(print_output=False))
    program = schedule(lower(gm, options), options, codegens)
    show(
        "40-loops.txt",
        "\n".join(format_any(kernel) for kernel in program.kernels)
        + "\n"
        + format_schedule(program),
    )
    sources = generate(program, codegens)
    if options.check:
        check_launches(program, sources, codegens)
    show("50-kernels.txt", "\n".join(source.text for source in sources))
    if recall is not None:
        recall.put(program, sources)
    host = build_host(program, sources, codegens, store)
    show("60-host.py", host.source)
    return host
