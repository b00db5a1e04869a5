"""How the steps of a source are taken in C: a tree of registers, grown from the sources that guards
mention.

Each node is a register and the operation that fills it. Attribute access is resolved once, on the
compiled call's own objects, by Python's rules: slots, instance dict, class attribute, the three
dicts of an ``nn.Module``. The facts about classes that this relied on (no data descriptor of that
name, ...) become conditions on the classes. A step that would have to run Python code has no native
path: ``NoNativePath``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any
from weakref import ReferenceType

import torch

from bytecode_dynamo._hook import GUARD_OPS, MRO_OFFSET, has_generic_getattr, member_offset

from .source import (
    BuiltinSource,
    ChainedSource,
    ClosureCellSource,
    ClosureSource,
    ConstSource,
    GlobalSource,
    LocalSource,
    MappingSource,
    NamespaceSource,
    Scope,
    Source,
    class_entry,
)
from .step import Attribute, Call, Item, Step

TEST_NONE, TEST_IDENTITY, TEST_EQUALS, TEST_ABSENT, TEST_TYPE = range(5)
FUNCTION_FIELDS = {
    name: number
    for number, name in enumerate(
        (
            "__code__",
            "__defaults__",
            "__kwdefaults__",
            "__closure__",
            "__globals__",
            "__name__",
            "__qualname__",
        )
    )
}
MODULE_DICTS = ("_parameters", "_buffers", "_modules")
INDEXED_MODULES = (torch.nn.Sequential, torch.nn.ModuleList)
_MISSING: Any = object()


class NoNativePath(Exception):
    """A step that can't be evaluated without running Python code."""


@dataclass(eq=False)
class KeyUse:
    """One key that is looked up in a dictionary."""

    key: Any
    target: int = -1
    test: int = TEST_NONE
    expected: Any = None


@dataclass(eq=False)
class Node:
    """A register: the operation that fills it, the keys looked up in it, and its tests."""

    register: int
    value: Any
    op: tuple[Any, ...] | None
    use: KeyUse | None = None
    children: list[Node] = field(default_factory=list)
    keys: dict[Any, KeyUse] = field(default_factory=dict)
    tests: list[tuple[Any, ...]] = field(default_factory=list)
    compared: bool = False  # with another register, last


def find_in_class(cls: type, name: str) -> Any:
    """The raw attribute that a class finds, or ``_MISSING``."""
    for owner in cls.__mro__:
        if name in owner.__dict__:
            return owner.__dict__[name]
    return _MISSING


def is_plain_key(key: Any) -> bool:
    """Whether looking the key up in a dictionary runs no Python code. Tensors hash by identity, and
    are compared with other keys only where hashes are equal.
    """
    if type(key) is tuple:
        return all(map(is_plain_key, key))
    kind = type(key)
    return (
        kind in (str, int, bool, float, bytes, type(None))
        or (kind.__hash__, kind.__eq__) in _BY_IDENTITY
    )


_BY_IDENTITY = {(kind.__hash__, kind.__eq__) for kind in (object, torch.Tensor)}


