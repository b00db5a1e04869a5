"""Compiles graphs with host calls in pieces: the code between the calls is compiled, and autograd
links the pieces.

Host calls (C1.9) choose the branch of ``torch.cond`` or ``while_loop`` (branches are compiled too),
draw from the program's generators, create leaves, register hooks, and change modes and settings.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from symshapes import is_leaf, is_nested_int
from torch.amp import autocast_mode
from torch.autograd import grad_mode
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from .errors import CompileError

Compile = Callable[[GraphModule, Sequence[Any]], Callable[..., Sequence[Any]]]
_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)
_ENTER = (autocast_mode._enter_autocast, grad_mode._enter_inference_mode)
_LEAVE = (autocast_mode._exit_autocast, grad_mode._exit_inference_mode)
_SET_GRAD = torch._C._set_grad_enabled


def has_host_calls(graph: GraphModule) -> bool:
    """Whether a graph has calls that must run on real tensors, in order."""
    return any(_is_host_call(node) for node in graph.graph.nodes)


def makes_leaves(graph: GraphModule) -> bool:
    """Whether a graph creates leaves that require grad."""
    return any(map(_is_leaf, graph.graph.nodes))


def _is_host_call(node: Node) -> bool:
    if node.op == "placeholder":
        return isinstance(node.meta.get("val"), torch.Generator)
    inside = getattr(node.target, "graphs", ())
    return bool(
        node.meta.get("host")
        or getattr(node.target, "branches", False)
        or any(map(has_host_calls, inside))
    )


def _differentiated_values(graph: GraphModule) -> Iterator[Node]:
    """Values whose gradients the host asks for or hooks; what uses them belongs to later
    pieces.
    """
    for node in graph.graph.nodes:
        name = getattr(node.target, "__name__", node.target)
        if node.target is torch.autograd.grad:
            yield from node.all_input_nodes  # outputs among them do no harm
        elif node.meta.get("host") and name in ("register_hook", "retain_grad"):
            yield node.args[0]


def _is_leaf(node: Node) -> bool:
    val = node.meta.get("val")
    is_call = node.op in ("call_function", "call_method")
    return is_call and isinstance(val, torch.Tensor) and val.requires_grad and is_leaf(val)


def _storage(node: Node) -> int:
    """Identity of the storage of a node's value; 0 if it has none."""
    val = node.meta.get("val")
    if isinstance(val, torch.Tensor) and val.layout is torch.strided:
        return val.untyped_storage()._cdata
    return 0


@dataclass(slots=True)
class _Step:
    """A call of a compiled piece, or a host call.

    ``single``: the call returns its one output itself. ``target``: what a host call calls.
    ``dead``: values that no later step reads.
    """

    function: Callable[..., Any]
    inputs: list[Any]
    outputs: list[Node]
    single: bool = False
    target: Any = None
    dead: list[Node] = field(default_factory=list)


def compile_pieces(
    graph: GraphModule, examples: Sequence[Any], compile_graph: Compile
) -> Callable[..., Sequence[Any]]:
    """The callable of a graph. Raises CompileError if it can't be cut."""
    cut = _PieceBuilder(graph, examples, compile_graph)
    with torch.set_grad_enabled(torch.is_grad_enabled()):
        try:
            steps = cut.steps()
        finally:
            for mode in reversed(cut.modes.values()):
                mode.__exit__(None, None, None)
            for setting, before in reversed(cut.settings):
                setting.restore(before)
    constants = {
        node: getattr(graph, str(node.target)) for node in graph.graph.find_nodes(op="get_attr")
    }
    inputs, result = cut.inputs, graph.graph.output_node().args[0]

    def run(*values: Any) -> tuple[Any, ...]:
        known = {**constants, **dict(zip(inputs, values))}

        def value(node: Node) -> Any:
            if node in known:
                return known[node]
            function: Any = torch.Tensor.size if node.target == "size" else node.target
            return function(*map_arg(node.args, value))

        modes: list[Any] = []
        with torch.set_grad_enabled(torch.is_grad_enabled()):
            try:
                for step in steps:
                    found = step.function(*map_arg(step.inputs, value))
                    known.update(zip(step.outputs, [found] if step.single else found))
                    if step.target in _ENTER:
                        modes.append(found)
                    elif step.target in _LEAVE:
                        modes.pop()
                    for node in step.dead:
                        del known[node]
            except BaseException:
                for mode in reversed(modes):
                    mode.__exit__(None, None, None)
                raise
        return tuple(map_arg(result, value))  # type: ignore[arg-type]

    return run


