"""The FX graph under construction: inputs by source, calls with fakes, lazy size arithmetic."""

from __future__ import annotations

import operator
import re
from collections import ChainMap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from symshapes import MATH_FUNCTIONS, LazyGraphModule, inner_tensors, is_nested_int, is_wrapper
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree

from bytecode_dynamo.errors import GraphBreak, InvariantError
from bytecode_dynamo.guards.source import Source
from bytecode_dynamo.guards.tensor_source import PlainTensorSource

_UNSAFE = re.compile(r"\W+")


@dataclass(slots=True)
class GraphInput:
    """One placeholder: its node, source and example value."""

    node: Node
    source: Source
    example: Any


def readable_source(source: Source) -> str:
    """``L['self'].weight`` rather than ``L['self']._parameters['weight']``."""
    return re.sub(r"\._(?:parameters|buffers|modules)\['(\w+)'\]", r".\1", source.name)


class GraphBuilder:
    """Collects nodes; placeholders stay in front whatever the order of their first use."""

    def __init__(self, stack_trace: Callable[[], str]) -> None:
        self.graph = Graph()
        self.inputs: dict[Node, GraphInput] = {}
        self.calls = 0
        self._stack_trace = stack_trace
        self._end_of_inputs = self.graph.create_node("placeholder", "inputs_end")
        self._journal: list[Node] = []
        self._symbols: dict[sympy.Basic, Node] = {}
        """The source of symbols and of conditions that have no node."""
        self._sizes: dict[sympy.Expr, Node] = {}
        self._constants: dict[int, Node] = {}
        self.attributes: dict[str, Any] = {}
        self.tags: dict[str, Any] = {}
        """Metadata for new nodes."""
        self.order = 0
        """The order of the derivative: 1 in the backward of a function, 2 in a backward that it
        calls.
        """
        self.in_batch = False
        """Whether the graph is of a function under ``vmap``."""

    # -- nodes -------------------------------------------------------------------------------------

    def add_input(self, source: Source, example: Any, val: Any, *, static: bool = False) -> Node:
        """A placeholder for a value that the caller has at run time."""
        name = "l_" + (
            _UNSAFE.sub("_", readable_source(source).replace("L['", "")).strip("_").lower()
            or "input"
        )
        with self.graph.inserting_before(self._end_of_inputs):
            node = self.graph.create_node("placeholder", name, name=name)
        node.target = node.name  # parameter names must be distinct
        node.meta.update(val=val, source=readable_source(source), static=static)
        self.inputs[node] = GraphInput(node, source, example)
        return node

    def add_symbol(
        self,
        symbol: sympy.Symbol,
        source: Source,
        size: torch.SymInt | torch.SymFloat,
        example: Any,
    ) -> None:
        """Record the source of a size symbol; its placeholder is created on first use."""
        if symbol in self._symbols:
            return
        node = self.add_input(source, example, size)
        self._symbols[symbol] = node

    def add_call(
        self,
        target: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        val: Any = None,
    ) -> Node:
        """A call of a function, or of the method with a name, with its fake result."""
        if (
            target is operator.pow
            and isinstance(val, torch.Tensor)
            and isinstance(args[0], (int, float))
            and args[0] < 0
        ):
            # the tensor's __rpow__ calls it; FX would print -2 ** x, which means -(2 ** x)
            target = torch.pow
        op = "call_method" if isinstance(target, str) else "call_function"
        node = self.graph.create_node(op, target, args, kwargs or {})
        if not all(self.sees(used) for used in node.all_input_nodes):
            self.graph.erase_node(node)
            raise GraphBreak(
                "BD020",
                "a tensor from inside a function under a torch transform is used outside of it",
            )
        node.meta.update(self.tags, val=val, stack_trace=self._stack_trace())
        self._journal.append(node)
        self.calls += 1
        return node

    def add_host_call(
        self,
        target: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        val: Any = None,
    ) -> Node:
        """A call that is meaningful only on real tensors, in order (C1.9)."""
        node = self.add_call(target, args, kwargs, val)
        node.meta["host"] = True
        return node

    def change_metadata(self, val: Any) -> None:
        """Freeze the metadata of a fake tensor's nodes before an in-place change of layout or
        flags.
        """
        for node in self._own_nodes(val):
            node.meta["val"] = val.detach().requires_grad_(val.requires_grad)

    def release_examples(self) -> None:
        """Release the caller's tensors: the graph has reference cycles and must not keep their
        memory alive.
        """
        for item in self.inputs.values():
            if isinstance(item.example, torch.Tensor):
                item.example = None

    def require_no_alias(self, val: Any) -> None:
        """Break if metadata of a subclass input would change: the graph has an alias with metadata
        of its own.
        """
        self._own_nodes(val)

    def _own_nodes(self, val: Any) -> list[Node]:
        """The nodes of a fake tensor."""
        nodes = (
            [node for node in self.graph.nodes if node.meta.get("val") is val]
            if isinstance(val, torch.Tensor)
            else []
        )
        for item in map(self.inputs.get, nodes):
            if item is not None and isinstance(item.source, PlainTensorSource):
                raise GraphBreak(
                    "BD020",
                    f"change of the metadata of {item.source.base.name}, a tensor of a subclass",
                )
        return nodes

    def add_constant(self, value: Any, val: Any) -> Node:
        """A ``get_attr`` node for a tensor that the graph owns."""
        node = self._constants.get(id(value))
        if node is None:
            name = f"constant_{len(self.attributes)}"
            self.attributes[name] = value
            with self.graph.inserting_after(self._end_of_inputs):
                node = self.graph.create_node("get_attr", name, name=name)
            node.meta.update(val=val, stack_trace=self._stack_trace())
            self._constants[id(value)] = node
        return node

    def sees(self, node: Node) -> bool:
        """Whether a node can be an argument in this graph."""
        return node.graph is self.graph

    def note_operands(self, operands: Any) -> None:
        """Note the operands of a call before it is evaluated."""

    # -- sizes -------------------------------------------------------------------------------------

    def bind_unbacked(self, value: Any, node: Node) -> None:
        """Record the node whose value is a new unbacked symbol, or a condition on one."""
        self._symbols[value] = node

    def node_of(self, symbol: sympy.Symbol) -> Node:
        """The node that stands for a symbol."""
        return self._symbols[symbol]

    def knows(self, symbol: sympy.Symbol) -> bool:
        """Whether a node stands for a symbol."""
        return symbol in self._symbols

    def size(self, value: Any) -> Any:
        """A size as a graph argument: a number, or the node that computes its expression."""
        if not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return value
        expr = value.node.expr
        if expr.is_number:
            return value.node.pytype(expr)
        return self._size_node(expr, value.node.shape_env)

    def condition(self, expr: Any, env: Any) -> Any:
        """The node of a condition on sizes that was assumed."""
        return self._size_node(expr, env)

    def _size_node(self, expr: Any, env: Any) -> Any:
        if expr.is_Integer:
            return int(expr)
        if expr.is_number:
            return float(expr)
        if expr.is_Symbol or expr in self._symbols:
            return self._symbols[expr]
        if expr.is_Boolean and not expr.args:
            return bool(expr)
        found = self._sizes.get(expr)
        if found is not None:
            return found
        target, operands = size_operation(expr)
        values = [self._size_node(arg, env) for arg in operands]
        result = values[0]
        partial = operands[0]
        if len(values) == 1:
            return self._size_call(target, (result,), expr, env)
        for value, operand in zip(values[1:], operands[1:]):
            partial = expr if len(operands) == 2 else expr.func(partial, operand)
            result = self._size_call(target, (result, value), partial, env)
        return result

    def _size_call(self, target: Any, args: tuple[Any, ...], expr: Any, env: Any) -> Node:
        known = self._sizes.get(expr)
        if known is not None:
            return known
        pytype = (
            bool if expr.is_Boolean or expr.is_Relational else (int if expr.is_integer else float)
        )
        node = self.add_call(target, args, {}, env.wrap(expr, pytype))
        self.calls -= 1
        self._sizes[expr] = node
        return node

    # -- snapshots and the end ---------------------------------------------------------------------

    def mark(self) -> tuple[int, int]:
        """A snapshot for :meth:`rollback`."""
        return len(self._journal), self.calls

    def is_apart(self, mark: tuple[int, int]) -> bool:
        """Whether the calls since a snapshot use only their own results."""
        own = set(self._journal[mark[0] :])
        return all(used in own for node in own for used in node.all_input_nodes)

    def rollback(self, mark: tuple[int, int]) -> list[Node]:
        """Erase every call since the mark; returns the erased nodes."""
        length, self.calls = mark
        erased = list(self._journal[length:])
        while len(self._journal) > length:
            self.graph.erase_node(self._journal.pop())
        if erased:
            self._sizes = {expr: node for expr, node in self._sizes.items() if node not in erased}
            self._symbols = {
                symbol: node for symbol, node in self._symbols.items() if node not in erased
            }
        return erased

    def finish(self, outputs: Sequence[Node]) -> tuple[GraphModule, list[GraphInput]]:
        """Close the graph; returns the module and the inputs that are used, in placeholder order
        (sizes first).
        """
        graph, kept = self.graph, set(outputs)
        for node in reversed(self._journal):
            if not node.users and node not in kept and is_pure(node):
                graph.erase_node(node)
        output = graph.output(tuple(outputs))
        output.meta["val"] = tuple(node.meta["val"] for node in outputs)
        graph.erase_node(self._end_of_inputs)
        self._merge_equal_sizes()
        self._drop_unused_inputs()
        self._sizes_first()
        root = torch.nn.Module()
        for name, value in self.attributes.items():
            setattr(root, name, value)
        module = LazyGraphModule(root, graph, "CapturedGraph")
        return module, [self.inputs[node] for node in graph.nodes if node.op == "placeholder"]

    def _merge_equal_sizes(self) -> None:
        """Merge the inputs of symbols that a guard made equal."""
        for symbol, node in self._symbols.items():
            equal = node.meta["val"].node.expr
            if node.op == "placeholder" and equal != symbol and equal in self._symbols:
                node.replace_all_uses_with(self._symbols[equal])

    def _drop_unused_inputs(self) -> None:
        needed: set[sympy.Symbol] = set()
        for node in self.inputs:
            val = node.meta["val"]
            if not node.users and not isinstance(val, (torch.SymInt, torch.SymFloat)):
                self.graph.erase_node(node)
            elif isinstance(val, torch.Tensor):
                needed |= free_symbols(val)
        for symbol, node in self._symbols.items():
            if node.op == "placeholder" and not node.users and symbol not in needed:
                self.graph.erase_node(node)
        for node in [node for node in self.graph.nodes if node.op == "get_attr" and not node.users]:
            self.graph.erase_node(node)

    def _sizes_first(self) -> None:
        placeholders = [node for node in self.graph.nodes if node.op == "placeholder"]
        first = placeholders[0] if placeholders else None
        for node in placeholders:
            if (
                isinstance(node.meta["val"], (torch.SymInt, torch.SymFloat))
                and node is not first
                and first is not None
            ):
                first.prepend(node)


