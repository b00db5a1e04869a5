"""Translation of native operands (integers) to neutral operands and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

BINARY_OPERATORS = (
    "+", "&", "//", "<<", "@", "*", "%", "|", "**", ">>", "-", "/", "^",
    "+=", "&=", "//=", "<<=", "@=", "*=", "%=", "|=", "**=", ">>=", "-=", "/=", "^=",
)  # fmt: skip
COMPARISONS = ("<", "<=", "==", "!=", ">", ">=")


class Pool:
    """The tables a code object's operands index: constants, names and variable slots."""

    def __init__(
        self,
        consts: Sequence[object],
        names: Sequence[str],
        varnames: Sequence[str],
        cellvars: Sequence[str],
        freevars: Sequence[str],
    ) -> None:
        self.consts: list[Any] = list(consts)
        self.names = list(names)
        own_cells = [name for name in cellvars if name not in varnames]
        self.slots = [*varnames, *own_cells, *freevars]
        self._const_index: dict[int, int] = {}
        for index, value in enumerate(self.consts):
            self._const_index.setdefault(id(value), index)
        self._name_index = {name: index for index, name in enumerate(self.names)}
        self._local_index: dict[str, int] = {}
        for index, name in enumerate(self.slots):
            self._local_index.setdefault(name, index)
        first_cell = len(varnames)
        self._cell_index = {
            name: index for index, name in enumerate(self.slots) if index >= first_cell
        }
        for name in cellvars:
            if name in varnames:
                self._cell_index[name] = self._local_index[name]
        self.cell_slots = frozenset(self._cell_index.values())

    def const(self, value: object) -> int:
        """Index of a constant, by identity: 1, 1.0 and True must stay apart."""
        index = self._const_index.get(id(value))
        if index is None:
            index = self._const_index[id(value)] = len(self.consts)
            self.consts.append(value)
        return index

    def name(self, value: str) -> int:
        """Index of a name."""
        index = self._name_index.get(value)
        if index is None:
            index = self._name_index[value] = len(self.names)
            self.names.append(value)
        return index

    def local(self, name: str) -> int:
        """Slot of a variable used without dereferencing."""
        return self._local_index[name]

    def cell(self, name: str) -> int:
        """Slot of a variable used through its cell."""
        return self._cell_index[name]


class Operand(NamedTuple):
    """The conversion of one kind of native operand."""

    unpack: Callable[[int, Pool], Any]
    pack: Callable[[Any, Pool], int]


NONE = Operand(lambda raw, pool: None, lambda value, pool: 0)
RAW = Operand(lambda raw, pool: raw, lambda value, pool: value)
CONST = Operand(lambda raw, pool: pool.consts[raw], lambda value, pool: pool.const(value))
NAME = Operand(lambda raw, pool: pool.names[raw], lambda value, pool: pool.name(value))
LOCAL = Operand(lambda raw, pool: pool.slots[raw], lambda value, pool: pool.local(value))
CELL = Operand(lambda raw, pool: pool.slots[raw], lambda value, pool: pool.cell(value))
BINARY = Operand(
    lambda raw, pool: BINARY_OPERATORS[raw], lambda value, pool: BINARY_OPERATORS.index(value)
)
# Jump operands are resolved by the decoder and the encoder, which know the layout.
FORWARD = Operand(RAW.unpack, RAW.pack)
BACKWARD = Operand(RAW.unpack, RAW.pack)
