"""Reads and checks the text form of guards; see ``text``."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from types import CodeType
from typing import Any, NamedTuple, TypeAlias

import sympy
import torch
from symshapes import ParseError, SizeGuard
from symshapes.text.expressions import parse_condition
from symshapes.text.tensors import parse_tensor_type
from symshapes.text.values import MISSING, parse_value

from . import source as sources
from .computed_source import ComputedSource
from .global_state import GlobalState
from .records import ABSENT, STATE, FunctionFacts, GuardKind, GuardRecord, ShapeGuards
from .references import Live, Named, OpenRecord, OpenShapes, find_named
from .tensor_facts import TensorFacts
from .tensor_source import SizeSource, StrideSource
from .text import ASSUMPTIONS, FORM, OPEN, key_bits

_Nodes: TypeAlias = list[ast.expr]
_Words: TypeAlias = dict[str, ast.expr]
_KINDS = {kind.name.lower(): kind for kind in GuardKind}
_VARIABLES: dict[str, type[sources.VariableSource]] = {
    "L": sources.LocalSource, "G": sources.GlobalSource, "B": sources.BuiltinSource,
    "C": sources.ClosureCellSource,
}  # fmt: skip
_DIMENSIONS = {"size": SizeSource, "stride": StrideSource}
_CONSTANTS = {"ABSENT": ABSENT, "NotImplemented": NotImplemented}
_CLASS: Any = type | Named | Live
_FUNCTION: Any = Callable | Named | Live
_CODE: Any = CodeType | Named | Live
_EXPECTED = {GuardKind.TYPE_IS: _CLASS, GuardKind.CUSTOM: _FUNCTION, GuardKind.DICT_KEYS: tuple}
_FIELDS: dict[str, Any] = {
    "name": str, "code": _CODE, "defaults": int | None, "keyword_defaults": tuple | None,
    "autocast": tuple, "default_dtype": torch.dtype, "function_modes": tuple,
    "dispatch_modes": int, "tf32": bool | None, "dispatch_keys": tuple,
}  # fmt: skip
"""What the fields of facts hold; the others hold bools."""


class GuardTable(NamedTuple):
    """The guards of a text."""

    records: tuple[GuardRecord, ...]
    shapes: ShapeGuards


def parse_guards(text: str, objects: Mapping[int, Any] | None = None) -> GuardTable:
    """The guards of a text, checked. ``objects``: by number those that ``live(...)`` stands for.

    Guards on objects that are not given, and on names that no loaded module has, are
    ``OpenRecord``s: they print as they were, and ``compile_guards`` refuses them. A path may come
    back as a source of another class with the same steps.

    Raises ``symshapes.ParseError`` with line and column, ``symshapes.VersionError`` for a text of
    a newer version.
    """
    reader = _Reader(objects or {})
    for statement in FORM.parse(text).body:
        try:
            reader.statement(statement)
        except RecursionError:
            place = statement.lineno, statement.col_offset + 1
            raise ParseError("nested too deeply", *place) from None
    return GuardTable(tuple(reader.records), reader.shapes())


@dataclass(slots=True)
class _Reader:
    objects: Mapping[int, Any]
    records: list[GuardRecord] = field(default_factory=list)
    symbols: dict[str, sympy.Symbol] = field(default_factory=dict)
    sources: dict[sympy.Symbol, sources.Source] = field(default_factory=dict)
    conditions: list[SizeGuard] = field(default_factory=list)
    missing: list[Named | Live] = field(default_factory=list)  # in the line that is read
    missing_in_sources: list[Named | Live] = field(default_factory=list)

    def statement(self, statement: ast.stmt) -> None:
        """Reads one line."""
        self.missing = []
        match statement:
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.Call(func=ast.Name("symbol"), args=[source]) as call,
            ):
                self._symbol(name, source, call)
            case ast.Expr(
                value=ast.Call(func=ast.Name("require"), args=[condition, *place], keywords=[])
            ) if len(place) < 2:
                self._condition(condition, place)
            case ast.Expr(value=ast.Call(func=ast.Name(id=kind)) as call) if kind in _KINDS:
                self._record(_KINDS[kind], call)
            case _:
                raise ParseError.at(statement, "not a guard")

    def shapes(self) -> ShapeGuards:
        """The conditions on sizes."""
        missing = tuple(self.missing_in_sources)
        made = partial(OpenShapes, missing=missing) if missing else ShapeGuards
        return made(self.sources, self.conditions)

    def _symbol(self, name: str, source: ast.expr, call: ast.Call) -> None:
        given = {str(word.arg): self.of(bool, word.value) for word in call.keywords}
        if name in self.symbols or not given.keys() <= {*ASSUMPTIONS} or not all(given.values()):
            raise ParseError.at(call, "not a declaration of a new symbol")
        symbol = self.symbols[name] = _new_symbol(name, given, call)
        if not isinstance(source, ast.Constant):
            self.sources[symbol] = self.source(source)
        self.missing_in_sources += self.missing

    def _condition(self, condition: ast.expr, place: _Nodes) -> None:
        expr = parse_condition(condition, self.symbols)
        self.conditions.append(SizeGuard(expr, *(self.of(str, node) for node in place)))

    def _record(self, kind: GuardKind, call: ast.Call) -> None:
        nodes, source = list(call.args), STATE
        if kind is not GuardKind.GLOBAL_STATE:
            source = self.source(nodes.pop(0) if nodes else call)
        words = {str(word.arg): word.value for word in call.keywords}
        expected = self._expected(kind, nodes, words)
        if expected is MISSING:
            raise ParseError.at(call, f"not the parts of {kind.name.lower()}")
        made = partial(OpenRecord, missing=tuple(self.missing)) if self.missing else GuardRecord
        self.records.append(made(source, kind, expected))

    def _expected(self, kind: GuardKind, nodes: _Nodes, words: _Words) -> Any:
        match kind, nodes:
            case GuardKind.TENSOR, [given]:
                return self._tensor(given, words)
            case GuardKind.FUNCTION_CODE | GuardKind.GLOBAL_STATE, []:
                return self._facts(kind, words)
            case _ if words:
                return MISSING
            case ((GuardKind.ALIASED | GuardKind.NOT_ALIASED), [node]):
                return self.source(node)
            case GuardKind.LENGTH, [node]:
                return self.count(node)
            case GuardKind.FINITE, []:
                return True
            case GuardKind.CLASS_ATTR, [name, held]:
                return self.of(str, name), self.value(held)
            case ((GuardKind.FINITE | GuardKind.CLASS_ATTR), _):
                return MISSING
            case _, [node]:
                return self.of(_EXPECTED.get(kind, object), node)
        return MISSING

    def _tensor(self, node: ast.expr, words: _Words) -> Any:
        given = parse_tensor_type(node, self._size)
        if given is None or given.conj or given.neg or given.offset != 0:
            raise ParseError.at(node, "not the type of a tensor that a guard may state")
        if "keys" not in words or not words.keys() <= {"keys", "type", "strides"}:
            return MISSING
        sizes, strides = (
            tuple(item if type(item) is int else None for item in items)
            for items in (given.shape, given.strides)
        )
        if "strides" in words:
            strides = self.of(type(None), words["strides"])
        cls = self.of(_CLASS, words["type"]) if "type" in words else torch.Tensor
        keys = self.of(torch._C.DispatchKeySet, words["keys"]).raw_repr()
        grad = given.requires_grad
        return TensorFacts(cls, given.dtype, given.device, grad, sizes, strides, keys)

    def _size(self, node: ast.expr) -> Any:
        is_open = isinstance(node, ast.Name) and node.id == "_"
        return OPEN if is_open else self.count(node)

    def _facts(self, kind: GuardKind, words: _Words) -> Any:
        cls = FunctionFacts if kind is GuardKind.FUNCTION_CODE else GlobalState
        if words.keys() != {item.name for item in fields(cls)} - {"words"}:
            return MISSING
        return cls(**{name: self.of(_FIELDS.get(name, bool), node) for name, node in words.items()})

    # -- values -----------------------------------------------------------------------------------

    def of(self, kind: Any, node: ast.expr) -> Any:
        """A value of this class; a bool is no int."""
        value = self.value(node)
        is_bool = type(value) is bool and kind is not object and isinstance(0, kind)
        if is_bool or not isinstance(value, kind):
            raise ParseError.at(node, f"expected {getattr(kind, '__name__', kind)}")
        return value

    def count(self, node: ast.expr) -> int:
        """An int from 0 on."""
        if (number := self.of(int, node)) < 0:
            raise ParseError.at(node, "expected an int from 0 on")
        return number

    def value(self, node: ast.expr) -> Any:
        """A constant, or an object of the process."""
        return parse_value(node, self._leaf)

    def _leaf(self, node: ast.expr) -> Any:
        match node:
            case ast.Name(id=name) if name in _CONSTANTS:
                return _CONSTANTS[name]
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
                match name, arguments:
                    case "named", [ast.Constant(value=str(path))]:
                        return self._found(find_named(path), Named(path))
                    case "live", [ast.Constant(value=str(what)), number]:
                        at = self.count(number)
                        return self._found(self.objects.get(at, MISSING), Live(what, at))
                    case "range", [_, _, step] if self.of(int, step):
                        return range(*(self.of(int, part) for part in arguments))
                    case "keys", _:
                        return torch._C.DispatchKeySet.from_raw_repr(self._keys(arguments))
        return MISSING

    def _found(self, found: Any, reference: Named | Live) -> Any:
        if found is MISSING:
            self.missing.append(reference)
        return reference if found is MISSING else found

    def _keys(self, parts: _Nodes) -> int:
        bits = 0
        for part in parts:
            key = self.of(str | int, part)
            if not 0 <= (known := key_bits().get(key, -1) if type(key) is str else key) < 2**64:
                raise ParseError.at(part, "not a dispatch key")
            bits |= known
        return bits

    # -- sources ----------------------------------------------------------------------------------

    def source(self, node: ast.expr) -> sources.Source:
        """A path."""
        match node:
            case ast.Subscript(value=ast.Name(id=root), slice=ast.Constant(value=str(name))):
                if root in _VARIABLES:
                    return _VARIABLES[root](name)
            case ast.Name("builtins"):
                return sources.NamespaceSource(True)
            case ast.Call(func=function, args=arguments, keywords=[]):
                return self._called(node, function, arguments)
            case ast.Subscript(value=base, slice=key):
                return self._item(base, key)
            case ast.Attribute(value=base, attr="cell_contents"):
                cell = self.source(base)
                if isinstance(cell, sources.ClosureCellSource):
                    return sources.ClosureSource(cell.variable)
                return sources.CellSource(cell)
            case ast.Attribute(value=base, attr=name):
                return sources.AttrSource(self.source(base), name)
        raise ParseError.at(node, "not a source")

    def _item(self, base: ast.expr, key: ast.expr) -> sources.Source:
        match base:
            case ast.Attribute(
                value=ast.Subscript(value=ast.Attribute(value=cls, attr="__mro__"), slice=index),
                attr="__dict__",
            ):
                at, name = self.count(index), self.of(str, key)
                return sources.ClassDictSource(self.source(cls), at, name)
            case ast.Attribute(value=function, attr="__defaults__"):
                return sources.DefaultsSource(self.source(function), self.count(key))
            case ast.Attribute(value=function, attr="__kwdefaults__"):
                return sources.DefaultsSource(self.source(function), self.of(str, key))
        return sources.ItemSource(self.source(base), self.value(key))

    def _called(self, node: ast.Call, function: ast.expr, arguments: _Nodes) -> sources.Source:
        match function, arguments:
            case ast.Name("globals"), []:
                return sources.NamespaceSource(False)
            case ast.Name("constant"), [value]:
                return sources.ConstSource(self.value(value))
            case ast.Name("named" | "live"), _:
                value = self.value(node)
                return value if isinstance(value, sources.Source) else sources.ConstSource(value)
            case ast.Name("computed"), [called, *operands] if operands:
                called = self.of(_FUNCTION, called)
                return ComputedSource(called, tuple(map(self.source, operands)))
            case ast.Name("lookup"), [called, base, key]:
                called = self.of(_FUNCTION, called)
                return sources.ItemSource(self.source(base), self.value(key), called)
            case ast.Name("getattr"), [base, name]:
                return sources.AttrSource(self.source(base), self.of(str, name))
            case ast.Attribute(ast.Name("object"), "__getattribute__"), [base, name]:
                return sources.AttrSource(self.source(base), self.of(str, name), generic=True)
            case ast.Attribute(base, "size" | "stride" as method), [dim]:
                return _DIMENSIONS[method](self.source(base), self.count(dim))
        return self._applied(node, function, arguments)

    def _applied(self, node: ast.Call, function: ast.expr, arguments: _Nodes) -> sources.Source:
        """``type(base)``, ``base.item()``, ``base()``: the text of an ``AppliedSource``."""
        hole = ast.Name("_")
        splits = [(arguments[0], ast.Call(function, [hole], []))] if len(arguments) == 1 else []
        if isinstance(function, ast.Attribute):
            method = ast.Attribute(hole, function.attr)
            splits.insert(0, (function.value, ast.Call(method, arguments, [])))
        if not arguments:
            splits.append((function, ast.Call(hole, [], [])))
        for base, template in splits:
            text = ast.unparse(template)
            for cls in sources.AppliedSource.__subclasses__():
                if cls.text.replace("{}", "_") == text:
                    return cls(self.source(base))
        raise ParseError.at(node, "not a source")


def _new_symbol(name: str, given: dict[str, bool], call: ast.Call) -> sympy.Symbol:
    try:
        return sympy.Symbol(name, **given)
    except ValueError as error:
        raise ParseError.at(call, "not a symbol") from error
