"""The code after the graph at a frame's exit: pending writes, cells, restored variables."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from symshapes import FakeTensor

from bytecode_dynamo.bytecode import JUMPS, NO_FALL_THROUGH, Analysis, Instruction, reads_frame
from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.guards.source import LocalSource
from bytecode_dynamo.reconstruction import rebuilding
from bytecode_dynamo.reconstruction.value_builder import ValueBuilder
from bytecode_dynamo.state.effects import DELETED, MISSING, Identity, owner
from bytecode_dynamo.state.tracker import VariableTracker
from bytecode_dynamo.variables.base import KeyedVariable, NullVariable
from bytecode_dynamo.variables.constant import NONE
from bytecode_dynamo.variables.context import GradModeVariable
from bytecode_dynamo.variables.function import CellVariable
from bytecode_dynamo.variables.mapping import count_staying
from bytecode_dynamo.variables.tensor import TensorVariable

from .frame_code import FrameCode


class ExitCode(ValueBuilder):
    """Writes the code that follows the graph."""

    _owners: dict[Identity, str]

    def load_owners(self) -> None:
        """Load the objects that will be mutated."""
        self._owners = {}
        for slot, _, _ in list(self.ctx.effects.changed()):
            self._owner(owner(slot))

    def enter_contexts(self) -> None:
        """Leave the context managers that the frame has left, and enter those active here."""
        ctx = self.ctx
        for manager in ctx.modes.left(ctx):
            self.call_method(manager, "__exit__", *[NONE] * 3)
            self.emitter.pop()
        if ctx.modes.overrides_off(ctx) != ctx.modes.overrides_off_at_entry:
            raise GraphBreak("BD017", "tensor subclasses do not see torch calls here")
        enabled = ctx.modes.entry_grad
        for manager in ctx.modes.active(ctx):
            if isinstance(manager, GradModeVariable):
                self._set_grad(enabled, manager.previous(ctx))  # entering notes it
            self(manager)
            if manager.key not in self.built:
                self.keep(manager.key)
            self.emitter.pop()
            self.emitter.load_fast(self.built[manager.key])
            self.emitter.load_method("__enter__")
            self.emitter.call(0)
            self.emitter.pop()
            if isinstance(manager, GradModeVariable):
                enabled = manager.enabled
        self._set_grad(enabled, ctx.modes.grad_enabled(ctx))

    def _set_grad(self, before: bool, after: bool) -> None:
        if before != after:
            self.call_const(torch._C._set_grad_enabled, after)
            self.emitter.pop()

    def prepare_effects(self) -> list[Callable[[], None]]:
        """Build the values that mutations need; returns the functions that write them."""
        writers: list[Callable[[], None]] = []
        for call in self.ctx.deferred.calls():
            self(call)
            self.emitter.pop()
        for slot, before, now in self._outer_first(self.ctx.effects.changed()):
            key, *name = _parts(slot)
            writer = (
                self._attribute_writer(key, name[0], now)
                if name
                else self._contents_writer(key, before, now)
            )
            if writer is not None:
                writers.append(writer)
        return writers

    @staticmethod
    def _outer_first(changes: Iterable[Any]) -> list[Any]:
        """Changes with those of ``enumerate`` first, an outer one before an inner one.

        Advancing an enumerate object advances what is below it, which is then set to its own place.
        Within the graph, what is below was changed first.
        """
        order: tuple[list[Any], list[Any]] = ([], [])
        for change in changes:
            order[owner(change[0]).cls is not enumerate].append(change)
        return [*reversed(order[0]), *order[1]]

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
            self.emitter.build_dict(self.push_entries(now))
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

    def _owner(self, key: Identity) -> None:
        """Load a mutated object before anything that leads to it is mutated."""
        if key not in self._owners:
            assert key.source is not None
            self.load_source(key.source)
            name = self._owners[key] = self.temporary()
            self.emitter.store_fast(name)

    def write_cells(self) -> None:
        """Fill the frame's own cells, after all that reads the arguments they held."""
        keep_leaves(self)
        made: dict[str, str | None] = {}
        while names := [name for name in self.frame_cells if name not in made]:
            for name in names:
                held = self._contents_of(name)
                made[name] = None if held is None or _is_argument(held, name) else self.spill(held)
                self.flush()
        for name, value in made.items():
            if value is not None:
                self.emitter.load_fast(value)
                self.emitter.store_deref(name)

    def _contents_of(self, name: str) -> VariableTracker | None:
        cell = self.frame_cells[name]
        assert isinstance(cell, CellVariable)
        return cell.contents(self.ctx)

    def need_cell(self, name: str, cell: CellVariable) -> None:
        """Make :meth:`write_cells` fill a cell of the frame."""
        self.frame_cells[name] = cell

    def restore_locals(
        self, frame: FrameCode, slots: dict[str, Any], analysis: Analysis, index: int
    ) -> list[Callable[[], None]]:
        """Push the variables that are needed later; returns the functions that store them, last
        pushed first.
        """
        code = frame.original.neutral
        item = code.instructions[index]
        targets = [index + 1] if item.op not in NO_FALL_THROUGH else []
        if item.op in JUMPS:
            targets.append(analysis.places[item.arg])
        live, written = analysis.live[index], 0
        for target in targets:
            live |= analysis.live[target]
            written |= analysis.written_after(target)
        if reads_frame(code):
            live = -1
        state = analysis.states[index]
        assert state is not None
        stores: list[Callable[[], None]] = []
        for name in analysis.names((live | written) & state.maybe_bound):
            value = slots.get(name)
            is_live = bool(live & analysis.bit[name])
            self._restore_local(name, value, is_live, stores)
        for name in frame.arguments():
            if name not in slots and name in code.varnames:
                stores.append(lambda name=name: self.emitter.delete_fast(name))
        stores.reverse()
        return stores

    def _restore_local(
        self, name: str, value: VariableTracker | None, live: bool, stores: list[Callable[[], None]]
    ) -> None:
        if value is None or isinstance(value, NullVariable):
            return
        if isinstance(value, CellVariable) and value.variable == name:
            self.need_cell(name, value)
            return
        if isinstance(value.source, LocalSource) and value.source.variable == name:
            return
        # a dead variable may hold the last reference to a watched object
        if live or (isinstance(value, KeyedVariable) and value.key in self.built):
            self(value)
        else:
            self.load_const(None)
        stores.append(lambda: self.emitter.store_fast(name))

    def instructions(self) -> list[Instruction]:
        """The instructions written so far."""
        return self.emitter.instructions


