"""The pipeline as a graph backend (contract B): lower, schedule, generate, build."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import primops
import torch

from loopir.backend import CodeGenerator
from loopir.host import HostProgram, build_host, generate
from loopir.lowering import lower
from loopir.options import Options
from loopir.program import format_schedule
from loopir.schedule import schedule
from loopir.store import ArtifactStore
from loopir.text import format_kernel


def is_prim_graph(gm: torch.fx.GraphModule) -> bool:
    """Whether decomposition has run: some node is a prim, or every node's ``meta["val"]`` is already a prim graph's."""
    calls = [node for node in gm.graph.nodes if node.op == "call_function"]
    return any(isinstance(node.target, primops.Prim) for node in calls) or isinstance(
        next((node.meta.get("val") for node in gm.graph.nodes if node.op == "placeholder"), None), primops.TensorMeta
    )


def compile_graph(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[object],
    *,
    codegens: Mapping[str, CodeGenerator],
    store: ArtifactStore | None = None,
    options: Options | None = None,
    on_artifact: Callable[[str, str], None] | None = None,
) -> HostProgram:
    """Compiles a functional ATen graph (C2) or a prim graph (C3). ``codegens`` maps a device type to its code generator.

    ``on_artifact(name, text)`` receives the loops, the kernels' sources and the host program as they are made.
    """
    show = on_artifact or (lambda name, text: None)
    options = options or Options()
    if not is_prim_graph(gm):
        gm = primops.decompose(gm)
        if options.check:
            primops.check_prims(gm)
        show("30-prims.py", gm.print_readable(print_output=False))
    program = schedule(lower(gm, options), options)
    show("40-loops.txt", "\n".join(format_kernel(kernel) for kernel in program.kernels) + "\n" + format_schedule(program))
    sources = generate(program, codegens)
    show("50-kernels.txt", "\n".join(source.text for source in sources))
    host = build_host(program, sources, codegens, store or ArtifactStore())
    show("60-host.py", host.source)
    return host
