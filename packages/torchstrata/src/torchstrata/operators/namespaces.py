"""The names that functions read: globals, and attributes of the modules that they reach.

A function may hand a module to another one, which looks a name up in it. So every name that came up
anywhere is described in every module that was reached.
"""

from __future__ import annotations

import dis
import importlib.machinery
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import loopir
import torch
from torch._ops import _OpNamespace, _Ops

OURS = frozenset("torch symshapes primops loopir aotgrad torchstrata".split())
"""Packages whose versions are part of every key."""
PURE = frozenset(
    "__future__ _collections_abc _functools _operator abc bisect builtins cmath collections "
    "contextlib copy dataclasses decimal enum fractions functools heapq itertools math numbers "
    "operator re statistics string textwrap types typing warnings".split()
)
"""Modules of the standard library that answer from their arguments alone."""
_OF_MACHINE = frozenset(
    "current_device device_count get_arch_list get_device_capability get_device_name "
    "get_device_properties is_available is_built mem_get_info".split()
)
"""Functions of torch that answer for this machine."""
_LOOK_UPS = frozenset("getattr hasattr attrgetter methodcaller __dict__ __globals__".split())
"""What finds attributes by names that it computes."""
_LOADS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_STORES = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL"})


@dataclass(slots=True)
class Namespaces:
    """The modules that were reached, the namespaces of operators among them, and all names that
    came up.
    """

    _spaces: dict[int, Any] = field(default_factory=dict)
    _computes: bool = False
    _names: set[str] = field(default_factory=set)
    _looked_up: set[tuple[int, str]] = field(default_factory=set)

    def globals_of(self, function: types.FunctionType) -> list[str]:
        """The globals that a function reads, in order. Raises Undescribed."""
        found = set[str]()
        for code in _codes(function.__code__):
            found |= self._reads(code)
        return sorted(found)

    def _reads(self, code: types.CodeType) -> set[str]:
        """The globals that code reads. Notes all names that it looks up somewhere."""
        for name in _OF_MACHINE.intersection(code.co_names):
            raise loopir.Undescribed(f"{name}, which an operator may call,")
        self._computes |= not _LOOK_UPS.isdisjoint(code.co_names)
        self._names.update(code.co_names)
        instructions, found = [*dis.get_instructions(code)], set[str]()
        for place, instruction in enumerate(instructions):
            if instruction.opname in _STORES:
                raise loopir.Undescribed("a function of an operator that writes globals")
            if instruction.opname == "IMPORT_NAME":
                level, name = instructions[place - 2].argval, str(instruction.argval)
                if level or name not in sys.modules:
                    raise loopir.Undescribed(f"the import of {name} by an operator")
                self.reach(sys.modules[name])
                self.reach(sys.modules[name.partition(".")[0]])
            if instruction.opname in _LOADS:
                found.add(str(instruction.argval))
        return found

    def reach(self, space: Any) -> str:
        """Notes a module; its name. Raises Undescribed for one whose state may count."""
        if isinstance(space, _Ops | _OpNamespace):
            self._spaces[id(space)] = space
            return _name_of(space)
        package = package_of(space.__name__)
        if package == "numpy":
            return f"numpy {sys.modules['numpy'].__version__}"
        if package == "torch":
            self._spaces[id(torch.ops)] = torch.ops
        elif package not in OURS | PURE:
            if package in sys.stdlib_module_names or _is_native(space):
                raise loopir.Undescribed(f"the module {space.__name__} which an operator reads")
            self._spaces[id(space)] = space
        return f"module {space.__name__}"

    def look_up(self) -> list[tuple[str, Any]]:
        """What modules hold under names that came up since the last call. Raises Undescribed where
        a function may look up others.
        """
        if self._computes and self._spaces:
            raise loopir.Undescribed("an operator that computes names of attributes")
        new = sorted(
            (_name_of(space), name, key)
            for key, space in self._spaces.items()
            for name in self._names
            if (key, name) not in self._looked_up
        )
        self._looked_up.update((key, name) for _, name, key in new)
        held = (
            (f"{where}.{name}", _attribute(self._spaces[key], name)) for where, name, key in new
        )
        return [(name, found[0]) for name, found in held if found]


def _attribute(space: Any, name: str) -> list[Any]:
    """What a name stands for in a module, or nothing."""
    if isinstance(space, _Ops):
        is_known = name != "aten" and any(n.startswith(f"{name}::") for n in _operators())
        return [getattr(space, name)] if is_known else []
    if isinstance(space, _OpNamespace):
        return [getattr(space, name)] if f"{space.name}::{name}" in _operators() else []
    return [vars(space)[name]] if name in vars(space) else []


def _operators() -> set[str]:
    """The names of all operators, without overloads."""
    return {name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names()}


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _name_of(space: Any) -> str:
    return str(getattr(space, "__name__", None) or type(space).__name__)


def _is_native(module: types.ModuleType) -> bool:
    suffixes = tuple(importlib.machinery.EXTENSION_SUFFIXES)
    return str(getattr(module, "__file__", None) or "").endswith(suffixes)


def package_of(name: object) -> str:
    """The outermost package of a dotted name."""
    return str(name or "").partition(".")[0]