class _PieceBuilder:
    def __init__(self, graph: GraphModule, examples: Sequence[Any], compile_graph: Compile) -> None:
        self.graph = graph
        self.inputs = graph.graph.find_nodes(op="placeholder")
        self.examples = dict(zip(self.inputs, examples))
        self.compile_graph = compile_graph
        self.modes: dict[Node, Any] = {}
        """The handles of modes that were entered and not left."""
        self.settings: list[tuple[Any, Any]] = []
        """Changed settings, with their previous values."""
        self.order = {node: i for i, node in enumerate(graph.graph.nodes)}
        self.first_writes: dict[Node, int] = {}
        self.roots: dict[Node, Node] = {}
        """For the result of a write, the first node of that tensor."""
        self.written: dict[Node, Any] = {}
        """The value of a tensor, by its first node, after the last write: layouts may change."""
        sharing: dict[int, list[Node]] = {}
        for node in graph.graph.nodes:
            given = node.args[0] if node.args and node.op != "output" else None
            if isinstance(given, Node) and (
                node.target is operator.setitem or node.meta.get("val") is given.meta.get("val")
            ):
                for written in (given, *sharing.get(_storage(given), ())):
                    self.first_writes.setdefault(written, self.order[node])
            if storage := _storage(node):
                sharing.setdefault(storage, []).append(node)
        self.symbols = [node for node in self.inputs if isinstance(node.meta["val"], torch.SymInt)]

    def steps(self) -> list[_Step]:
        """The pieces and host calls, in order. What follows a change of mode is compiled in it."""
        found: list[_Step] = []
        piece: list[Node] = []
        hosted: set[Node] = set()
        ends = set(_differentiated_values(self.graph))
        for node in self.graph.graph.nodes:
            host = self._runs_on_host(node, hosted, bool(found))
            ends_piece = host or node.op == "output" or (piece and piece[-1] in ends)
            if ends_piece:
                found += self._compile_piece(piece)
                self._record_writes(piece)
                piece = []
            if host:
                hosted.add(node)
                arguments = [list(node.args), dict(node.kwargs)]
                function = self._host_function(node)
                found.append(_Step(function, arguments, [node], True, node.target))
                self._change_mode(node)
                self._record_writes([node])
            elif node.op not in ("placeholder", "get_attr", "output") and not _is_number(node):
                piece.append(node)
        last: dict[Node, _Step] = {}
        for step in found:
            last |= dict.fromkeys(
                [*step.outputs, *(n for arg in step.inputs for n in self._dependencies(arg))], step
            )
        for node in self._dependencies(self.graph.graph.output_node()):
            last.pop(node, None)
        for node, step in last.items():
            if node.op not in ("placeholder", "get_attr"):
                step.dead.append(node)
        return found

    def _runs_on_host(self, node: Node, hosted: set[Node], later: bool) -> bool:
        """Whether a call runs on the host: also one that unpacks a value, or differentiates the
        results of earlier pieces.
        """
        if node.op not in ("call_function", "call_method"):
            return False
        changes_mode = node.target is _SET_GRAD or node.target in (*_ENTER, *_LEAVE)
        if _is_host_call(node) or _is_leaf(node) or changes_mode:
            return True
        if later and node.target is torch.autograd.grad:
            return True
        read = [arg for arg in node.all_input_nodes if arg in hosted or arg.op == "placeholder"]
        return any(
            not isinstance(arg.meta["val"], (torch.Tensor, int, float, *_NUMBERS)) for arg in read
        )

    def _change_mode(self, node: Node) -> None:
        if "setting" in node.meta:
            self.settings.append((node.meta["setting"], node.meta["setting"].read()))
            node.target(*node.args, **node.kwargs)  # type: ignore[operator]
        if node.target is _SET_GRAD:
            _SET_GRAD(bool(node.args[0]))
        elif node.target in _ENTER:
            self.modes[node] = node.target(*node.args)  # type: ignore[operator]
        elif node.target in _LEAVE:
            node.target(self.modes.pop(node.args[0]))  # type: ignore[operator, index]

    def _host_function(self, node: Node) -> Callable[..., Any]:
        if getattr(node.target, "branches", False):
            for module in node.target.graphs:  # type: ignore[union-attr]
                module.forward = self._function(module)
        if node.op == "call_method":
            return lambda args, kwargs: getattr(args[0], str(node.target))(*args[1:], **kwargs)
        return lambda args, kwargs: node.target(*args, **kwargs)  # type: ignore[operator]

    def _function(
        self, module: GraphModule, examples: Sequence[Any] | None = None
    ) -> Callable[..., Any]:
        """A compiled graph; sizes that are not inputs are read off its tensors."""
        placeholders = module.graph.find_nodes(op="placeholder")
        given = [node.meta["val"] for node in placeholders]
        known = {val.node.expr for val in given if isinstance(val, torch.SymInt)}
        tensors = [(k, val) for k, val in enumerate(given) if isinstance(val, torch.Tensor)]
        read = {
            size.node.expr: (k, d, size)
            for k, val in reversed(tensors)
            for d, size in enumerate(val.shape)
            if isinstance(size, torch.SymInt)
            and not is_nested_int(size)
            and size.node.expr.is_Symbol
            and size.node.expr not in known
        }
        for _, val in tensors:
            numbers = (*val.shape, *val.stride())
            sizes = [n for n in numbers if isinstance(n, torch.SymInt) and not is_nested_int(n)]
            exprs = [size.node.expr for size in sizes]
            if any(expr.free_symbols - known - {*read} for expr in exprs):
                raise self._refusal("a size that depends on data", placeholders[0])
        with module.graph.inserting_before(placeholders[0] if placeholders else None):
            for symbol, (_, _, size) in read.items():
                module.graph.placeholder(str(symbol)).meta = {
                    "val": size,
                    "source": str(symbol),
                    "static": False,
                }
        compiled = self.compile_graph(
            module, [*(size for _, _, size in read.values()), *(examples or given)]
        )
        dims = [(k, d) for k, d, _ in read.values()]
        if dims:
            return lambda *values: compiled(*(values[k].shape[d] for k, d in dims), *values)
        return compiled

    def _dependencies(self, value: Any) -> list[Node]:
        """The tensors and inputs that a value depends on, through size arithmetic."""
        if not isinstance(value, Node):
            found: list[Node] = []
            map_arg(value, lambda node: found.append(node))
            return [read for node in found for read in self._dependencies(node)]
        if value.op == "output" or _is_number(value):
            return [read for node in value.all_input_nodes for read in self._dependencies(node)]
        return [value]

    def _compile_piece(self, nodes: list[Node]) -> list[_Step]:
        if not nodes:
            return []
        inside = set(nodes)
        wanted = [n for n in nodes if any(self._is_read_outside(u, inside) for u in n.users)]
        inputs = self._piece_inputs(nodes)
        piece = self._piece_graph(nodes, inputs, wanted)
        start = self.order[nodes[0]]
        written = {node for node, position in self.first_writes.items() if position < start}
        written |= {node for node in inputs if self.roots.get(node, node) in self.written}
        examples = [
            self._current_value(n) if n in written else self.examples.get(n, n.meta["val"])
            for n in inputs
        ]
        function = self._function(GraphModule(self.graph, piece), examples)
        return [_Step(function, inputs, wanted)]

    def _piece_inputs(self, nodes: list[Node]) -> list[Node]:
        inside = set(nodes)
        read = dict.fromkeys(
            n
            for node in nodes
            for arg in node.all_input_nodes
            for n in self._dependencies(arg)
            if n not in inside and n.op != "get_attr"
        )
        return list(dict.fromkeys([*self.symbols, *read]))

    def _piece_graph(self, nodes: list[Node], inputs: list[Node], wanted: list[Node]) -> Graph:
        piece, copies = Graph(), {}
        for node in inputs:
            self._check_output(node)
            copies[node] = piece.placeholder(node.name)
            copies[node].meta = {"source": node.name, "static": False} | node.meta
            copies[node].meta["val"] = self._current_value(node)

        def copy(node: Node) -> Node:
            if node not in copies:
                copies[node] = piece.node_copy(node, copy)
            return copies[node]

        for node in [*nodes, *wanted]:
            copy(node)
        for node in wanted:
            self._check_output(node)
        piece.output(tuple(copies[node] for node in wanted)).meta["val"] = tuple(
            node.meta["val"] for node in wanted
        )
        return piece

    def _current_value(self, node: Node) -> Any:
        return self.written.get(self.roots.get(node, node), node.meta["val"])

    def _record_writes(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            target = node.target
            name = target if isinstance(target, str) else getattr(target, "__name__", "")
            first = node.args[0] if name.endswith("_") and node.args else None
            given = node.kwargs.get("out", first)
            if isinstance(given, Node) and isinstance(node.meta.get("val"), torch.Tensor):
                self.roots[node] = self.roots.get(given, given)
                self.written[self.roots[node]] = node.meta["val"]

    def _is_read_outside(self, user: Node, inside: set[Node]) -> bool:
        return user not in inside and (
            not _is_number(user) or any(self._is_read_outside(u, inside) for u in user.users)
        )

    def _check_output(self, node: Node) -> None:
        val = node.meta["val"]
        was_plain = getattr(self.examples.get(node), "requires_grad", None) is False
        if was_plain and val.requires_grad and node not in self.first_writes:
            raise self._refusal("an input that begins to require grad", node)
        is_value = isinstance(val, (torch.Tensor, torch.SymInt, torch.SymFloat))
        if not is_value and node.op != "placeholder":
            raise self._refusal(f"a {type(val).__name__} that is read on both sides", node)

    def _refusal(self, what: str, node: Node) -> CompileError:
        reason = NotImplementedError(f"{what} in a graph with calls that the host makes")
        return CompileError("torchstrata", node.meta.get("stack_trace") or "", reason)


def _is_number(node: Node) -> bool:
    return (node.op == "call_function" or node.target == "size") and isinstance(
        node.meta.get("val"), _NUMBERS
    )
