"""Instructions that load existing values, call functions, and build new objects."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch.fx import Node

from bytecode_dynamo.bytecode import Code, Instruction
from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.graph.builder import size_operation
from bytecode_dynamo.guards.source import Source, SourceEmitter
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.effects import DELETED, Identity
from bytecode_dynamo.state.tracker import Args, VariableTracker

from . import rebuilding

RESULT, KEPT = ".graph", ".kept"
"""The local variables that hold the graph's outputs and saved inputs."""
_PYTHON_FORMS: dict[Any, Any] = {
    torch.sym_max: max, torch.sym_min: min, torch.sym_int: int, torch.sym_float: float,
    torch.sym_not: operator.not_,
}  # fmt: skip


class ValueBuilder:
    """Writes code that pushes values, and collects the graph's outputs."""

    def __init__(self, ctx: Context, code: Code) -> None:
        self.ctx = ctx
        self.emitter = SourceEmitter(code)
        self.code = code
        self.outputs: dict[Node, int] = {}
        """The results of the graph, with their positions."""
        self.locals: list[str] = [RESULT, KEPT]
        self.built: dict[Identity, str] = {}
        """The variables of objects that were built."""
        self.pending: list[Callable[[], None]] = []
        """Functions that fill objects built empty."""
        self.frame_cells: dict[str, VariableTracker] = {}
        """Cells of the frame itself, by variable."""
        self._building: set[Identity] = set()
        self._numbers: dict[Any, str] = {}

    # -- values ------------------------------------------------------------------------------------

    def __call__(self, value: VariableTracker) -> None:
        """Push a value."""
        if value.always_rebuilt:
            value.reconstruct(self)
            return
        key = value.identity()
        if isinstance(key, Identity) and key.shell is not None:
            self(key.shell)
        elif isinstance(key, Identity) and key in self.built:
            self.emitter.load_fast(self.built[key])
        elif value.source is not None:
            self.load_source(value.source)
        elif isinstance(key, Identity) and key.exists and key.source is not None:
            self.load_source(key.source)
        else:
            value.reconstruct(self)
            if value.kept_when_built:
                assert isinstance(key, Identity)
                self.keep(key)

    def load_source(self, source: Source) -> None:
        """Push an existing value."""
        source.emit(self.emitter)

    def load_const(self, value: object) -> None:
        """Push a constant; a stand-in for a class created in the call is created again."""
        recipe = self.ctx.made.get(id(value))
        if recipe is not None:
            recipe.build(self)
        else:
            self.emitter.load_const(value)

    def load_graph_value(self, node: Any) -> None:
        """Push a value computed by the graph."""
        if not isinstance(node, Node):
            self.load_const(node)
            return
        found = self.ctx.graph.inputs.get(node)
        if found is not None:
            self.load_source(found.source)
            return
        if not self.ctx.graph.sees(node):
            raise GraphBreak(
                "BD015",
                "a tensor from inside a function under a torch transform is needed outside of it",
            )
        position = self.outputs.setdefault(node, len(self.outputs))
        self.emitter.load_fast(RESULT)
        self.emitter.load_item(position)

    def load_size(self, value: Any) -> None:
        """Push a symbolic number, computed from its symbols' sources, or by the graph if they are
        unbacked.
        """
        expr = value.node.expr
        if expr.free_symbols - self.ctx.symbol_sources.keys():
            self.load_graph_value(self.ctx.graph.size(value))
        else:
            self._load_expression(expr)

    def _load_expression(self, expr: Any) -> None:
        """Push the value of an expression, computed from its symbols' sources."""
        if expr.is_Symbol:
            self.emitter.load_fast(self._number(expr))
        elif expr.is_Integer:
            self.load_const(int(expr))
        elif expr.is_number:
            self.load_const(float(expr))
        elif expr.is_Boolean and not expr.args:  # specialised since it was computed
            self.load_const(bool(expr))
        else:
            target, operands = size_operation(expr)
            function = _PYTHON_FORMS.get(target, target)
            for _ in operands[1:] or operands:
                self.emitter.load_callee_const(function)
            self._load_expression(operands[0])
            if len(operands) == 1:
                self.emitter.call(1)
            for operand in operands[1:]:
                self._load_expression(operand)
                self.emitter.call(2)

    def _number(self, symbol: Any) -> str:
        """The variable of a symbol's value, read before the graph, which may change input sizes."""
        if symbol not in self._numbers:
            self._numbers[symbol] = self.temporary()
        return self._numbers[symbol]

    def read_numbers(self) -> list[Instruction]:
        """The instructions that read the numbers before the graph."""
        emitter = SourceEmitter(self.code, self.emitter.position)
        for symbol, name in self._numbers.items():
            self.ctx.symbol_sources[symbol].emit(emitter)
            emitter.store_fast(name)
        return emitter.instructions

    def temporary(self) -> str:
        """The name of a fresh local variable."""
        name = f".t{len(self.locals)}"
        self.locals.append(name)
        return name

    def keep(self, key: Identity) -> None:
        """Store the object on top of the stack, and push it again, so that it is built only
        once.
        """
        name = self.built[key] = self.temporary()
        self.emitter.duplicate()
        self.emitter.store_fast(name)

    def begin(self, key: Identity) -> None:
        """Note that an object is being built; breaks the graph when it contains itself."""
        if key in self._building:
            raise GraphBreak("BD015", f"a {key.cls.__name__} that contains itself")
        self._building.add(key)

    def call(
        self,
        function: VariableTracker,
        args: Args,
        named: Sequence[tuple[str, Any]] = (),
    ) -> None:
        """Push the result of a call."""
        self.emitter.load_callee(lambda: self(function))
        self.push_all((*args, *(value for _, value in named)))
        self.emitter.call(len(args) + len(named), [name for name, _ in named])

    def call_const(self, function: object, *arguments: object) -> None:
        """Push the result of a known function for values, the graph's nodes and constants."""
        self.emitter.load_callee_const(function)
        self._call(arguments)

    def call_method(self, owner: VariableTracker, name: str, *arguments: object) -> None:
        """Push the result of a method for values, the graph's nodes and constants."""
        self(owner)
        self.emitter.load_method(name)
        self._call(arguments)

    def _call(self, arguments: Sequence[object]) -> None:
        for argument in arguments:
            if isinstance(argument, VariableTracker):
                self(argument)
            else:
                self.load_graph_value(argument)
        self.emitter.call(len(arguments))

    # -- containers --------------------------------------------------------------------------------

    def push_all(self, items: Iterable[VariableTracker]) -> int:
        """Push values; returns how many."""
        count = 0
        for item in items:
            self(item)
            count += 1
        return count

    def build_tuple(self, items: Sequence[VariableTracker]) -> None:
        """Push a tuple of values."""
        self.emitter.build_tuple(self.push_all(items))

    def push_entries(self, entries: Any) -> int:
        """Push keys and values of a dict's entries; returns how many entries."""
        for key, held in entries.values():
            key.complete(self)
            self(key)
            self(held)
        return len(entries)

    # -- what is filled later ----------------------------------------------------------------------

    def build_once(self, key: Identity, push: Callable[[], None]) -> None:
        """Push an object, built by ``push`` the first time; its attributes are set later."""
        if key in self.built:
            self.emitter.load_fast(self.built[key])
            return
        push()
        self.keep(key)
        self.fill_attributes(key)

    def fill_attributes(self, key: Identity) -> None:
        """Set the attributes of a new object, after everything is built."""
        store = partial(
            self.store_attribute, self.built[key], function=rebuilding.setter_of(key.cls)
        )
        attributes = self.ctx.effects.attributes(key).items()
        self.pending += [
            partial(store, attribute, held) for attribute, held in attributes if held is not DELETED
        ]

    def store_attribute(
        self, name: str, attribute: str, held: VariableTracker, function: Any = object.__setattr__
    ) -> None:
        """Set an attribute of the object in a variable."""
        self.emitter.load_callee_const(function)
        self.emitter.load_fast(name)
        self.load_const(attribute)
        self(held)
        self.emitter.call(3)
        self.emitter.pop()

    def flush(self) -> None:
        """Fill the objects that were built empty."""
        while self.pending:
            self.pending.pop(0)()

    def spill(self, value: VariableTracker) -> str:
        """Build a value into a local variable."""
        self(value)
        name = self.temporary()
        self.emitter.store_fast(name)
        return name
