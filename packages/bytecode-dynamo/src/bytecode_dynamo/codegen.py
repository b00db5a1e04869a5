"""Instructions that call the graph, build values again, write mutations back, and restore variables
and stack.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from torch.fx import Node

from . import rebuilding
from .bytecode import Code, Instruction
from .effects import DELETED, MISSING, Identity, owner
from .errors import GraphBreak, ObservedException
from .graph_code import KEPT, RESULT
from .leaf_gradients import keep_leaves
from .size_code import load_expression
from .source import LocalSource, Source, SourceEmitter
from .variables.base import LazyVariable, VariableTracker
from .variables.callable import KnownObjectVariable
from .variables.constant import ConstantVariable
from .variables.derived import DerivedVariable, native_base
from .variables.function import CellVariable, FunctionVariable
from .variables.iterator import IteratorVariable
from .variables.mapping import DictVariable, count_staying
from .variables.sequence import ListVariable, TupleVariable
from .variables.sets import SetVariable
from .variables.userobject import ExceptionVariable, UserObjectVariable

if TYPE_CHECKING:
    from .context import Context


class Codegen:
    """Writes the code that follows the graph; the graph's outputs are found on the way."""

    def __init__(self, ctx: Context, code: Code) -> None:
        self.ctx = ctx
        self.emitter = SourceEmitter(code)
        self.code = code
        self.outputs: list[Node] = []
        self.locals: list[str] = [RESULT, KEPT]
        self._numbers: dict[Any, str] = {}
        self._built: dict[Identity, str] = {}
        self._pending: list[Callable[[], None]] = []
        self._building: set[Identity] = set()
        self._cells: dict[str, CellVariable] = {}

    # -- values ------------------------------------------------------------------------------------

    def __call__(self, value: VariableTracker) -> None:
        """Push a value."""
        if isinstance(value, (ConstantVariable, KnownObjectVariable)):
            value.reconstruct(self)
            return
        key = value.identity() if not isinstance(value, LazyVariable) else None
        if isinstance(key, Identity) and key.shell is not None:
            self(key.shell)
        elif isinstance(key, Identity) and key in self._built:
            self.emitter.load_fast(self._built[key])
        elif value.source is not None:
            self.load_source(value.source)
        elif isinstance(key, Identity) and key.exists and key.source is not None:
            self.load_source(key.source)
        else:
            value.reconstruct(self)
            if isinstance(value, IteratorVariable):
                self.keep(value.key)

    def load_source(self, source: Source) -> None:
        """Push an existing value."""
        source.emit(self.emitter)

    def load_const(self, value: object) -> None:
        """Push a constant; a class (or part of one) that stands for one made in the call is made
        anew.
        """
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
        if node not in self.outputs:
            self.outputs.append(node)
        self.emitter.load_fast(RESULT)
        self.emitter.load_item(self.outputs.index(node))

    def load_size(self, value: Any) -> None:
        """Push a symbolic number: computed from the sources of its symbols, or by the graph where
        these are unbacked.
        """
        expr = value.node.expr
        if expr.free_symbols - self.ctx.symbol_sources.keys():
            self.load_graph_value(self.ctx.graph.size(value))
        else:
            load_expression(self, expr)

    def number(self, symbol: Any) -> str:
        """The variable that holds a symbol's value: it is read before the graph, which may change
        the sizes of inputs.
        """
        if symbol not in self._numbers:
            self._numbers[symbol] = self.temporary()
        return self._numbers[symbol]

    def numbers(self) -> list[Instruction]:
        """What reads them."""
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
        name = self._built[key] = self.temporary()
        self.emitter.duplicate()
        self.emitter.store_fast(name)

    def _guard_cycle(self, key: Identity) -> None:
        if key in self._building:
            raise GraphBreak("BD015", f"a {key.cls.__name__} that contains itself")
        self._building.add(key)

    def call(
        self,
        function: VariableTracker,
        args: Sequence[VariableTracker],
        named: Sequence[tuple[str, Any]] = (),
    ) -> None:
        """Push what a call returns."""
        self.emitter.load_callee(lambda: self(function))
        self.push_all((*args, *(value for _, value in named)))
        self.emitter.call(len(args) + len(named), [name for name, _ in named])

    def call_const(self, function: object, *arguments: object) -> None:
        """Push what a known function returns for values and constants."""
        self.emitter.load_callee_const(function)
        for argument in arguments:
            self(argument) if isinstance(argument, VariableTracker) else self.load_const(argument)
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

    def build_list(self, value: ListVariable) -> None:
        """Push a new list or deque."""
        self._guard_cycle(value.key)
        items = value.elements(self.ctx)
        if value.key.cls is list:
            self.emitter.build_list(self.push_all(items))
        else:
            self.emitter.load_callee_const(value.key.cls)
            self.build_tuple(items)
            self.load_const(value.maxlen)
            self.emitter.call(2)
        self.keep(value.key)

    def push_dict(self, value: DictVariable) -> None:
        """Push a plain dict with the entries of a dict."""
        self.emitter.build_dict(self._push_entries(value.entries(self.ctx)))

    def _push_entries(self, entries: Any) -> int:
        for key, held in entries.values():
            if isinstance(key, UserObjectVariable):
                self.complete(key)
            self(key)
            self(held)
        return len(entries)

    def complete(self, value: UserObjectVariable) -> None:
        """Build an object that is about to be hashed or iterated over, with its attributes and
        contents.
        """
        if value.key.exists:
            return
        if value.key not in self._built:
            self.spill(value)
        self.flush()

    def build_dict(self, value: DictVariable) -> None:
        """Push a new dict, OrderedDict or defaultdict."""
        self._guard_cycle(value.key)
        cls = value.key.cls
        if cls is dict:
            self.push_dict(value)
        else:
            self.emitter.load_callee_const(cls)
            if cls is collections.defaultdict:
                self(value.factory or self.ctx.none)
            self.push_dict(value)
            self.emitter.call(1 + (cls is collections.defaultdict))
        self.keep(value.key)
        self._fill_attributes(value.key)

    def build_set(self, value: SetVariable) -> None:
        """Push a new set or frozenset."""
        self._guard_cycle(value.key)
        members = value.members(self.ctx).values()
        for member in members:
            if isinstance(member, UserObjectVariable):
                self.complete(member)
        self.emitter.build_set(self.push_all(members))
        if value.key.cls is not set:
            items = self.temporary()
            self.emitter.store_fast(items)
            self.emitter.load_callee_const(value.key.cls)
            self.emitter.load_fast(items)
            self.emitter.call(1)
        self.keep(value.key)

    def remaining(self, iterator: IteratorVariable) -> list[VariableTracker]:
        """What an iterator would still give; does not advance it."""
        ctx = self.ctx
        mark, graph = ctx.effects.mark(), ctx.graph.mark()
        try:
            items = iterator.unpack(ctx)
        except ObservedException:
            raise GraphBreak("BD015", f"{iterator.describe()} raises when it is advanced") from None
        if ctx.graph.mark() != graph:
            raise GraphBreak("BD015", f"{iterator.describe()} computes tensors when it is advanced")
        written = list(ctx.effects.written_since(mark))
        if not all(isinstance(key, Identity) and issubclass(key.cls, Iterator) for key in written):
            raise GraphBreak("BD015", f"{iterator.describe()} has effects when it is advanced")
        result = ctx.effects.read((iterator.key, "result"))
        ctx.effects.rollback(mark)
        if result is not MISSING:
            ctx.effects.set_initial((iterator.key, "result"), result)
        return items

    # -- functions and objects ---------------------------------------------------------------------

    def build_cell(self, cell: CellVariable) -> None:
        """Push a cell: one of the frame's own, or a new one that is filled later."""
        if cell.variable:
            self._cells[cell.variable] = cell
            self.emitter.load_closure(cell.variable)
            return
        self.call_const(types.CellType)
        self.keep(cell.key)
        name = self._built[cell.key]
        held = cell.contents(self.ctx)
        if held is not None:
            self._later(name, lambda: self(held), lambda: self.emitter.store_attr("cell_contents"))

    def _later(self, name: str, push: Callable[[], None], store: Callable[[], None]) -> None:
        def fill() -> None:
            push()
            self.emitter.load_fast(name)
            store()

        self._pending.append(fill)

    def build_function(self, value: FunctionVariable) -> None:
        """Push a function made while evaluating."""
        if value.value is not None:
            self.load_const(value.value)
            return
        assert value.key is not None
        self._guard_cycle(value.key)
        self.emitter.load_callee_const(rebuilding.make_function)
        self.load_const(value.code)
        self.load_const(value.globals)
        self.build_tuple(value.defaults)
        for name, default in value.keyword_defaults:
            self.load_const(name)
            self(default)
        self.emitter.build_dict(len(value.keyword_defaults))
        self.build_tuple(value.closure)
        self.emitter.call(5)
        self.keep(value.key)
        if value.annotate is not None:
            self._pending.append(
                partial(
                    self._store_attribute, self._built[value.key], "__annotate__", value.annotate
                )
            )
        self._fill_attributes(value.key)
        if value.annotations is not None:
            pairs = value.annotations.unpack(self.ctx)
            made = self.ctx.create_dict(list(zip(pairs[::2], pairs[1::2])))
            name = self._built[value.key]
            self._pending.append(lambda: self._store_attribute(name, "__annotations__", made))

    def build_object(self, value: UserObjectVariable) -> None:
        """Push a new object; its attributes are set later."""
        self.call_const(native_base(value.key.cls).__new__, value.key.cls)
        self.keep(value.key)
        self._fill_attributes(value.key)

    def build_derived(self, value: DerivedVariable) -> None:
        """Push a new object of a class that extends a built-in one; contents and attributes are
        filled in later.
        """
        base, cls = native_base(value.key.cls), value.key.cls
        self._guard_cycle(value.key)
        self.emitter.load_callee_const(base.__new__)
        self.load_const(cls)
        if isinstance(value.contents, TupleVariable):
            self.build_tuple(value.contents.items)
        elif isinstance(value.contents, ConstantVariable):
            self(value.contents)
        self.emitter.call(1 + isinstance(value.contents, (TupleVariable, ConstantVariable)))
        self.keep(value.key)
        self._fill_attributes(value.key)
        name, held = self._built[value.key], value.contents.identity()
        if isinstance(held, Identity):
            self._pending.append(lambda: self._fill_contents(name, held))

    def _fill_contents(self, name: str, key: Identity) -> None:
        contents = self.ctx.effects.read(key)
        if isinstance(contents, dict) and issubclass(key.cls, dict):
            factory = key.shell.contents.factory
            if factory is not None:
                self._store_attribute(name, "default_factory", factory)
            items = self.temporary()
            self.emitter.build_dict(self._push_entries(contents))
        else:
            values = contents.values() if isinstance(contents, dict) else contents
            items = self.temporary()
            self.emitter.build_list(self.push_all(values))
        self.emitter.store_fast(items)
        self.emitter.load_callee_const(rebuilding.REFILLED[key.cls])
        self.emitter.load_fast(name)
        self.emitter.load_fast(items)
        self.emitter.call(2)
        self.emitter.pop()

    def build_exception(self, value: ExceptionVariable) -> None:
        """Push a new exception object."""
        cls = value.key.cls
        self.call_const(
            rebuilding.make_exception, native_base(cls), cls, *value.arguments(self.ctx)
        )
        self.keep(value.key)
        self._fill_attributes(value.key)

    def build_tensor(self, key: Identity, push: Callable[[], None]) -> None:
        """Push a tensor, which ``push`` does where it was not built yet; attributes that the
        program gave it are set later.
        """
        if key in self._built:
            self.emitter.load_fast(self._built[key])
            return
        push()
        self.keep(key)
        self._fill_attributes(key)

    def _fill_attributes(self, key: Identity) -> None:
        store = partial(
            self._store_attribute, self._built[key], function=rebuilding.setter_of(key.cls)
        )
        attributes = self.ctx.effects.attributes(key).items()
        self._pending += [
            partial(store, attribute, held) for attribute, held in attributes if held is not DELETED
        ]

    def _store_attribute(
        self, name: str, attribute: str, held: VariableTracker, function: Any = object.__setattr__
    ) -> None:
        self.emitter.load_callee_const(function)
        self.emitter.load_fast(name)
        self.load_const(attribute)
        self(held)
        self.emitter.call(3)
        self.emitter.pop()

    def flush(self) -> None:
        """Fill what was built empty."""
        while self._pending:
            self._pending.pop(0)()

    # -- the end of a graph ------------------------------------------------------------------------

    def spill(self, value: VariableTracker) -> str:
        """Build a value into a local variable."""
        self(value)
        name = self.temporary()
        self.emitter.store_fast(name)
        return name

    def prepare_effects(self) -> list[Callable[[], None]]:
        """Build the values that mutations need; returns what writes them."""
        writers: list[Callable[[], None]] = []
        for call in self.ctx.deferred.calls(self.ctx):
            self(call)
            self.emitter.pop()
        for slot, before, now in list(self.ctx.effects.changed()):
            key, *name = _parts(slot)
            writer = (
                self._attribute_writer(key, name[0], now)
                if name
                else self._contents_writer(key, before, now)
            )
            if writer is not None:
                writers.append(writer)
        return writers

    def _contents_writer(self, key: Any, before: Any, now: Any) -> Callable[[], None] | None:
        if issubclass(key.cls, types.CellType):
            if now is MISSING:
                return lambda: self._call_on(rebuilding.clear_cell, key)
            name = self.spill(now)
            return lambda: self._call_on(rebuilding.set_cell, key, name)
        moved = self.ctx.effects.moves(key) is not MISSING
        writer = (rebuilding.REFILLED if moved else rebuilding.CONTENTS_WRITERS).get(key.cls)
        if writer is None:
            raise GraphBreak("BD020", f"a changed {key.cls.__name__}")
        if writer in (rebuilding.replace_dict, rebuilding.replace_set):
            writer = partial(writer, stay=count_staying(before, now))
        if issubclass(key.cls, dict):
            self.emitter.build_dict(self._push_entries(now))
        elif type(now) is int:
            self.load_const(now)
        else:
            self.emitter.build_list(self.push_all(now.values() if isinstance(now, dict) else now))
        return self._writer(writer, key)

    def _writer(self, function: Callable[..., None], key: Identity) -> Callable[[], None]:
        name = self.temporary()
        self.emitter.store_fast(name)
        return lambda: self._call_on(function, key, name)

    def _call_on(self, function: Callable[..., None], key: Identity, *names: str) -> None:
        self.emitter.load_callee_const(function)
        assert key.source is not None
        owner = self._owners.get(key)
        if owner is not None:
            self.emitter.load_fast(owner)
        else:
            self.load_source(key.source)
        for name in names:
            self.emitter.load_fast(name)
        self.emitter.call(1 + len(names))
        self.emitter.pop()

    def _attribute_writer(self, key: Identity, attribute: str, now: Any) -> Callable[[], None]:
        self._owner(key)
        if now is DELETED:
            return lambda: self._set(
                rebuilding.delete_item if key.cls is dict else rebuilding.delete_attribute,
                key,
                attribute,
                None,
            )
        name = self.spill(now)
        return lambda: self._set(rebuilding.setter_of(key.cls), key, attribute, name)

    def _set(self, function: Any, key: Identity, attribute: str, name: str | None) -> None:
        self.emitter.load_callee_const(function)
        self.emitter.load_fast(self._owners[key])
        self.load_const(attribute)
        if name is not None:
            self.emitter.load_fast(name)
        self.emitter.call(2 + (name is not None))
        self.emitter.pop()

    _owners: dict[Identity, str]

    def _owner(self, key: Identity) -> None:
        """Load a mutated object before anything that leads to it is mutated."""
        if key not in self._owners:
            assert key.source is not None
            self.load_source(key.source)
            name = self._owners[key] = self.temporary()
            self.emitter.store_fast(name)

    def begin(self) -> None:
        """Load the objects that will be written to."""
        self._owners = {}
        for slot, _, _ in list(self.ctx.effects.changed()):
            self._owner(owner(slot))

    def write_cells(self) -> None:
        """Fill the cells of the frame itself, when all that may come from the arguments that they
        held is built.
        """
        keep_leaves(self)
        made: dict[str, str | None] = {}
        while names := [name for name in self._cells if name not in made]:
            for name in names:
                held = self._cells[name].contents(self.ctx)
                made[name] = None if held is None or _is_argument(held, name) else self.spill(held)
                self.flush()
        for name, value in made.items():
            if value is not None:
                self.emitter.load_fast(value)
                self.emitter.store_deref(name)

    def need_cell(self, name: str, cell: CellVariable) -> None:
        """Let :meth:`write_cells` fill a cell of the frame."""
        self._cells[name] = cell

    def instructions(self) -> list[Instruction]:
        """What was written."""
        return self.emitter.instructions


def _parts(slot: Any) -> tuple[Any, ...]:
    return slot if type(slot) is tuple else (slot,)


def _is_argument(value: VariableTracker, name: str) -> bool:
    return isinstance(value.source, LocalSource) and value.source.variable == name