class PathBuilder:
    """Grows the tree. ``scope`` is the call on whose objects the steps are evaluated."""

    def __init__(self, code: CodeType, scope: Scope) -> None:
        self.scope = scope
        self.slots = {name: k for k, name in enumerate(code.co_varnames)}
        self.free = {name: k for k, name in enumerate(code.co_freevars)}
        self.roots: list[Node] = []
        self.nodes: dict[Source, Node] = {}
        self.steps: dict[tuple[Any, ...], Node] = {}
        self.classes: dict[type, dict[str, Any]] = {}
        self.count = 0

    def node(self, source: Source) -> Node:
        """The register of a source, or NoNativePath."""
        node = self.nodes.get(source)
        if node is None:
            node = self.nodes[source] = self._grow(source)
        return node

    def _grow(self, source: Source) -> Node:
        if isinstance(source, ChainedSource):
            node = self.node(source.base)
            for step in source.steps:
                node = STEPS[type(step)](self, node, step)
            return node
        root = ROOTS.get(type(source))
        if root is None:
            raise NoNativePath(source.name)
        return root(self, source)

    def root(self, value: Any, op: str, *operands: Any) -> Node:
        """A register filled from the frame."""
        return self._step(None, value, op, operands, (op, *map(_memo, operands)))

    def step(self, base: Node, value: Any, op: str, *operands: Any) -> Node:
        """A register filled from another one."""
        return self._step(base, value, op, operands, (base.register, op, *map(_memo, operands)))

    def _step(
        self,
        base: Node | None,
        value: Any,
        op: str,
        operands: tuple[Any, ...],
        memo: tuple[Any, ...],
    ) -> Node:
        found = self.steps.get(memo)
        if found is None:
            row = (
                GUARD_OPS[op],
                self.count,
                -1 if base is None else base.register,
                *operands,
            )
            found = self.steps[memo] = Node(self.count, value, row)
            self.count += 1
            (self.roots if base is None else base.children).append(found)
        return found

    def key(self, base: Node, key: Any) -> KeyUse:
        """The use of a key in a dictionary."""
        if not is_plain_key(key):
            # the text of a tensor takes milliseconds
            raise NoNativePath(f"a key of type {type(key).__name__}")
        return base.keys.setdefault((type(key), key), KeyUse(key))

    def item(self, base: Node, key: Any) -> Node:
        """The register of a dictionary's item."""
        use = self.key(base, key)
        value = dict.get(base.value, key, _MISSING)
        if value is _MISSING:
            raise NoNativePath(f"no item {key!r}")
        if use.target < 0:
            use.target = self.count
            child = Node(self.count, value, None, use)
            self.steps[base.register, "key", type(key), key] = child
            self.count += 1
            base.children.append(child)
        return self.steps[base.register, "key", type(key), key]

    def absent(self, base: Node, key: Any) -> None:
        """Require that a dictionary does not have a key."""
        use = self.key(base, key)
        if use.target >= 0 or use.test not in (TEST_NONE, TEST_ABSENT):
            raise NoNativePath(f"key {key!r} is there")
        use.test = TEST_ABSENT

    def require_class(self, cls: type, name: str) -> Any:
        """Guard what a class finds under a name; returns it."""
        found = find_in_class(cls, name)
        self.classes.setdefault(cls, {})[name] = () if found is _MISSING else (found,)
        return found

    def instance_dict(self, base: Node) -> Node:
        """The register of an object's instance dict."""
        value = base.value
        held = getattr(value, "__dict__", None)
        if type(held) is not dict or isinstance(value, type):
            raise NoNativePath("no instance dict")
        return self.step(base, held, "INSTANCE_DICT", type(value))


def _memo(operand: Any) -> Any:
    try:
        hash(operand)
    except TypeError:
        return id(operand)
    return (type(operand), operand) if not isinstance(operand, type) else operand


def _local(paths: PathBuilder, source: LocalSource) -> Node:
    return paths.root(paths.scope.locals[source.variable], "ARGUMENT", paths.slots[source.variable])


def _globals(paths: PathBuilder) -> Node:
    return paths.root(paths.scope.globals, "GLOBALS")


def _global(paths: PathBuilder, source: GlobalSource) -> Node:
    return paths.item(_globals(paths), source.variable)


def _builtin(paths: PathBuilder, source: BuiltinSource) -> Node:
    paths.absent(_globals(paths), source.variable)
    return paths.item(paths.root(paths.scope.builtins, "BUILTINS"), source.variable)


def _namespace(paths: PathBuilder, source: NamespaceSource) -> Node:
    return paths.root(paths.scope.builtins, "BUILTINS") if source.builtin else _globals(paths)


def _closure_cell(paths: PathBuilder, source: ClosureCellSource | ClosureSource) -> Node:
    return paths.root(paths.scope.closure[source.variable], "CLOSURE", paths.free[source.variable])