class NestedGraph(GraphBuilder):
    """The graph of a function that a torch transform calls; closing it turns captured values into
    inputs.
    """

    def __init__(self, outer: GraphBuilder) -> None:
        super().__init__(outer._stack_trace)
        self.outer = outer
        self.tags = outer.tags
        self.order = outer.order
        self.in_batch = outer.in_batch
        self._symbols = ChainMap({}, outer._symbols)  # pyright: ignore[reportAttributeAccessIssue]
        self._versions: dict[int, tuple[torch.Tensor, int]] = {}
        """Version counters of operands, by id, before their first call."""

    def add_input(self, source: Source, example: Any, val: Any, *, static: bool = False) -> Node:
        return self.outer.add_input(source, example, val, static=static)

    def add_symbol(
        self,
        symbol: sympy.Symbol,
        source: Source,
        size: torch.SymInt | torch.SymFloat,
        example: Any,
    ) -> None:
        self.outer.add_symbol(symbol, source, size, example)

    def add_parameter(self, val: Any, name: str = "arg") -> Node:
        """A placeholder for an argument of the function."""
        with self.graph.inserting_before(self._end_of_inputs):
            node = self.graph.create_node("placeholder", name)
        node.target = node.name
        node.meta["val"] = val
        return node

    def sees(self, node: Node) -> bool:
        return node.graph is self.graph or self.outer.sees(node)

    def note_operands(self, operands: Any) -> None:
        for t in pytree.tree_leaves(operands):
            if isinstance(t, torch.Tensor) and not t.is_inference():
                self._versions.setdefault(id(t), (t, t._version))

    def restore_versions(self) -> None:
        """Restore the versions of captured tensors: the enclosing graph's call will count the
        writes.
        """
        # views share a counter: the first note has the original version
        for t, version in reversed(self._versions.values()):
            torch._C._autograd._unsafe_set_version_counter((t,), (version,))  # type: ignore[attr-defined]
        self._versions.clear()

    def abandon(self) -> None:
        """Release the captured values."""
        for node in reversed(list(self.graph.nodes)):
            self.graph.erase_node(node)

    def close(self, outputs: Sequence[Any]) -> tuple[GraphModule, list[Node]]:
        """Close the graph; returns the module and the captured nodes that follow its parameters."""
        for node in reversed(self._journal):
            if not node.users and node not in outputs and is_pure(node):
                self.graph.erase_node(node)
        self.graph.output(tuple(outputs))
        lifted: dict[Node, Node] = {}
        for node in list(self.graph.nodes):
            for used in node.all_input_nodes:
                if used.graph is not self.graph:
                    if used not in lifted:
                        lifted[used] = self.add_parameter(used.meta["val"], f"outer_{used.name}")
                    node.replace_input_with(used, lifted[used])
        self.graph.erase_node(self._end_of_inputs)
        return LazyGraphModule(torch.nn.Module(), self.graph, "NestedGraph"), list(lifted)


