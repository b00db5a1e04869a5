"""Records a whole kernel: several bodies, values carried between them, invariants moved out, stores
to internal buffers forwarded to loads.
"""

from __future__ import annotations

from collections.abc import Callable

import sympy
import torch

from loopir.ir.kernel import Instruction, Number, Value
from loopir.ir.simplify import Extents, Facts
from loopir.lowering.record import SimplifyingRecorder


class KernelRecorder(SimplifyingRecorder):
    """Bodies alternate: even slots run once per point of ``ranges``, odd ones also over the
    reduction.

    Values of a slot with an even number are known in all later slots, those of an odd one only
    there (C4.2), except results of ``reduce``. In an odd slot, what does not depend on the
    reduction goes to the slot before it.
    """

    def __init__(
        self, facts: Facts, extents: Extents, reduction: set[sympy.Symbol], stored: set[str]
    ) -> None:
        super().__init__(facts, extents)
        self.slots: dict[int, list[Instruction]] = {}
        self.slot = 0
        self.stored = stored
        self.recompute: dict[str, Callable[[], Value]] = {}
        self._varying = set(reduction)
        self._inner_values: set[str] = set()
        self._inner_known: dict[tuple[object, ...], Value] = {}
        self._constants: dict[str, tuple[Number, torch.dtype]] = {}

    def enter(self, slot: int) -> None:
        """Continues in another slot; slots are entered in rising order."""
        if slot != self.slot:
            self._inner_known = {}
        self.slot = slot

    @property
    def is_inner(self) -> bool:
        """Whether instructions run in the reduction's loops too."""
        return bool(self.slot % 2)

    def load(
        self,
        buffer: str,
        index: sympy.Expr,
        dtype: torch.dtype,
        mask: Value | None = None,
        other: Number | None = None,
    ) -> Value:
        index = self.simplified(index)
        again = self.recompute.get(buffer)
        if (
            again is not None
            and mask is None
            and self._find(self.key("load", (buffer, index, None, None), dtype)) is None
        ):
            return again()
        return super().load(buffer, index, dtype, mask, other)

    def emit(self, op: str, args: tuple, dtype: torch.dtype) -> Value:
        key = self.key(op, args, dtype)
        known = self._find(key)
        if known is not None:
            return known
        if self.is_inner and op != "constant" and self._is_invariant(op, args):
            return self._emit_outside(op, args, dtype)
        value = Value(self.new_name(op))
        self.dtypes[value.name] = dtype
        if op == "constant":
            self._constants[value.name] = (args[0], dtype)
        if self.is_inner:
            self._inner_known[key] = value
            if op == "reduce":
                self._known[key] = value
            else:
                self._inner_values.add(value.name)
        else:
            self._known[key] = value
        self.append(self.define(Instruction(value.name, op, args, dtype)))
        return value

    def known_values(self) -> list[dict[tuple[object, ...], Value]]:
        return [self._inner_known, self._known] if self.is_inner else [self._known]

    def _find(self, key: tuple[object, ...]) -> Value | None:
        return next((known[key] for known in self.known_values() if key in known), None)

    def _emit_outside(self, op: str, args: tuple, dtype: torch.dtype) -> Value:
        inside = self.slot
        self.slot = inside - 1
        try:
            moved = tuple(
                self.emit("constant", (self._constants[a.name][0],), self._constants[a.name][1])
                if isinstance(a, Value) and a.name in self._inner_values
                else a
                for a in args
            )
            return self.emit(op, moved, dtype)
        finally:
            self.slot = inside

    def _is_invariant(self, op: str, args: tuple) -> bool:
        if op in ("reduce", "scan") or (op == "load" and args[0] in self.stored):
            return False
        for arg in args:
            if (
                isinstance(arg, Value)
                and arg.name in self._inner_values
                and arg.name not in self._constants
            ):
                return False
            if isinstance(arg, sympy.Expr) and arg.free_symbols & self._varying:
                return False
        return True

    def indirect(self, value: Value, size: sympy.Expr) -> sympy.Symbol:
        result = super().indirect(value, size)
        if result.name in self._inner_values:
            self._varying.add(result)
        return result

    def append(self, instruction: Instruction) -> None:
        self.slots.setdefault(self.slot, []).append(instruction)
