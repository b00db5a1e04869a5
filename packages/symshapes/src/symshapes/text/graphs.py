"""FX graphs as text: one assignment per node, with the type of its value.

::

    # aotgrad.graph 1
    s0 = Size(lower=2, hint=4)

    def graph(s0: size(s0), x: meta(f32[s0, 16], donated=True)):
        'File "model.py", line 3, in forward: return x.relu().view(-1)'
        relu: f32[s0, 16] = ops.aten.relu.default(x)
        view: f32[16*s0] = ops.aten.view.default(relu, [size(16*s0)])
        return (view,)

A bare name in the arguments of a call is a node, ``graphs.body_1`` a graph that stands before, and
``size(...)`` a size that is no node. Methods are ``method.view(x, -1)``. A string is the user's
line from which the nodes below it come.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from symshapes.env import ShapeEnv
from symshapes.graph_module import LazyGraphModule

from .form import TextForm
from .names import ROOTS, format_target
from .symbols import SymbolWriter
from .tensors import TensorKind, format_tensor_type
from .values import Unwritable, format_value

NODE_META = (
    "source", "static", "donated", "written", "recompute", "host", "required", "rounds_to",
    "forward_node", "rewritten_by",
)  # fmt: skip
"""The entries of ``node.meta`` with a meaning in one of the contracts, beside ``val``, and which
pattern made the node.
"""
GRAPH_META = ("writes", "unread", "private_results", "private_inputs")
"""The same of ``gm.meta``."""
MAIN = "graph"


@dataclass(frozen=True)
class GraphForm:
    """The text form of one kind of graph.

    Attributes:
        form: its name and version.
        tensors: makes the class of the tensors in ``meta["val"]`` for an environment.
        check: raises for a graph outside its contract, once it is read.
        roots: the names that may begin the name of a function.
        module: the class of the modules that a reader makes.
    """

    form: TextForm
    tensors: Callable[[ShapeEnv], TensorKind]
    check: Callable[[GraphModule], object] = lambda gm: None
    roots: Mapping[str, Any] = field(default_factory=lambda: dict(ROOTS))
    module: Callable[[torch.nn.Module, Graph], GraphModule] = LazyGraphModule

    def write(self, gm: GraphModule, lines: bool = True, strict: bool = True) -> str:
        """``gm`` as text, with its version.

        ``lines``: with the user's lines, which name files. Raises Unwritable for values and
        functions that have no text, with the node and the user's line; without ``strict`` they are
        described in angle brackets, in a text that can't be read.
        """
        return self.form.write(GraphWriter(self, lines, strict).text(gm))


class GraphWriter:
    """Writes a graph and the graphs inside it."""

    def __init__(self, form: GraphForm, lines: bool = True, strict: bool = True) -> None:
        self.form = form
        self.lines = lines
        self.strict = strict
        self.tensors = form.tensors(ShapeEnv())
        self.symbols = SymbolWriter(strict)
        self.graphs: dict[int, str] = {}
        self.functions: list[str] = []
        self.node: Node | None = None

    def text(self, gm: GraphModule) -> str:
        """The declarations of symbols, the graphs inside, and the graph."""
        self.write(gm, MAIN)
        return "\n\n".join(self.parts()) + "\n"

    def parts(self) -> list[str]:
        """The declarations of symbols, and the graphs written so far."""
        declarations = self.symbols.declarations()
        return [*(["\n".join(declarations)] if declarations else []), *self.functions]

    def write(self, gm: GraphModule, name: str) -> str:
        """Writes a graph behind those inside it; returns its name."""
        self.graphs[id(gm)] = name
        parameters, lines, shown = [], list[str](), ""
        for node in gm.graph.nodes:
            self.node = node
            line = user_line(node) if self.lines else ""
            if line != shown and node.op not in ("placeholder", "output"):
                lines.append(repr(line))
                shown = line
            if node.op == "placeholder":
                parameters.append(f"{node.name}: {self._type(node)}")
            elif node.op == "output":
                lines.append(f"return {self._output(node)}")
            else:
                lines.append(f"{node.name}: {self._type(node)} = {self._call(node)}")
        head = f"def {name}({', '.join(parameters)}){self._results(gm)}:"
        notes = [f"{key}={self.value(gm.meta[key])}" for key in GRAPH_META if gm.meta.get(key)]
        text = "\n    ".join([head, *lines])
        self.functions.append(f"@meta({', '.join(notes)})\n{text}" if notes else text)
        return name

    def _results(self, gm: GraphModule) -> str:
        """The output's metadata, where it states any, as the type of the function's result."""
        assert self.node is not None
        return f" -> {self.type(self.node.meta['val'])}" if "val" in self.node.meta else ""

    def _output(self, node: Node) -> str:
        return self._with_notes(node, self.value(node.args[0]))

    def _type(self, node: Node) -> str:
        more = [f"target={node.target!r}"] if _renamed(node) else []
        return self._with_notes(node, self.type(node.meta.get("val")), *more)

    def _with_notes(self, node: Node, text: str, *more: str) -> str:
        notes = [f"{key}={self.value(node.meta[key])}" for key in NODE_META if key in node.meta]
        return f"meta({', '.join([text, *more, *notes])})" if notes or more else text

    def _call(self, node: Node) -> str:
        arguments = [*map(self.value, node.args)]
        arguments += [f"{name}={self.value(value)}" for name, value in node.kwargs.items()]
        if not self.strict and (graphs := getattr(node.target, "graphs", ())):
            arguments.append(f"graphs={self.value(graphs)}")
        if node.op == "get_attr":
            return f"constant({node.target!r})"
        if node.op == "call_method":
            return f"method.{node.target}({', '.join(arguments)})"
        return f"{self.target(node.target)}({', '.join(arguments)})"

    def target(self, target: Any) -> str:
        """The name of a function."""
        return self.checked(lambda: format_target(target, self.form.roots))

    def type(self, value: Any) -> str:
        """What ``meta["val"]`` says of a value."""
        return self.checked(lambda: format_value(value, self._type_leaf))

    def value(self, value: Any) -> str:
        """An argument of a call."""
        return self.checked(lambda: format_value(value, self._leaf))

    def checked(self, write: Callable[[], str]) -> str:
        """A part of the text; what has none is described, or an error that names the node."""
        try:
            return write()
        except Unwritable as error:
            if not self.strict:
                return f"<{error.what}>"
            if self.node is None or error.node is not None:
                raise
            raise Unwritable(error.what, self.node, user_line(self.node)) from None

    def _type_leaf(self, value: Any) -> str | None:
        given = self.tensors.describe(value)
        if given is not None:
            return format_tensor_type(given, self.symbols.size)
        return self.symbols.number(value)

    def _leaf(self, value: Any) -> str | None:
        if isinstance(value, Node):
            return value.name
        if isinstance(value, GraphModule):
            node = self.node
            name = self.graphs.get(id(value)) or self.write(value, f"body_{len(self.graphs)}")
            self.node = node
            return f"graphs.{name}"
        return self.symbols.number(value)


def user_line(node: Node) -> str:
    """The innermost of the user's lines that a node comes from, on one line."""
    lines = str(node.meta.get("stack_trace") or "").strip().splitlines()
    start = next((i for i in reversed(range(len(lines))) if lines[i].lstrip()[:5] == "File "), 0)
    return ": ".join(line.strip() for line in lines[start:])


def _renamed(node: Node) -> bool:
    return node.op == "placeholder" and node.target != node.name