def _contents(paths: PathBuilder, cell: Node) -> Node:
    if type(cell.value) is not CellType:
        raise NoNativePath("not a cell")
    return paths.step(cell, cell.value.cell_contents, "CELL")


def _closure(paths: PathBuilder, source: ClosureSource) -> Node:
    return _contents(paths, _closure_cell(paths, source))


def _constant(paths: PathBuilder, source: ConstSource) -> Node:
    memo = ("CONSTANT", id(source.value))
    return paths._step(None, source.value, "CONSTANT", (source.value,), memo)


def _call(paths: PathBuilder, base: Node, call: Call) -> Node:
    rule = CALLS.get(call.function)
    if rule is None:
        raise NoNativePath(call.text(""))
    return rule(paths, base, *call.arguments)


def _referent(paths: PathBuilder, base: Node) -> Node:
    """The object of a weak reference is its first field; None when the object is gone."""
    if type(base.value) is not ReferenceType:
        raise NoNativePath("not a plain weak reference")
    return paths.step(base, base.value(), "MEMBER", ReferenceType, object.__basicsize__)


def _type(paths: PathBuilder, base: Node) -> Node:
    return paths.step(base, type(base.value), "TYPE_OF")


def _class_entry(paths: PathBuilder, base: Node, index: int, attribute: str) -> Node:
    value = class_entry(base.value, index, attribute)
    return paths.step(base, value, "CLASS_DICT", index, attribute)


def _sequence_item(paths: PathBuilder, base: Node, index: Any) -> Node:
    kind = list if isinstance(base.value, list) else tuple
    if type(index) is not int or not 0 <= index < len(base.value):
        raise NoNativePath(f"index {index!r}")
    return paths.step(base, base.value[index], "ITEM", kind, index)


def _item(paths: PathBuilder, base: Node, item: Item) -> Node:
    return _looked_up(paths, base, item.key, find_in_class(type(base.value), "__getitem__"))


def _looked_up(paths: PathBuilder, base: Node, key: Any, lookup: Any) -> Node:
    value = base.value
    if isinstance(value, list | tuple) and lookup in (list.__getitem__, tuple.__getitem__):
        return _sequence_item(paths, base, key)
    if isinstance(value, dict) and lookup is dict.__dict__["__getitem__"]:
        return paths.item(base, key)
    if isinstance(value, INDEXED_MODULES) and type(key) is int and key >= 0:
        paths.require_class(type(value), "__getitem__")
        modules = paths.item(paths.instance_dict(base), "_modules")
        return paths.item(modules, str(key))
    raise NoNativePath(f"item {key!r} of {type(value).__name__}")


def _attribute(paths: PathBuilder, base: Node, attribute: Attribute) -> Node:
    return _named_attribute(paths, base, attribute.name)


def _named_attribute(paths: PathBuilder, base: Node, name: str, generic: bool = False) -> Node:
    value = base.value
    if type(value) is FunctionType and name in FUNCTION_FIELDS:
        return paths.step(base, getattr(value, name), "FUNCTION_FIELD", FUNCTION_FIELDS[name])
    if type(value) is MethodType and name in ("__func__", "__self__"):
        return paths.step(base, getattr(value, name), "METHOD_FIELD", int(name == "__self__"))
    if type(value) is CellType and name == "cell_contents":
        return _contents(paths, base)
    if isinstance(value, type):
        return _attribute_of_class(paths, base, name)
    if type(value) is ModuleType:
        return paths.item(paths.instance_dict(base), name)
    return _attribute_of_object(paths, base, name, generic)


