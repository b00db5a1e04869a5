"""Which sizes, strides and numbers are symbolic: by option, by marks on tensors, or because they
changed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from symshapes import stride_relations, symbolic_strides

from bytecode_dynamo.guards.records import GuardKind
from bytecode_dynamo.guards.source import ItemSource, LocalSource, Source
from bytecode_dynamo.guards.tensor_source import SizeSource, StrideSource
from bytecode_dynamo.marker import Marker
from bytecode_dynamo.marks import (
    DYNAMIC_MARK,
    MAYBE_DYNAMIC_MARK,
    STATIC_MARK,
    UNBACKED_MARK,
    marks_of,
)

from .tracker import Capture

LIMITS = (2**31, 2**62)  # products of two small numbers and sums of large ones fit int64


CHANGED = Marker("changed")


@dataclass(slots=True)
class Seen:
    """Sizes, strides and numbers in earlier captures of one code object, by source text."""

    sizes: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    strides: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    relations: dict[str, list[frozenset[int]]] = field(default_factory=dict)
    numbers: dict[str, Any] = field(default_factory=dict)

    def merge_sizes(self, name: str, sizes: tuple[int, ...]) -> tuple[Any, ...]:
        """Record sizes; returns them with CHANGED in place of those that differed before."""
        return _merge(self.sizes, name, sizes)

    def merge_strides(
        self, name: str, shape: Sequence[int], strides: tuple[int, ...]
    ) -> tuple[tuple[Any, ...], list[frozenset[int]]]:
        """Record strides; returns them with CHANGED in place of those that differed before, and the
        relations to sizes that always held.
        """
        held = stride_relations(shape, strides)
        before = self.relations.get(name, held)
        if len(before) == len(held):
            held = [old & new for old, new in zip(before, held)]
        self.relations[name] = held
        return _merge(self.strides, name, strides), held

    def merge_number(self, name: str, value: Any) -> Any:
        """Record a number; returns CHANGED if it differed before."""
        before = self.numbers.get(name, value)
        merged = value if type(before) is type(value) and before == value else CHANGED
        self.numbers[name] = merged
        return merged

    def to_json(self) -> Any:
        """A JSON value; CHANGED is null in it."""
        return {
            "sizes": {name: _without_marker(held) for name, held in self.sizes.items()},
            "strides": {name: _without_marker(held) for name, held in self.strides.items()},
            "relations": {n: [sorted(one) for one in held] for n, held in self.relations.items()},
            "numbers": dict(zip(self.numbers, _without_marker(self.numbers.values()))),
        }

    @staticmethod
    def from_json(stored: Any) -> Seen:
        """The inverse of ``to_json``."""
        return Seen(
            {name: tuple(_with_marker(held)) for name, held in stored["sizes"].items()},
            {name: tuple(_with_marker(held)) for name, held in stored["strides"].items()},
            {name: [frozenset(one) for one in held] for name, held in stored["relations"].items()},
            dict(zip(stored["numbers"], _with_marker(stored["numbers"].values()))),
        )


def _without_marker(values: Iterable[Any]) -> list[Any]:
    return [None if value is CHANGED else value for value in values]


def _with_marker(values: Iterable[Any]) -> list[Any]:
    return [CHANGED if value is None else value for value in values]


def _merge(
    record: dict[str, tuple[Any, ...]], name: str, values: tuple[int, ...]
) -> tuple[Any, ...]:
    before = record.get(name)
    if before is None or len(before) != len(values):
        merged: tuple[Any, ...] = values
    else:
        merged = tuple(new if old == new else CHANGED for old, new in zip(before, values))
    record[name] = merged
    return merged


def dynamic_marks(value: torch.Tensor) -> dict[int, tuple[int | None, int | None]]:
    """The dimensions named by ``mark_dynamic``, ours or torch's own, with their bounds."""
    marks: dict[int, tuple[int | None, int | None]] = dict.fromkeys(
        marks_of(value, "_dynamo_dynamic_indices"), (None, None)
    )
    marks.update((one.dim, (one.min, one.max)) for one in marks_of(value, "_dynamo_dynamic_range"))
    return {**marks, **dict(marks_of(value, DYNAMIC_MARK))}