def free_symbols(val: Any) -> set[sympy.Symbol]:
    """Symbols in the sizes and strides of a fake tensor."""
    found: set[sympy.Symbol] = set()
    if is_wrapper(val):
        found.update(*map(free_symbols, inner_tensors(val)))
    for size in (*val.shape, *val.stride(), val.storage_offset()):
        if isinstance(size, torch.SymInt) and not is_nested_int(size):
            found |= size.node.expr.free_symbols
    return found


# Unused size arithmetic and unpacking can be removed; any other call may write, draw random
# numbers, or raise.
_PURE = {
    operator.getitem,
    operator.add,
    operator.sub,
    operator.mul,
    operator.floordiv,
    operator.mod,
    operator.pow,
    operator.neg,
    operator.eq,
    operator.ne,
    operator.lt,
    operator.le,
    operator.gt,
    operator.ge,
    operator.truediv,
}


def is_in_place(node: Node) -> bool:
    """Whether a call may write to a tensor (by its name)."""
    if node.kwargs.get("out") is not None or node.kwargs.get("inplace"):
        return True
    if any(
        is_in_place(inner)
        for module in getattr(node.target, "graphs", ())
        for inner in module.graph.nodes
    ):
        return True
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if getattr(node.target, "__module__", None) == "_operator":
        return name == "setitem" or (
            name.startswith("i") and name not in ("inv", "invert", "is_", "is_not", "index")
        )
    return name.endswith("_") and not name.startswith("_")


