"""Guards and instructions as JSON values that are quick to read: each value and each source is
written once and named by its number.

A value is what ``guards.text`` writes, or a list of one JSON constant. Objects that only this
process has can't be written.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from types import FunctionType
from typing import Any, TypeAlias

import sympy
from symshapes import SizeGuard
from symshapes.text.expressions import format_expression, parse_condition
from symshapes.text.values import MISSING, Unwritable

from bytecode_dynamo.bytecode.instruction import (
    Call,
    Compare,
    Format,
    Global,
    Handler,
    Instruction,
    Label,
    Op,
    SuperAttr,
)
from bytecode_dynamo.guards.global_state import GlobalState
from bytecode_dynamo.guards.paths import find_in_class
from bytecode_dynamo.guards.records import FunctionFacts, GuardKind, GuardRecord, ShapeGuards
from bytecode_dynamo.guards.references import References, find_named
from bytecode_dynamo.guards.source import Scope, Source
from bytecode_dynamo.guards.tensor_facts import TensorFacts
from bytecode_dynamo.guards.text import GuardWriter, assumptions
from bytecode_dynamo.guards.text_reader import _Reader

from .contents import Contents

Json: TypeAlias = Any
_CONSTANTS = (type(None), bool, int, str)
_BY_VALUE = (
    *(GuardKind.EQUALS, GuardKind.LENGTH, GuardKind.DICT_KEYS, GuardKind.HAS_ATTR),
    GuardKind.NO_ATTR,
)
_OF_SOURCES = (GuardKind.ALIASED, GuardKind.NOT_ALIASED)
_TENSOR = ("dtype", "device", "requires_grad", "sizes", "strides", "keys")
_STATE = tuple(item.name for item in fields(GlobalState) if item.name != "words")
_OPERANDS: dict[str, Any] = {
    kind.__name__: kind for kind in (Call, Compare, Format, Global, SuperAttr)
}


class Changed(Exception):
    """What was written is not so in this process; says what, in a line."""


class _Named(References):
    """References that remember what they name."""

    __slots__ = ("named",)

    def __init__(self) -> None:
        super().__init__()
        self.named: dict[str, Any] = {}

    def format(self, value: Any) -> str:
        text = References.format(self, value)
        if text.startswith("named("):
            self.named[ast.literal_eval(text.removeprefix("named"))] = value
        return text

    def live(self, value: Any, what: str) -> str:
        raise Unwritable(what)


def _kinds_of_sources() -> dict[str, type[Source]]:
    found: dict[str, type[Source]] = {}
    waiting: list[type[Source]] = [Source]
    while waiting:
        cls = waiting.pop()
        found[f"{cls.__module__.rpartition('.')[2]}.{cls.__name__}"] = cls
        waiting += cls.__subclasses__()
    return found


@dataclass(slots=True)
class TableWriter:
    """Writes values, sources, guards and instructions. Raises ``Unwritable``."""

    contents: Contents
    values: dict[str, int] = field(default_factory=dict)
    rows: list[Json] = field(default_factory=list)
    sources: dict[Source, int] = field(default_factory=dict)
    source_rows: list[Json] = field(default_factory=list)
    names: _Named = field(default_factory=_Named)
    _writer: GuardWriter = field(default_factory=GuardWriter)
    _kinds: dict[type, str] = field(
        default_factory=lambda: {cls: name for name, cls in _kinds_of_sources().items()}
    )

    def __post_init__(self) -> None:
        self._writer.references = self.names

    def value(self, value: Any, by_identity: bool = False) -> int:
        """The number of a value."""
        text = self._writer.object(value) if by_identity else self._writer.value(value)
        number = self.values.get(text)
        if number is None:
            number = self.values[text] = len(self.rows)
            self.rows.append([value] if type(value) in _CONSTANTS else text)
        return number

    def source(self, source: Source) -> int:
        """The number of a source."""
        number = self.sources.get(source)
        if number is None:
            if not is_dataclass(source) or type(source) not in self._kinds:
                raise Unwritable(source.name)
            given = [getattr(source, item.name) for item in fields(source) if item.init]
            row = [self._kinds[type(source)], *map(self._part, given)]
            number = self.sources[source] = len(self.source_rows)
            self.source_rows.append(row)
        return number

    def _part(self, part: Any) -> Json:
        if isinstance(part, Source):
            return [self.source(part)]
        if type(part) is tuple and part and all(isinstance(item, Source) for item in part):
            return [[self.source(item) for item in part]]
        return self.value(part)

    def record(self, record: GuardRecord) -> Json:
        """A guard."""
        kind, expected = record.kind, record.expected
        return [kind.name, self.source(record.source), *self._expected(kind, expected)]

    def _expected(self, kind: GuardKind, expected: Any) -> list[Json]:
        match kind:
            case GuardKind.FINITE:
                return []
            case GuardKind.CLASS_ATTR:
                return [self.value(expected[0]), *self._identity(expected[1])]
            case GuardKind.TENSOR:
                held = (getattr(expected, name) for name in _TENSOR)
                return [self.value(expected.type), *map(self.value, held)]
            case GuardKind.GLOBAL_STATE:
                return [self.value(getattr(expected, name)) for name in _STATE]
            case GuardKind.FUNCTION_CODE:
                digest = self.contents.of_code(expected.code)
                held = (expected.name, digest, expected.defaults, expected.keyword_defaults)
                return [self.value(item) for item in held]
        if kind in _OF_SOURCES:
            return [self.source(expected)]
        if kind is GuardKind.IDENTITY:
            return self._identity(expected)
        if kind is GuardKind.TYPE_IS or kind in _BY_VALUE:
            return [self.value(expected, kind is GuardKind.TYPE_IS)]
        raise Unwritable(f"a guard that runs {getattr(expected, 'text', 'Python')}")

    def _identity(self, held: Any) -> list[int]:
        """A number for an object with a name, else two for one with a content."""
        try:
            return [self.value(held, by_identity=True)]
        except Unwritable:
            content = self.contents.of_whole(held)
            if content is None:
                raise
            return [self.value(content), 0]

    def shapes(self, shapes: ShapeGuards) -> Json:
        """Conditions on sizes."""
        used = set().union(*(guard.expr.free_symbols for guard in shapes.guards))
        names = {symbol.name for symbol in shapes.symbols}
        if used - shapes.symbols.keys() or len(names) < len(shapes.symbols):
            raise Unwritable("a size that depends on data")
        return {
            "symbols": [
                [symbol.name, assumptions(symbol), self.source(source)]
                for symbol, source in shapes.symbols.items()
            ],
            "guards": [[format_expression(g.expr), g.provenance] for g in shapes.guards],
        }

    def instructions(self, instructions: Sequence[Instruction]) -> Json:
        """A list of instructions."""
        labels: dict[Label, int] = {}

        def number(label: Label) -> int:
            return labels.setdefault(label, len(labels))

        return [
            [
                item.op.name,
                self._operand(item, number),
                item.position,
                None if item.handler is None else [number(item.handler[0]), *item.handler[1:]],
                None if item.label is None else number(item.label),
            ]
            for item in instructions
        ]

    def _operand(self, item: Instruction, number: Any) -> Json:
        if item.op is Op.LOAD_CONST:
            return self.value(item.arg)
        if isinstance(item.arg, Label):
            return ["Label", number(item.arg)]
        name = type(item.arg).__name__
        if name in _OPERANDS:
            return [name, *item.arg]
        if type(item.arg) not in _CONSTANTS:
            raise Unwritable(f"the operand of {item.op.name}")
        return [None, item.arg]

    def to_json(self) -> Json:
        """What the numbers mean, with the content of each object that is named."""
        contents = {name: self.contents.of(value) for name, value in self.names.named.items()}
        return {"values": self.rows, "sources": self.source_rows, "contents": contents}


class TableReader:
    """Reads what ``TableWriter`` wrote. Raises ``Changed`` for objects with another content."""

    def __init__(self, stored: Mapping[str, Json], contents: Contents) -> None:
        self.contents = contents
        for name, content in stored["contents"].items():
            _check_content(name, content, contents)
        reader = _Reader({})
        self.values = [
            row[0] if type(row) is list else reader.value(ast.parse(row, mode="eval").body)
            for row in stored["values"]
        ]
        if reader.missing:
            raise Changed(f"{reader.missing[0]} is not in this process")
        kinds = _kinds_of_sources()
        self.sources: list[Source] = []
        for kind, *parts in stored["sources"]:
            self.sources.append(kinds[kind](*map(self._part, parts)))

    def _part(self, part: Json) -> Any:
        if type(part) is int:
            return self.values[part]
        (held,) = part
        return self.sources[held] if type(held) is int else tuple(self.sources[i] for i in held)

    def records(self, rows: Sequence[Json], scope: Scope, state: GlobalState) -> list[GuardRecord]:
        """Guards on this process's objects. Functions are looked up in ``scope``, ``state`` is the
        thread's.
        """
        return [
            GuardRecord(self.sources[source], GuardKind[kind], expected)
            for kind, source, *parts in rows
            for expected in self._expected(kind, self.sources[source], parts, scope, state)
        ]

    def shapes(self, stored: Json) -> ShapeGuards:
        """Conditions on sizes."""
        places = {
            sympy.Symbol(name, **dict.fromkeys(given, True)): self.sources[number]
            for name, given, number in stored["symbols"]
        }
        names = {symbol.name: symbol for symbol in places}
        return ShapeGuards(
            places,
            [
                SizeGuard(parse_condition(ast.parse(text, mode="eval").body, names), where)
                for text, where in stored["guards"]
            ],
        )

    def _expected(
        self, kind: str, source: Source, parts: list[int], scope: Scope, state: GlobalState
    ) -> Iterator[Any]:
        values = self.values
        match kind:
            case "FINITE":
                yield True
            case "CLASS_ATTR" if parts[2:]:
                name, content = values[parts[0]], values[parts[1]]
                now = find_in_class(source.resolve(scope), name)
                yield name, self._same_content(now, content, name)
            case "CLASS_ATTR":
                yield values[parts[0]], values[parts[1]]
            case "IDENTITY" if parts[1:]:
                now = source.resolve(scope)
                yield self._same_content(now, values[parts[0]], source.name)
            case "TENSOR":
                yield TensorFacts(*(values[part] for part in parts))
            case "GLOBAL_STATE":
                yield _same_state([values[part] for part in parts], state)
            case "FUNCTION_CODE":
                yield self._function(source.resolve(scope), *(values[part] for part in parts))
            case "ALIASED" | "NOT_ALIASED":
                yield self.sources[parts[0]]
            case _:
                yield values[parts[0]]

    def _same_content(self, now: Any, content: str, name: str) -> Any:
        """The object that is there now, if it has the content."""
        if self.contents.of_whole(now) != content:
            raise Changed(f"the content of {name}")
        return now

    def _function(
        self, now: Any, name: str, digest: str, defaults: int | None, keywords: Any
    ) -> FunctionFacts:
        if type(now) is not FunctionType:
            raise Changed(f"{name} is no function")
        facts = FunctionFacts.of(now)
        if self.contents.of_code(now.__code__) != digest:
            raise Changed(f"the code of {name}")
        if (facts.defaults, facts.keyword_defaults) != (defaults, keywords):
            raise Changed(f"the defaults of {name}")
        return facts

    def instructions(self, rows: Sequence[Json]) -> list[Instruction]:
        """Instructions."""
        labels: dict[int, Label] = {}

        def label(number: int) -> Label:
            return labels.setdefault(number, Label())

        return [
            Instruction(
                Op[op],
                self._operand(operand, label),
                tuple(position),
                None if handler is None else Handler(label(handler[0]), *handler[1:]),
                None if own is None else label(own),
            )
            for op, operand, position, handler, own in rows
        ]

    def _operand(self, operand: Json, label: Any) -> Any:
        if type(operand) is int:
            return self.values[operand]
        kind, *parts = operand
        if kind is None:
            return parts[0]
        if kind == "Label":
            return label(parts[0])
        return _OPERANDS[kind](*(tuple(p) if type(p) is list else p for p in parts))


def _check_content(name: str, content: str, contents: Contents) -> None:
    found = find_named(name)
    if found is MISSING:
        raise Changed(f"{name} is not in this process")
    if contents.of(found) != content:
        raise Changed(f"the content of {name}")


def _same_state(stored: Sequence[Any], now: GlobalState) -> GlobalState:
    held = dict(zip(_STATE, stored, strict=True))
    then = GlobalState(**held)
    difference = then.difference(now)
    if difference is not None:
        raise Changed(difference)
    return GlobalState(**held, words=now.words)