@dataclass(slots=True)
class DynamicShapes:
    """The policy of one capture. ``dynamic`` None: values that changed are symbolic; True: all;
    False: none.
    """

    dynamic: bool | None
    seen: Seen
    floats: bool = True
    """Whether floats that changed are symbolic."""
    made: dict[Source, Any] = field(default_factory=dict)
    ragged: list[tuple[torch.Tensor, Source, torch.Tensor, bool]] = field(default_factory=list)
    """Inputs that are, or may become, offsets (or lengths) of jagged tensors: their sources, fakes,
    and whether they are inside of one.
    """
    marked: dict[Any, str] = field(default_factory=dict)
    """Symbols of dimensions that the program marked, with the text of their source."""

    def dims(self, value: torch.Tensor, source: Source, static: bool) -> list[int]:
        """The dimensions with symbols; sizes 0 and 1 have none."""
        marked = {
            **dynamic_marks(value),
            **dict.fromkeys(marks_of(value, "_dynamo_weak_dynamic_indices")),
            **dict.fromkeys(marks_of(value, MAYBE_DYNAMIC_MARK)),
        }
        fixed = {*marks_of(value, STATIC_MARK), *marks_of(value, "_dynamo_static_indices")}
        merged = self.seen.merge_sizes(source.name, tuple(value.shape))
        candidates = []
        unbacked = self.unbacked(value)
        for dim, size in enumerate(value.shape):
            if dim in unbacked:
                candidates.append(dim)
            if size < 2 or dim in fixed or dim in unbacked:
                continue
            if dim in marked or (not static and self._wanted(merged[dim])):
                candidates.append(dim)
        return candidates

    def unbacked(self, value: torch.Tensor) -> set[int]:
        """The dimensions that ``mark_unbacked`` named."""
        return {*marks_of(value, UNBACKED_MARK), *marks_of(value, "_dynamo_unbacked_indices")}

    def new_size(self, ctx: Capture, value: torch.Tensor, source: SizeSource) -> torch.SymInt:
        """The symbol of a dimension."""
        dim = source.dim
        if source in self.made:  # a tensor inside of a wrapper subclass may be an input itself
            return self.made[source]
        if dim in self.unbacked(value):
            return ctx.env.create_unbacked(0, source=source.name)
        self.made[source] = size = ctx.env.create_symbol(
            value.shape[dim], source.name, *self.range_of(value, dim)
        )
        if dim in dynamic_marks(value):
            self.marked[size.node.expr] = source.name
        return size

    def strides(
        self, ctx: Capture, value: torch.Tensor, source: Source, sizes: Sequence[Any], static: bool
    ) -> list[Any]:
        """The strides of a tensor of these sizes: a product of sizes where it always was one, else
        a symbol where the tensor's layout changes, else a number.
        """
        merged, relations = self.seen.merge_strides(source.name, value.shape, value.stride())
        changes = any(isinstance(size, torch.SymInt) for size in sizes)

        def independent(dim: int) -> Any:
            if self.dynamic is False or static or not (changes or self._wanted(merged[dim])):
                return value.stride(dim)
            return self._new_stride(ctx, value.stride(dim), StrideSource(source, dim))

        return symbolic_strides(value.shape, value.stride(), sizes, relations, independent)

    def _new_stride(self, ctx: Capture, stride: int, source: StrideSource) -> torch.SymInt:
        if source not in self.made:
            self.made[source] = ctx.env.create_symbol(stride, source.name)
            ctx.bind_symbol(self.made[source], source, stride)
        return self.made[source]

    def _wanted(self, merged: Any) -> bool:
        if self.dynamic is None:
            return merged is CHANGED
        return self.dynamic

    def range_of(self, value: torch.Tensor, dim: int) -> tuple[int, int | None]:
        """The bounds that ``mark_dynamic`` declared for a dimension."""
        low, high = dynamic_marks(value).get(dim, (None, None))
        return (2 if low is None else max(2, low)), high

    def number(self, ctx: Capture, value: Any, source: Source) -> Any:
        """The symbol of an input int or float, or None to specialise."""
        if type(value) not in (int, float):
            return None
        if source in self.made:
            return self.made[source]
        if type(value) is float:
            return self._float(ctx, value, source)
        merged = self.seen.merge_number(source.name, value)
        if value in (0, 1) or self.dynamic is False:
            return None
        if merged is not CHANGED and not (self.dynamic and _is_argument(source)):
            return None
        size = number_symbol(ctx, value, source.name)
        if size is None:
            return None
        ctx.bind_symbol(size, source, value)
        self.made[source] = size
        return size

    def _float(self, ctx: Capture, value: float, source: Source) -> torch.SymFloat | None:
        """A symbol for a float that changed; 0, infinities and NaN stay constants."""
        if self.seen.merge_number(source.name, value) is not CHANGED or self.dynamic is False:
            return None
        if not value or not math.isfinite(value) or not self.floats:
            return None
        number = ctx.env.create_float(value, source.name)
        ctx.guards.require(source, GuardKind.FINITE, True)
        ctx.bind_symbol(number, source, value)
        self.made[source] = number
        return number


def number_symbol(ctx: Capture, value: int, name: str) -> torch.SymInt | None:
    """A symbol for an int that changes, bounded since programs compute in 64 bits. None for one too
    large.
    """
    limit = next((limit for limit in LIMITS if -limit <= value < limit), None)
    if limit is None:
        return None
    return ctx.env.create_symbol(value, name, 2 if value >= 2 else -limit, limit - 1)


def fits(ctx: Capture, made: Any) -> bool:
    """Whether a program can compute a number in 64 bits. Sizes always fit: memory of their product
    exists.
    """
    if not isinstance(made, torch.SymInt):
        return not isinstance(made, int) or -(2**63) <= made < 2**63
    expr, interval = made.node.expr, ctx.env.symbol_interval
    sizes = {
        symbol: sympy.Integer(2**31)
        for symbol in expr.free_symbols
        if interval(symbol).hi == math.inf
    }
    if len(sizes) == len(expr.free_symbols):
        return True
    low, high = ctx.env.bounds(expr.xreplace(sizes))
    return low >= -(2**63) and high < 2**63


def _is_argument(source: Source) -> bool:
    """Whether a source is an argument or its item; numbers in attributes are more often
    hyperparameters than sizes.
    """
    return all(isinstance(step, (LocalSource, ItemSource)) for step in source.path())
