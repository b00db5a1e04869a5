"""Turns guard records into the operations of a ``GuardProgram``.

Registers are filled level by level of the tree of ``guard_paths``: arguments first, each owner
before what it owns; the tests of a level come before the next one. Identities and constants found
in dictionaries are tested where the dictionary is read, so that they cost nothing while it does not
change. What has no native form is checked by one Python function, last.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import sympy
import torch
from symshapes import SizeGuard, is_of_handler

from bytecode_dynamo._hook import GUARD_OPS, GuardProgram, is_probe
from bytecode_dynamo.class_flags import IMMUTABLE

from .failures import holds
from .paths import TEST_EQUALS, TEST_IDENTITY, TEST_NONE, TEST_TYPE, Node, NoNativePath, PathBuilder
from .records import ABSENT, FunctionFacts, GuardKind, GuardRecord, ShapeGuards
from .shape_program import NotCompilable, compile_condition, python_condition
from .source import AttrSource, Scope, Source
from .tensor_facts import TensorFacts
from .tensor_layout import calibrate
from .tensor_source import ElementSource, SizeSource, StorageOffsetSource, StrideSource

CONSTANT_TYPES = (
    *(
        type(None),
        bool,
        int,
        float,
        complex,
        str,
        bytes,
        slice,
        range,
        type(...),
        type(NotImplemented),
    ),
    *(torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format),
)
HELD = (*CONSTANT_TYPES, BuiltinFunctionType, ModuleType, torch.Tensor)
CONTAINERS = (list, tuple, dict, set, frozenset, str, bytes, range)
PYTHON = torch._C.DispatchKey.Python


class _Builder:
    """Collects native operations, and the records that Python must check."""

    def __init__(self, code: CodeType, scope: Scope) -> None:
        self.code = code
        self.scope = scope
        self.paths = PathBuilder(code, scope)
        self.empty: list[int] = []  # registers of dictionaries without keys
        self.distinct: dict[int, list[int]] = {}  # by register those with other objects
        # the state of torch comes first: reading properties of tensors depends on it
        self.first: list[tuple[Any, ...]] = []
        self.last: list[tuple[Any, ...]] = []  # need more than one register
        self.python: list[GuardRecord] = []
        self.python_shapes: Callable[[Scope], bool] | None = None
        self.examples: list[list[Any]] = []

    def add(self, record: GuardRecord) -> None:
        """Compile one record."""
        rule = RULES.get(record.kind)
        try:
            if rule is None:
                raise NoNativePath(record.kind.name)
            rule(self, record)
        except NoNativePath:
            self.python.append(record)

    def test(self, node: Node, op: str, *operands: Any) -> None:
        """Append a test of a register."""
        node.tests.append((GUARD_OPS[op], -1, node.register, *operands))

    def ops(self) -> list[tuple[Any, ...]]:
        """All operations in order."""
        classes = [
            (GUARD_OPS["CLASS"], -1, -1, cls, tuple(names.items()))
            for cls, names in self.paths.classes.items()
        ]
        argument = GUARD_OPS["ARGUMENT"]
        roots = self.paths.roots
        out = by_level([node for node in roots if node.op is not None and node.op[0] == argument])
        out += classes
        out += by_level([node for node in roots if node.op is not None and node.op[0] != argument])
        if self.empty:
            out.append((GUARD_OPS["EMPTY"], -1, -1, tuple(self.empty)))
        out += [
            (GUARD_OPS["DISTINCT"], -1, register, tuple(others))
            for register, others in self.distinct.items()
        ]
        return self.first + out + self.last

    def kept(self, loads: Loads) -> tuple[Any, ...]:
        """The registers that a check saves for a loader, and the registers of its own arguments."""
        try:
            wanted, roots = (
                tuple(self.paths.node(s).register for s in some)
                for some in (loads.sources, loads.roots)
            )
        except NoNativePath:
            return ()
        return wanted, loads.loader, roots

    def python_check(self) -> Callable[..., bool] | None:
        """The checks that run in Python, as a function of the called function and its arguments."""
        if not self.python and self.python_shapes is None:
            return None
        return PythonCheck(self.code, self.python, self.python_shapes)


class PythonCheck:
    """Checks records in Python; called as ``(function, *arguments)``. What runs functions of the
    program comes last.
    """

    def __init__(
        self, code: CodeType, records: Sequence[GuardRecord], shapes: Callable[[Scope], bool] | None
    ) -> None:
        self.records = tuple(record for record in records if not record.source.runs_program)
        self.last = tuple(record for record in records if record.source.runs_program)
        self.names = code.co_varnames
        self.free = code.co_freevars
        self.shapes = shapes

    def __call__(self, function: FunctionType, *arguments: Any) -> bool:
        closure = dict(zip(self.free, function.__closure__ or (), strict=False))
        scope = Scope(
            dict(zip(self.names, arguments, strict=False)),
            function.__globals__,
            function.__builtins__,  # pyright: ignore[reportAttributeAccessIssue]
            closure,
            computed={},
        )
        if not all(holds(record, scope) for record in self.records):
            return False
        if self.shapes is not None and not self.shapes(scope):
            return False
        return all(holds(record, scope) for record in self.last)


def by_level(nodes: Sequence[Node]) -> list[tuple[Any, ...]]:
    """The operations of registers and of all registers below them, level by level: what fills the
    registers, their tests, and what is read from them.

    Within a level, operations of one kind are adjacent: they run in one loop, whose memory reads
    overlap.
    """
    out: list[tuple[Any, ...]] = []
    while nodes:
        tests: list[tuple[Any, ...]] = []
        reads: list[tuple[Any, ...]] = []
        loads: list[tuple[Any, ...]] = []
        for node in nodes:
            if is_field(node):
                assert node.op is not None
                tests.append((GUARD_OPS["FIELD_IS"], -1, node.op[2], node.tests[0][3], node.op[3]))
                continue
            if node.op is not None:
                loads.append(node.op)
            tests += [test for test in node.tests if not is_implied(node, test)]
            if node.keys:
                rows = tuple(
                    (use.key, use.target, use.test, use.expected) for use in node.keys.values()
                )
                reads.append((GUARD_OPS["DICT"], -1, node.register, rows))
        out += [*sorted(loads, key=itemgetter(0)), *sorted(tests, key=itemgetter(0)), *reads]
        nodes = [child for node in nodes for child in node.children]
    return out


def is_field(node: Node) -> bool:
    """Whether a register is a field of a function and is only compared with an object."""
    field, identity = GUARD_OPS["FUNCTION_FIELD"], GUARD_OPS["IDENTITY"]
    read = node.op is not None and node.op[0] == field and not node.keys and not node.children
    return read and not node.compared and [test[0] for test in node.tests] == [identity]


def is_implied(node: Node, test: tuple[Any, ...]) -> bool:
    """Whether reading the instance dict already tests the class."""
    if test[0] != GUARD_OPS["TYPE_IS"]:
        return False
    reads = GUARD_OPS["INSTANCE_DICT"]
    return any(
        child.op is not None and child.op[0] == reads and child.op[3] is test[3]
        for child in node.children
    )


def reference(value: Any) -> Any:
    """The object itself if the guard may keep it alive, else a weak reference to it."""
    if isinstance(value, HELD):
        return value
    try:
        return weakref.ref(value)
    except TypeError:
        return value


def is_constant(value: Any) -> bool:
    """Whether C can compare the value."""
    if type(value) in (tuple, torch.Size):
        return all(map(is_constant, value))
    return type(value) in CONSTANT_TYPES


def _type_is(builder: _Builder, record: GuardRecord) -> None:
    node, cls = builder.paths.node(record.source), record.expected
    if (
        node.use is not None
        and node.use.test == TEST_NONE
        and cls.__flags__ & IMMUTABLE
        and cls is not ModuleType
    ):
        node.use.test, node.use.expected = TEST_TYPE, cls  # values of the dict keep their class
    else:
        builder.test(node, "TYPE_IS", cls)


def _identity(builder: _Builder, record: GuardRecord) -> None:
    node = builder.paths.node(record.source)
    expected = reference(record.expected)
    if node.use is not None and node.use.test == TEST_NONE:
        node.use.test, node.use.expected = TEST_IDENTITY, expected
    else:
        builder.test(node, "IDENTITY", expected)


def _finite(builder: _Builder, record: GuardRecord) -> None:
    if isinstance(record.source, ElementSource):
        builder.test(builder.paths.node(record.source.base), "ELEMENT", None)
        return
    builder.test(builder.paths.node(record.source), "FINITE")


def _equals(builder: _Builder, record: GuardRecord) -> None:
    expected = record.expected
    if not is_constant(expected):
        raise NoNativePath(f"constant of type {type(expected).__name__}")
    if isinstance(record.source, ElementSource):
        builder.test(builder.paths.node(record.source.base), "ELEMENT", expected)
        return
    node = builder.paths.node(record.source)
    if node.use is not None and node.use.test == TEST_NONE:
        node.use.test, node.use.expected = TEST_EQUALS, expected
    else:
        builder.test(node, "EQUALS", expected)


def _length(builder: _Builder, record: GuardRecord) -> None:
    node = builder.paths.node(record.source)
    if not isinstance(node.value, CONTAINERS) or type(node.value).__len__ not in [
        kind.__len__ for kind in CONTAINERS
    ]:
        raise NoNativePath("length of an object that is not a plain container")
    builder.test(node, "LENGTH", record.expected)


def _keys(builder: _Builder, record: GuardRecord) -> None:
    node = builder.paths.node(record.source)
    if not isinstance(node.value, dict):
        raise NoNativePath("keys of an object that is not a dict")
    if record.expected:
        builder.test(node, "KEYS", tuple(record.expected))
    else:
        builder.empty.append(node.register)


def _dict_of(builder: _Builder, source: Source) -> Node:
    node = builder.paths.node(source)
    if isinstance(node.value, dict):
        return node
    return builder.paths.instance_dict(node)


def _has_attr(builder: _Builder, record: GuardRecord) -> None:
    builder.paths.item(_dict_of(builder, record.source), record.expected)


def _no_attr(builder: _Builder, record: GuardRecord) -> None:
    builder.paths.absent(_dict_of(builder, record.source), record.expected)


def _tensor(builder: _Builder, record: GuardRecord) -> None:
    node = builder.paths.node(record.source)
    facts: TensorFacts = record.expected
    plain = facts.strides is not None and not torch._C._dispatch_keys(node.value).has(PYTHON)
    if not plain or calibrate() is None or facts.failure("", node.value) is not None:
        raise NoNativePath("not a plain tensor")
    example = [node.value]
    builder.examples.append(example)
    builder.test(node, "TENSOR", example, facts.sizes, facts.strides)


def _pair(builder: _Builder, record: GuardRecord) -> tuple[Node, Node]:
    a, b = builder.paths.node(record.source), builder.paths.node(record.expected)
    a.compared = b.compared = True
    return a, b


def _aliased(builder: _Builder, record: GuardRecord) -> None:
    a, b = _pair(builder, record)
    builder.last.append((GUARD_OPS["SAME"], a.register, b.register))


def _not_aliased(builder: _Builder, record: GuardRecord) -> None:
    a, b = _pair(builder, record)
    builder.distinct.setdefault(a.register, []).append(b.register)


def _function_code(builder: _Builder, record: GuardRecord) -> None:
    """Tests three fields: a new function with the same code passes."""
    facts: FunctionFacts = record.expected
    code = builder.paths.node(AttrSource(record.source, "__code__"))
    builder.test(code, "IDENTITY", facts.code)
    defaults = builder.paths.node(AttrSource(record.source, "__defaults__"))
    if facts.defaults is None:
        builder.test(defaults, "IDENTITY", None)
    else:
        builder.test(defaults, "LENGTH", facts.defaults)
    keywords = builder.paths.node(AttrSource(record.source, "__kwdefaults__"))
    if facts.keyword_defaults is None:
        builder.test(keywords, "IDENTITY", None)
    else:
        builder.test(keywords, "KEYS", facts.keyword_defaults)


def _class_attr(builder: _Builder, record: GuardRecord) -> None:
    node = builder.paths.node(record.source)
    name, wanted = record.expected
    if not isinstance(node.value, type):
        raise NoNativePath("not a class")
    builder.test(node, "IDENTITY", reference(node.value))
    found = builder.paths.require_class(node.value, name)
    if (ABSENT if _is_missing(builder, node.value, name) else found) is not wanted:
        raise NoNativePath("the class attribute has changed already")


def _is_missing(builder: _Builder, cls: type, name: str) -> bool:
    return builder.paths.classes[cls][name] == ()


def _state(builder: _Builder, record: GuardRecord) -> None:
    probes = record.expected.probes()
    native = tuple((function, result) for function, result in probes if is_probe(function))
    builder.first.append((GUARD_OPS["STATE"], -1, -1, native))
    words = record.expected.masked_words()
    if words:
        builder.first.append((GUARD_OPS["STATE_WORDS"], -1, -1, words))
    if len(native) < len(probes) or record.expected.needs_python:
        builder.python.append(record)


RULES: dict[GuardKind, Callable[[_Builder, GuardRecord], None]] = {
    GuardKind.TYPE_IS: _type_is,
    GuardKind.IDENTITY: _identity,
    GuardKind.EQUALS: _equals,
    GuardKind.FINITE: _finite,
    GuardKind.LENGTH: _length,
    GuardKind.DICT_KEYS: _keys,
    GuardKind.HAS_ATTR: _has_attr,
    GuardKind.NO_ATTR: _no_attr,
    GuardKind.TENSOR: _tensor,
    GuardKind.ALIASED: _aliased,
    GuardKind.NOT_ALIASED: _not_aliased,
    GuardKind.FUNCTION_CODE: _function_code,
    GuardKind.CLASS_ATTR: _class_attr,
    GuardKind.GLOBAL_STATE: _state,
}
NUMBER_KINDS = {SizeSource: 0, StrideSource: 1, StorageOffsetSource: 2}


def _number(builder: _Builder, source: Source) -> tuple[Any, ...]:
    """How the value of a symbol is read: (kind, register, class, dimension)."""
    if isinstance(source, ElementSource):
        return 4, builder.paths.node(source.base).register, torch.Tensor, 0
    kind = NUMBER_KINDS.get(type(source))
    if kind is None:
        node = builder.paths.node(source)
        if type(node.value) is not int:
            raise NoNativePath("a symbol that is not an int")
        return 3, node.register, int, 0
    node = builder.paths.node(source.base)  # pyright: ignore[reportAttributeAccessIssue]
    if calibrate() is None or not isinstance(node.value, torch.Tensor):
        raise NoNativePath("size of an object that is not a tensor")
    return kind, node.register, type(node.value), getattr(source, "dim", 0)


def add_shapes(builder: _Builder, shapes: ShapeGuards) -> None:
    """Compile the conditions on sizes; those that C cannot check are left to Python."""
    numbers: dict[sympy.Symbol, tuple[Any, ...]] = {}
    for symbol, source in shapes.symbols.items():
        try:
            numbers[symbol] = _number(builder, source)
        except NoNativePath:
            pass
    index = {symbol: k for k, symbol in enumerate(numbers)}
    code: list[int] = []
    rest: list[SizeGuard] = []
    for guard in shapes.guards:
        try:
            code += compile_condition(guard.expr, index)
        except NotCompilable:
            rest.append(guard)
    if code:
        builder.last.append((GUARD_OPS["SHAPES"], -1, -1, tuple(numbers.values()), tuple(code)))
    if rest:
        used = sorted(set().union(*(guard.expr.free_symbols for guard in rest)), key=str)
        builder.python_shapes = _python_shapes(
            rest, [(symbol, shapes.symbols.get(symbol)) for symbol in used]
        )


def _python_shapes(
    guards: Sequence[SizeGuard], symbols: Sequence[tuple[sympy.Symbol, Source | None]]
) -> Callable[[Scope], bool]:
    condition = python_condition(guards, [symbol for symbol, _ in symbols])
    sources = [source for _, source in symbols]
    if any(source is None for source in sources):
        raise ValueError("a guard on sizes has a symbol without a source")

    def holds(scope: Scope) -> bool:
        try:
            return bool(
                condition(*(source.resolve(scope) for source in sources if source is not None))
            )
        except Exception as error:
            if is_of_handler(error):
                raise
            return False

    return holds


@dataclass(frozen=True, slots=True)
class Loads:
    """The values that compiled code requests from a ``loader``: those of ``sources``, read through
    the values of ``roots``.
    """

    sources: Sequence[Source]
    roots: Sequence[Source]
    loader: GuardProgram


def build_program(
    records: Sequence[GuardRecord],
    shapes: ShapeGuards,
    code: CodeType,
    scope: Scope,
    loads: Loads | None = None,
) -> GuardProgram:
    """See ``guards.compile_guards``."""
    builder = _Builder(code, scope)
    for record in records:
        builder.add(record)
    add_shapes(builder, shapes)
    try:
        kept = builder.kept(loads) if loads is not None else ()
        return GuardProgram(
            tuple(builder.ops()), builder.paths.count, builder.python_check(), *kept
        )
    finally:
        for example in builder.examples:
            example.clear()
