"""The text form of guards: a line per record, then the symbols of sizes and the conditions on them.

::

    # bytecode_dynamo.guards 1
    type_is(L['n'], named('builtins:int'))
    tensor(L['x'], f32[_, 8](8, 1), keys=keys('AutogradCPU', 'AutocastCPU', 'CPU'))
    identity(G['helper'].__code__, live('a code', 0))
    s0 = symbol(L['x'].size(0), integer=True, positive=True)
    require(s0 >= 2, 'File "model.py", line 3, in forward: return x.view(-1)')

The name of a guard is its ``GuardKind``; ``_`` is a size or stride that the guard leaves open.
Sources are paths as in ``Source.name``, with these exceptions: ``constant(3)``, ``named(...)`` and
``live(...)`` begin a path at an object (``references``), ``computed(function, *operands)`` at a
computed number, ``lookup(function, base, key)`` is an item by another function than the class's
own. The text has no bits of the thread's memory (``GlobalState.words``), which are those of one
process.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterable
from dataclasses import fields
from functools import cache
from typing import Any

import sympy
import torch
from symshapes.text.expressions import format_expression
from symshapes.text.form import TextForm
from symshapes.text.tensors import TensorType, format_tensor_type, row_major
from symshapes.text.values import format_value

from . import source as sources
from .computed_source import ComputedSource
from .records import ABSENT, Answer, GuardKind, GuardRecord, ShapeGuards
from .references import Live, Named, References
from .tensor_facts import TensorFacts

FORM = TextForm("bytecode_dynamo.guards", 1)
OPEN = sympy.Symbol("_", integer=True, positive=True)
"""A size or stride that a guard leaves open."""
ASSUMPTIONS = ("integer", "real", "positive", "nonnegative")
_IMPLIED = {"real": "integer", "nonnegative": "positive"}
_SINGLETONS = {type(None), bool, type(...), torch.dtype, torch.layout, torch.memory_format}
_DATA = {
    *(*_SINGLETONS, int, float, complex, str, bytes, slice, torch.device, torch.Size),
    *(tuple, list, dict, set, frozenset),
}
_CONSTANTS = {id(ABSENT): "ABSENT", id(NotImplemented): "NotImplemented"}
_LONGEST_INT = 10_000  # in bits; Python refuses to print much longer ones
_ROOTS = (
    *(sources.LocalSource, sources.GlobalSource, sources.BuiltinSource, sources.NamespaceSource),
    *(sources.ClosureCellSource, sources.ClosureSource),
)


def format_guards(records: Iterable[GuardRecord], shapes: ShapeGuards | None = None) -> str:
    """The guards of a cache entry as text."""
    writer = GuardWriter()
    lines = [*map(writer.record, records), *writer.shapes(shapes or ShapeGuards())]
    return FORM.write("".join(f"{line}\n" for line in lines))


def format_guard(record: GuardRecord) -> str:
    """One guard as a line."""
    return GuardWriter().record(record)


class GuardWriter:
    """Writes guards, whose live objects are numbered together."""

    def __init__(self) -> None:
        self.references = References()

    def record(self, record: GuardRecord) -> str:
        """One line."""
        has_source = record.kind is not GuardKind.GLOBAL_STATE
        source = [self.source(record.source)] if has_source else []
        parts = self._expected(record.kind, record.expected, "".join(source))
        return f"{record.kind.name.lower()}({', '.join(source + parts)})"

    def _expected(self, kind: GuardKind, expected: Any, source: str) -> list[str]:
        match kind:
            case GuardKind.TYPE_IS | GuardKind.IDENTITY:
                return [self.object(expected)]
            case GuardKind.TENSOR:
                return self._tensor(expected)
            case GuardKind.ALIASED | GuardKind.NOT_ALIASED:
                return [self.source(expected)]
            case GuardKind.FUNCTION_CODE | GuardKind.GLOBAL_STATE:
                names = [item.name for item in fields(expected) if item.name != "words"]
                return [f"{name}={self.value(getattr(expected, name))}" for name in names]
            case GuardKind.CLASS_ATTR:
                return [repr(expected[0]), self.object(expected[1])]
            case GuardKind.CUSTOM if isinstance(expected, Answer):
                return [self.references.live(expected, f"{expected.shown(source)} as it was")]
            case GuardKind.FINITE:
                return []
        return [self.value(expected)]

    def _tensor(self, facts: TensorFacts) -> list[str]:
        sizes = tuple(OPEN if size is None else size for size in facts.sizes)
        steps = row_major(sizes) if facts.strides is None else facts.strides
        strides = tuple(OPEN if step is None else step for step in steps)
        grad = facts.requires_grad
        given = TensorType(facts.dtype, sizes, strides, facts.device, requires_grad=grad)
        parts = [format_tensor_type(given, str), f"keys={format_keys(facts.keys)}"]
        if facts.type is not torch.Tensor:
            parts.append(f"type={self.object(facts.type)}")
        return parts + ["strides=None"] * (facts.strides is None)

    def shapes(self, shapes: ShapeGuards) -> list[str]:
        """The lines of symbols and conditions."""
        used = {symbol for guard in shapes.guards for symbol in guard.expr.free_symbols}
        unknown = sorted(used - shapes.symbols.keys(), key=str)
        lines = []
        for symbol, source in {**shapes.symbols, **dict.fromkeys(unknown)}.items():
            parts = ["None" if source is None else self.source(source)]
            parts += [f"{name}=True" for name in assumptions(symbol)]
            lines.append(f"{symbol.name} = symbol({', '.join(parts)})")
        for guard in shapes.guards:
            text = format_expression(guard.expr)
            text = text[1:-1] if text.startswith("(") else text
            asked = f", {guard.provenance!r}" if guard.provenance else ""
            lines.append(f"require({text}{asked})")
        return lines

    def value(self, value: Any) -> str:
        """A constant, or an object of the process."""
        return format_value(value, self._leaf)

    def object(self, value: Any) -> str:
        """An object whose identity counts."""
        is_data = type(value) in _DATA - _SINGLETONS
        return self.references.format(value) if is_data else self.value(value)

    def _leaf(self, value: Any) -> str | None:
        kind = type(value)
        if kind is Named:
            return str(value)
        if kind is Live:
            return self.references.live(value, value.what)
        if kind is range:
            return f"range({value.start}, {value.stop}, {value.step})"
        if kind is torch._C.DispatchKeySet:
            return format_keys(value.raw_repr())
        is_data = kind in _DATA and (kind is not int or value.bit_length() < _LONGEST_INT)
        return None if is_data else _CONSTANTS.get(id(value)) or self.references.format(value)

    def source(self, source: sources.Source) -> str:
        """A path."""
        if isinstance(source, _ROOTS):
            return source.name
        if isinstance(source, sources.MappingSource):
            return self.references.live(source.value, source.name)
        if isinstance(source, sources.ConstSource):
            text = self.value(source.value)
            return text if text.startswith(("named(", "live(")) else f"constant({text})"
        if isinstance(source, ComputedSource):
            operands = map(self.source, source.operands)
            return f"computed({', '.join([self.object(source.function), *operands])})"
        if not isinstance(source, sources.ChainedSource):
            return self.references.live(source, source.name)
        return self._chained(source, self.source(source.base))

    def _chained(self, source: sources.ChainedSource, base: str) -> str:
        if isinstance(source, sources.AppliedSource):
            return source.text.replace("{}", base, 1)
        if isinstance(source, sources.ItemSource):
            key, lookup = self.value(source.key), source.lookup
            return f"lookup({self.object(lookup)}, {base}, {key})" if lookup else f"{base}[{key}]"
        if isinstance(source, sources.AttrSource):
            name = source.attribute
            if source.generic:
                return f"object.__getattribute__({base}, {name!r})"
            is_plain = name.isidentifier() and name.isascii() and not keyword.iskeyword(name)
            return f"{base}.{name}" if is_plain else f"getattr({base}, {name!r})"
        for step in source.steps:
            base = step.text(base)
        return base


def assumptions(symbol: sympy.Symbol) -> list[str]:
    """What a symbol is known to be, for ``sympy.Symbol``."""
    kinds = [name for name in ASSUMPTIONS if getattr(symbol, f"is_{name}")]
    return [name for name in kinds if name not in _IMPLIED or _IMPLIED[name] not in kinds]


@cache
def key_bits() -> dict[str, int]:
    """The bits of each dispatch key, keys of most bits first."""
    bits = {
        name: torch._C.DispatchKeySet(key).raw_repr()
        for name, key in torch._C.DispatchKey.__members__.items()
        if not name.startswith(("StartOf", "EndOf"))
    }
    named = [name for name in sorted(bits) if bits[name]]
    return {name: bits[name] for name in sorted(named, key=lambda name: -bits[name].bit_count())}


def format_keys(keys: int) -> str:
    """A bit set of dispatch keys by names; bits of keys that Python can't name as a number."""
    parts, left = [], keys
    for name, bits in key_bits().items():
        if bits & keys == bits and bits & left:
            parts.append(repr(name))
            left &= ~bits
    return f"keys({', '.join(parts + [hex(left)] * bool(left))})"