def _attribute_of_class(paths: PathBuilder, base: Node, name: str) -> Node:
    cls = base.value
    if name == "__mro__":
        return paths.step(base, cls.__mro__, "MEMBER", type(cls), MRO_OFFSET)
    found = find_in_class(cls, name)
    if type(cls) is not type or find_in_class(type, name) is not _MISSING or found is _MISSING:
        raise NoNativePath(f"{cls.__name__}.{name}")
    if type(found) is not FunctionType and find_in_class(type(found), "__get__") is not _MISSING:
        raise NoNativePath(f"{cls.__name__}.{name} is bound")
    return paths.step(base, found, "CLASS_LOOKUP", None, name)


_PLAIN_LOOKUPS = (object.__getattribute__, ModuleType.__getattribute__)
"""The lookups that find what the instance's dict contains, unless the class has a data descriptor.
"""


def _attribute_of_object(paths: PathBuilder, base: Node, name: str, generic: bool) -> Node:
    """Python's rules for an object whose class does not change them, and for ``nn.Module``."""
    value = base.value
    cls = type(value)
    generic = generic or has_generic_getattr(cls)
    if not generic and paths.require_class(cls, "__getattribute__") not in _PLAIN_LOOKUPS:
        raise NoNativePath(f"{cls.__name__} has its own __getattribute__")
    if name == "__class__":
        return paths.step(base, cls, "TYPE_OF")
    if name == "__dict__":
        return paths.instance_dict(base)
    found = find_in_class(cls, name)
    offset = member_offset(found)
    if offset is not None:
        paths.require_class(cls, name)
        return paths.step(base, getattr(value, name), "MEMBER", cls, offset)
    # a tensor keeps its gradient
    if found is torch.Tensor.grad and cls in (torch.Tensor, torch.nn.Parameter):
        paths.require_class(cls, name)
        return paths.step(base, value.grad, "GETTER", cls, found)
    kind = type(found)
    if found is not _MISSING and (hasattr(kind, "__set__") or hasattr(kind, "__delete__")):
        raise NoNativePath(f"{cls.__name__}.{name} is a data descriptor")
    held = paths.instance_dict(base)
    paths.require_class(cls, name)
    if name in held.value:
        return paths.item(held, name)
    if found is _MISSING:
        return _attribute_of_module(paths, base, held, name)
    if hasattr(kind, "__get__"):
        raise NoNativePath(f"{cls.__name__}.{name} is bound")
    paths.absent(held, name)
    return paths.step(paths.step(base, cls, "TYPE_OF"), found, "CLASS_LOOKUP", None, name)


def _attribute_of_module(paths: PathBuilder, base: Node, held: Node, name: str) -> Node:
    """What ``nn.Module.__getattr__`` finds: a parameter, buffer or submodule, in this order."""
    if paths.require_class(type(base.value), "__getattr__") is not torch.nn.Module.__getattr__:
        raise NoNativePath(f"{type(base.value).__name__}.{name}")
    paths.absent(held, name)
    for part in MODULE_DICTS:
        contents = paths.item(held, part)
        if not isinstance(contents.value, dict):
            break
        if name in contents.value:
            return paths.item(contents, name)
        paths.absent(contents, name)
    raise NoNativePath(f"{type(base.value).__name__}.{name}")


ROOTS: Mapping[type[Source], Callable[[PathBuilder, Any], Node]] = {
    LocalSource: _local,
    GlobalSource: _global,
    BuiltinSource: _builtin,
    NamespaceSource: _namespace,
    ClosureSource: _closure,
    ClosureCellSource: _closure_cell,
    ConstSource: _constant,
    MappingSource: _constant,
}
STEPS: Mapping[type[Step], Callable[[PathBuilder, Node, Any], Node]] = {
    Attribute: _attribute,
    Item: _item,
    Call: _call,
}
CALLS: Mapping[Callable[..., Any], Callable[..., Node]] = {
    type: _type,
    ReferenceType.__call__: _referent,
    class_entry: _class_entry,
    object.__getattribute__: partial(_named_attribute, generic=True),
    **{
        lookup: partial(_looked_up, lookup=lookup)
        for lookup in (list.__getitem__, tuple.__getitem__, dict.__getitem__)
    },
}
