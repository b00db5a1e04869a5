"""Graphs that call ``torch.cond`` or ``while_loop`` on tensors, in pieces.

What lies between these calls, and the functions that they choose from, are compiled; the host looks at the data and calls one
of them, as eager does. Autograd links the pieces."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from torchstrata.errors import CompileError

Compile = Callable[[GraphModule, Sequence[Any]], Callable[..., Sequence[Any]]]
_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)
_MODES = ("_enter_autocast", "_exit_autocast", "_enter_inference_mode", "_exit_inference_mode")
_SET_GRAD = torch._C._set_grad_enabled


def is_branching(graph: GraphModule) -> bool:
    """Whether data decide which functions of the graph run."""
    return any(getattr(node.target, "branches", False) for node in graph.graph.nodes)


@dataclass(slots=True)
class _Step:
    """A call: of a compiled piece, or of what the host runs. ``dead``: values that no later step reads."""

    function: Callable[..., Any]
    inputs: list[Any]
    outputs: list[Node]
    single: bool
    dead: list[Node]


def compile_pieces(graph: GraphModule, examples: Sequence[Any], compile_graph: Compile) -> Callable[..., Sequence[Any]]:
    """A callable like the graph. Raises CompileError for a graph that can't be cut."""
    cut = _Cut(graph, examples, compile_graph)
    with torch.set_grad_enabled(torch.is_grad_enabled()):
        steps = cut.steps()
    inputs, result = cut.inputs, graph.graph.output_node().args[0]

    def run(*values: Any) -> tuple[Any, ...]:
        known = dict(zip(inputs, values))

        def value(node: Node) -> Any:
            return known[node] if node in known else node.target(*map_arg(node.args, value))  # type: ignore[operator]

        with torch.set_grad_enabled(torch.is_grad_enabled()):
            for step in steps:
                found = step.function(*map_arg(step.inputs, value))
                known.update(zip(step.outputs, [found] if step.single else found))
                for node in step.dead:
                    del known[node]
        return tuple(map_arg(result, value))  # type: ignore[arg-type]

    return run