def is_pure(node: Node) -> bool:
    """Whether an unused node can be removed."""
    if node.op != "call_function" or node.target not in _PURE:
        return False
    if node.target is operator.getitem:
        return isinstance(node.args[0].meta["val"], (tuple, list))  # pyright: ignore
    return not isinstance(node.meta["val"], torch.Tensor)


_RELATIONS = {sympy.Eq: operator.eq, sympy.Ne: operator.ne, sympy.Lt: operator.lt,
    sympy.Le: operator.le,
              sympy.Gt: operator.gt, sympy.Ge: operator.ge}  # fmt: skip


def size_operation(expr: Any) -> tuple[Any, tuple[Any, ...]]:
    """The Python operation of the outermost SymPy node, and its operands."""
    if expr.is_Add:
        return operator.add, tuple(sorted(expr.args, key=lambda arg: arg.is_number))
    if expr.is_Mul:
        return operator.mul, expr.args
    if expr.is_Pow:
        return operator.pow, expr.args
    kind = type(expr)
    if kind in _RELATIONS:
        return _RELATIONS[kind], expr.args
    named = {"FloorDiv": operator.floordiv, "Mod": operator.mod, "Max": torch.sym_max,
        "Min": torch.sym_min,
             "TrueDiv": operator.truediv, "ToFloat": torch.sym_float, "Trunc": torch.sym_int,
             "Not": torch.sym_not,
             "And": operator.and_, "Or": operator.or_, "BitAnd": operator.and_,
             "BitOr": operator.or_}  # fmt: skip
    function = kind.__name__.removeprefix("Float").lower()
    target = (
        getattr(torch, f"_sym_{function}", None)
        if kind in MATH_FUNCTIONS.values()
        else named.get(kind.__name__)
    )
    if target is None:
        raise InvariantError(f"size expression {expr} has no graph form")
    return target, expr.args
