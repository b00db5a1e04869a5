"""Reads the text form of FX graphs; see ``graphs``."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Node

from symshapes.errors import ParseError
from symshapes.graph_module import PlainGraph

from .form import parameters, reading
from .graphs import GRAPH_META, MAIN, NODE_META, GraphForm
from .names import find_target
from .symbols import SymbolReader
from .tensors import TensorKind, parse_tensor_type
from .values import MISSING, parse_value

Constants = Mapping[str, torch.Tensor]


def parse_graph(text: str, form: GraphForm, constants: Constants | None = None) -> GraphModule:
    """The graph of a text, checked. ``constants`` are the tensors that ``constant("name")`` stands
    for.

    Raises ParseError with line and column, VersionError for a version that can't be read, and
    what the form's checker raises.
    """
    with reading():
        reader = GraphReader(form, constants or {})
        for statement in form.form.parse(text).body:
            reader.read(statement)
        if MAIN not in reader.graphs:
            raise ParseError(f"the text has no function {MAIN}")
    form.check(reader.graphs[MAIN])
    return reader.graphs[MAIN]


@dataclass
class GraphReader:
    """Reads declarations of symbols, and graphs in their order."""

    form: GraphForm
    constants: Constants
    symbols: SymbolReader = field(default_factory=SymbolReader)
    tensors: TensorKind = field(init=False)
    graphs: dict[str, GraphModule] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tensors = self.form.tensors(self.symbols.env)

    def read(self, statement: ast.stmt) -> None:
        """Reads one statement of the text."""
        if isinstance(statement, ast.Assign):
            self.symbols.declare(statement)
        elif isinstance(statement, ast.FunctionDef) and statement.name not in self.graphs:
            self.graphs[statement.name] = _FunctionReader(self, statement).read()
        else:
            raise ParseError.at(statement, "expected a symbol or a graph")

    def type(self, node: ast.expr) -> Any:
        """The value of ``meta["val"]``."""
        return parse_value(node, self._type_leaf)

    def _type_leaf(self, node: ast.expr) -> Any:
        given = parse_tensor_type(node, self.symbols.size)
        if given is not None:
            return self.tensors.make(given)
        number = self.symbols.number(node)
        return MISSING if number is None else number


class _FunctionReader:
    def __init__(self, reader: GraphReader, function: ast.FunctionDef) -> None:
        self.reader = reader
        self.function = function
        self.graph = PlainGraph()
        self.nodes: dict[str, Node] = {}
        self.root = torch.nn.Module()
        self.line = ""

    def read(self) -> GraphModule:
        for argument in parameters(self.function):
            if argument.annotation is None:
                raise ParseError.at(argument, "expected a type")
            self._add(argument, argument.arg, argument.annotation, "placeholder", argument.arg)
        *steps, last = self.function.body
        for statement in steps:
            self._statement(statement)
        if not isinstance(last, ast.Return) or last.value is None:
            raise ParseError.at(last, "expected a return statement")
        self._output(last.value)
        gm = self.reader.form.module(self.root, self.graph)
        for decorator in self.function.decorator_list:
            gm.meta.update(self._notes(decorator, GRAPH_META)[1])
        return gm

    def _statement(self, statement: ast.stmt) -> None:
        match statement:
            case ast.AnnAssign(
                target=ast.Name(id=name), annotation=given, value=ast.Call() as call
            ):
                pass
            case ast.Expr(value=ast.Constant(value=str(line))):
                self.line = line
                return
            case _:
                raise ParseError.at(statement, "expected 'name: type = call(...)'")
        target = ast.unparse(call.func)
        args = [self._value(argument) for argument in call.args]
        kwargs = {str(word.arg): self._value(word.value) for word in call.keywords}
        if target == "constant" and len(args) == 1 and not kwargs:
            self._add(statement, name, given, "get_attr", self._constant(call, args[0]))
        elif target.startswith("method."):
            self._add(statement, name, given, "call_method", target[7:], args, kwargs)
        else:
            function = find_target(target, self.reader.form.roots)
            if not callable(function):
                raise ParseError.at(call.func, "not a function that a graph may call")
            self._add(statement, name, given, "call_function", function, args, kwargs)

    def _constant(self, node: ast.expr, name: Any) -> str:
        if name not in self.reader.constants:
            raise ParseError.at(node, "the tensor is not among the constants that were given")
        owner = self.root
        *path, last = name.split(".")
        for part in path:
            if not hasattr(owner, part):
                setattr(owner, part, torch.nn.Module())
            owner = getattr(owner, part)
        setattr(owner, last, self.reader.constants[name])
        return name

    def _add(
        self, place: ast.AST, name: str, given: ast.expr, op: str, target: Any,
        args: list[Any] | None = None, kwargs: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        annotation, meta = self._notes(given, (*NODE_META, "target"))
        target = meta.pop("target", target)
        node = self.graph.create_node(op, target, tuple(args or ()), kwargs or {}, name)
        if node.name != name or name in self.nodes:
            raise ParseError.at(place, "not a name for a node, or one that is taken")
        self.nodes[name] = node
        node.meta.update(val=self.reader.type(annotation), **meta)
        if self.line:
            node.meta["stack_trace"] = self.line

    def _output(self, value: ast.expr) -> None:
        result, meta = self._notes(value, NODE_META)
        node = self.graph.output(self._value(result))
        node.meta.update(meta)
        if self.function.returns is not None:
            node.meta["val"] = self.reader.type(self.function.returns)

    def _notes(self, node: ast.expr, known: tuple[str, ...]) -> tuple[ast.expr, dict[str, Any]]:
        """What ``meta(...)`` is around, and its entries."""
        match node:
            case ast.Call(func=ast.Name(id="meta"), args=inner, keywords=words):
                entries = {str(word.arg): self._value(word.value) for word in words}
                if set(entries) <= set(known) and len(inner) <= 1:
                    return (inner or [node])[0], entries
                raise ParseError.at(node, "unknown metadata")
        return node, {}

    def _value(self, node: ast.expr) -> Any:
        return parse_value(node, self._leaf)

    def _leaf(self, node: ast.expr) -> Any:
        match node:
            case ast.Name(id=name) if name in self.nodes:
                return self.nodes[name]
            case ast.Attribute(value=ast.Name(id="graphs"), attr=name):
                if name in self.reader.graphs:
                    return self.reader.graphs[name]
                raise ParseError.at(node, "the graph must stand before")
        number = self.reader.symbols.number(node)
        return MISSING if number is None else number