def _parts(slot: Any) -> tuple[Any, ...]:
    return slot if type(slot) is tuple else (slot,)


def _is_argument(value: VariableTracker, name: str) -> bool:
    return isinstance(value.source, LocalSource) and value.source.variable == name


def keep_leaves(gen: ValueBuilder) -> None:
    """Rebuild such leaves after the graph if the program still sees the memory of their gradients:
    backward of a result adds to them in place.
    """
    ctx = gen.ctx
    outputs = [val for node in gen.outputs if isinstance(val := node.meta["val"], FakeTensor)]
    if not any(val.requires_grad for val in outputs):
        return
    seen = {val.untyped_storage()._cdata for val in outputs}
    seen |= {
        val.untyped_storage()._cdata
        for node in ctx.graph.inputs
        if isinstance(val := node.meta["val"], FakeTensor)
    }
    for fake, key in list(ctx.identities.items()):
        gradient, leaf = ctx.effects.read((key, "grad")), ctx.tensors.get(fake)
        if (
            key.exists
            or leaf is None
            or not isinstance(gradient, TensorVariable)
            or not ctx.graph.sees(leaf.node)
        ):
            continue
        if leaf.fake.requires_grad and gradient.fake.untyped_storage()._cdata in seen:
            gen(leaf)
            gen.emitter.pop()
    gen.flush()