class _Cut:
    def __init__(self, graph: GraphModule, examples: Sequence[Any], compile_graph: Compile) -> None:
        self.graph = graph
        self.inputs = graph.graph.find_nodes(op="placeholder")
        self.examples = dict(zip(self.inputs, examples))
        self.compile_graph = compile_graph
        self.symbols = [node for node in self.inputs if isinstance(node.meta["val"], torch.SymInt)]

    def steps(self) -> list[_Step]:
        """The pieces and the calls between them, in order."""
        found: list[_Step] = []
        piece: list[Node] = []
        hosted: set[Node] = set()
        for node in self.graph.graph.nodes:
            branches = getattr(node.target, "branches", False)
            moded = node.target is _SET_GRAD
            unpacked = node.target is operator.getitem and node.args[0] in hosted
            if branches or unpacked or moded or node.op == "output":
                found += self._compiled(piece)
                piece = []
            if moded:
                _SET_GRAD(*node.args)  # what follows is compiled in this mode
            if branches or unpacked or moded:
                hosted.add(node)
                found.append(_Step(self._hosted(node), list(node.args), [node], True, []))
            elif node.op not in ("placeholder", "get_attr", "output") and not _is_number(node):
                piece.append(node)
        last: dict[Node, _Step] = {}
        for step in found:
            last |= dict.fromkeys([*step.outputs, *(n for arg in step.inputs for n in self._read(arg))], step)
        for node in self._read(self.graph.graph.output_node()):
            last.pop(node, None)
        for node, step in last.items():
            if node.op != "placeholder":
                step.dead.append(node)
        return found

    def _hosted(self, node: Node) -> Callable[..., Any]:
        for module in getattr(node.target, "graphs", ()):
            module.forward = self._function(module)
        return node.target  # type: ignore[return-value]

    def _function(self, module: GraphModule) -> Callable[..., Any]:
        """One of the functions, which gets its sizes from its tensors."""
        placeholders = module.graph.find_nodes(op="placeholder")
        given = [node.meta["val"] for node in placeholders]
        tensors = [(k, val) for k, val in enumerate(given) if isinstance(val, torch.Tensor)]
        read = {
            size.node.expr: (k, d, size)
            for k, val in reversed(tensors)
            for d, size in enumerate(val.shape)
            if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol
        }
        with module.graph.inserting_before(placeholders[0] if placeholders else None):
            for symbol, (_, _, size) in read.items():
                module.graph.placeholder(str(symbol)).meta = {"val": size, "source": str(symbol), "static": False}
        compiled = self.compile_graph(module, [*(size for _, _, size in read.values()), *given])
        places = [(k, d) for k, d, _ in read.values()]
        return lambda *values: compiled(*(values[k].shape[d] for k, d in places), *values)

    def _read(self, value: Any) -> list[Node]:
        """The tensors and inputs that a value is computed from, seen through arithmetic on sizes."""
        if not isinstance(value, Node):
            found: list[Node] = []
            map_arg(value, lambda node: found.append(node))
            return [read for node in found for read in self._read(node)]
        if value.op == "output" or _is_number(value):
            return [read for node in value.all_input_nodes for read in self._read(node)]
        return [value]

    def _compiled(self, nodes: list[Node]) -> list[_Step]:
        inside = set(nodes)
        wanted = [node for node in nodes if any(self._reaches_out(user, inside) for user in node.users)]
        if any(getattr(node.target, "__name__", "") in _MODES for node in nodes):
            raise self._refusal("a change of grad mode, autocast or inference mode", nodes[0])
        if not nodes:
            return []
        read = dict.fromkeys(n for node in nodes for arg in node.all_input_nodes for n in self._read(arg) if n not in inside)
        inputs = list(dict.fromkeys([*self.symbols, *(node for node in read if node.op != "get_attr")]))
        piece, copies = Graph(), {}
        for node in inputs:
            self._check(node)
            copies[node] = piece.placeholder(node.name)
            copies[node].meta = {"source": node.name, "static": False, **node.meta}

        def copy(node: Node) -> Node:
            if node not in copies:
                copies[node] = piece.node_copy(node, copy)
            return copies[node]

        for node in [*nodes, *wanted]:
            copy(node)
        for node in wanted:
            self._check(node)
        piece.output(tuple(copies[node] for node in wanted)).meta["val"] = tuple(node.meta["val"] for node in wanted)
        examples = [self.examples.get(node, node.meta["val"]) for node in inputs]
        return [_Step(self.compile_graph(GraphModule(self.graph, piece), examples), list(inputs), wanted, False, [])]

    def _reaches_out(self, user: Node, inside: set[Node]) -> bool:
        return user not in inside and (not _is_number(user) or any(self._reaches_out(u, inside) for u in user.users))

    def _check(self, node: Node) -> None:
        val = node.meta["val"]
        known = {symbol.meta["val"].node.expr for symbol in self.symbols}
        sizes = (*val.shape, *val.stride()) if isinstance(val, torch.Tensor) else ()
        if any(isinstance(size, torch.SymInt) and size.node.expr.free_symbols - known for size in sizes):
            raise self._refusal("a size that depends on data", node)
        if not isinstance(val, torch.Tensor) and node.op != "placeholder":
            raise self._refusal(f"a {type(val).__name__} that is read on both sides", node)

    def _refusal(self, what: str, node: Node) -> CompileError:
        reason = NotImplementedError(f"{what} in a graph with torch.cond or while_loop")
        return CompileError("torchstrata", node.meta.get("stack_trace") or "", reason)


def _is_number(node: Node) -> bool:
    return node.op == "call_function" and isinstance(node.meta.get("val"), _NUMBERS)
