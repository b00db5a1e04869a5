"""The trivial compiler: straight-line Python that calls the ATen ops of a functional graph."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .python_text import PythonWriter, tuple_text


def run_eager(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any]
) -> Callable[..., Sequence[Any]]:
    """Runs the graph's ops with eager kernels. Values, donated inputs included, are freed after
    their last use.
    """
    out = PythonWriter()
    nodes = list(gm.graph.nodes)
    output = nodes.pop()
    last_use = {a: node for node in [*nodes, output] for a in node.all_input_nodes}
    names = {node: f"v{i}" for i, node in enumerate(nodes)}
    out.reserved = {"run", "arguments", *names.values()}
    text = _Renderer(out, names)
    placeholders = [names[n] for n in nodes if n.op == "placeholder"]
    takes_list = any(n.meta.get("donated") for n in nodes)
    with out.block(f"def run({'arguments' if takes_list else ', '.join(placeholders)}):"):
        if takes_list:
            out(f"{', '.join(placeholders)}, = arguments; arguments.clear()")
        for node in nodes:
            if node.op == "get_attr":
                names[node] = out.name(str(node.target), operator.attrgetter(str(node.target))(gm))
            elif node.op != "placeholder":
                operands = [a for a in node.all_input_nodes if a.op != "get_attr"]
                dead = [names[a] for a in operands if last_use[a] is node]
                dead += [] if node in last_use else [names[node]]
                frees = "".join(f"; {name} = None" for name in dict.fromkeys(dead))
                out(f"{names[node]} = {text.call(node)}{frees}")
        out(f"return {text(output.args[0])}")
    run: Any = out.load("run")[0]
    run.takes_list, run.overwrites_donated = takes_list, False
    return run


class _Renderer:
    """Python text of arguments; values without a literal get global names."""

    def __init__(self, out: PythonWriter, names: dict[torch.fx.Node, str]) -> None:
        self._out = out
        self._names = names

    def call(self, node: torch.fx.Node) -> str:
        arguments = [self(a) for a in node.args] + [
            f"{k}={self(v)}" for k, v in node.kwargs.items()
        ]
        if node.target is operator.getitem:
            return f"{arguments[0]}[{arguments[1]}]"
        target: Any = node.target
        # the overload object is a Python function around this one
        function = target._op if isinstance(target, torch._ops.OpOverload) else target
        name = self._out.name(str(getattr(target, "__name__", target)), function)
        return f"{name}({', '.join(arguments)})"

    def __call__(self, value: Any) -> str:
        if isinstance(value, torch.fx.Node):
            return self._names[value]
        if isinstance(value, tuple):
            return tuple_text(self(v) for v in value)
        if isinstance(value, list):
            return f"[{', '.join(self(v) for v in value)}]"
        if value is None or type(value) in (bool, int, str):
            return repr(value)
        if type(value) is float and math.isfinite(value):
            return repr(value)
        return self._out.name(f"constant_{type(value).__name__}", value)
