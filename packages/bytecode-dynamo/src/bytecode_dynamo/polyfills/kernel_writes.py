"""Which of its parameters a Triton kernel may write through, read from the kernel's source.

Flow does not matter: a name may stand for whatever is assigned to it anywhere. What is not
understood counts as a write.
"""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import textwrap
import threading
import types
from collections.abc import Iterator
from typing import Any

_LANGUAGE = ("triton.language", "triton.experimental")
_MAY_WRITE = ("inline_asm_elementwise", "extern_elementwise", "call")


@functools.cache
def written_parameters(function: types.FunctionType) -> frozenset[str]:
    """The parameters that a kernel may store to or update atomically; all if in doubt."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    except (OSError, TypeError, SyntaxError):
        tree = None
    if not isinstance(tree, ast.FunctionDef):
        return frozenset(inspect.signature(function).parameters)
    return _KernelReader(function, tree).written()


class _KernelReader:
    def __init__(self, function: types.FunctionType, tree: ast.FunctionDef) -> None:
        self._tree = tree
        self._known = {
            **vars(builtins),
            **function.__globals__,
            **inspect.getclosurevars(function).nonlocals,
        }
        arguments = tree.args
        self._parameters = [
            a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        ]
        self._reaches: dict[str, frozenset[str]] = {
            name: frozenset([name]) for name in self._parameters
        }

    def written(self) -> frozenset[str]:
        assignments = list(self._assignments())
        size = -1
        while size != (size := sum(map(len, self._reaches.values()))):
            for target, value in assignments:
                for name in ast.walk(target):
                    if isinstance(name, ast.Name):
                        self._reaches[name.id] = self._reaches.get(
                            name.id, frozenset()
                        ) | self._reach(value)
        return frozenset().union(*map(self._written_by, self._calls(self._tree)))

    def _assignments(self) -> Iterator[tuple[ast.AST, ast.AST]]:
        for node in ast.walk(self._tree):
            match node:
                case ast.Assign(targets, value):
                    for target in targets:
                        yield from _pairs(target, value)
                case (
                    ast.AugAssign(target, _, value)
                    | ast.For(target, value)
                    | ast.NamedExpr(target, value)
                ):
                    yield target, value
                case ast.AnnAssign(target, _, ast.AST() as value):
                    yield target, value
                case ast.withitem(value, ast.AST() as target) | ast.comprehension(target, value):
                    yield target, value
                case _:
                    pass

    def _reach(self, node: ast.AST) -> frozenset[str]:
        """The parameters whose memory a value may point to: loaded values point nowhere."""
        if isinstance(node, ast.Call) and _name_of(node.func) == "load":
            return frozenset()
        if isinstance(node, ast.Name):
            return self._reaches.get(node.id, frozenset())
        return frozenset().union(*map(self._reach, ast.iter_child_nodes(node)))

    def _calls(self, tree: ast.AST) -> Iterator[ast.Call]:
        return (node for node in ast.walk(tree) if isinstance(node, ast.Call))

    def _written_by(self, call: ast.Call) -> frozenset[str]:
        name, given = _name_of(call.func), [*call.args, *(k.value for k in call.keywords)]
        callee = self._value_of(call.func)
        if isinstance(getattr(callee, "fn", None), types.FunctionType) and hasattr(
            callee, "arg_names"
        ):
            return self._written_in(callee.fn, call)
        if name == "store" or name.startswith("atomic_"):
            pointer = next(
                (k.value for k in call.keywords if k.arg == "pointer"),
                call.args[0] if call.args else call,
            )
            return self._reach(pointer) | self._reach(call.func)
        home = getattr(callee, "__module__", None) or ""
        is_method = isinstance(call.func, ast.Attribute) and callee is None
        if (
            is_method or home.startswith(_LANGUAGE) or home == "builtins" or _is_pure(callee)
        ) and name not in _MAY_WRITE:
            return frozenset()
        return frozenset().union(*map(self._reach, given))

    def _written_in(self, function: types.FunctionType, call: ast.Call) -> frozenset[str]:
        """The arguments that a call of another kernel function writes to."""
        names = list(inspect.signature(function).parameters)
        if any(isinstance(a, ast.Starred) for a in call.args) or any(
            k.arg is None for k in call.keywords
        ):
            return frozenset().union(
                *map(self._reach, [*call.args, *(k.value for k in call.keywords)])
            )
        if function.__code__ in _reading.codes:
            written = frozenset(names)
        else:
            _reading.codes.append(function.__code__)
            try:
                written = written_parameters(function)
            finally:
                _reading.codes.pop()
        given = [*zip(names, call.args), *((k.arg, k.value) for k in call.keywords)]
        return frozenset().union(*(self._reach(value) for name, value in given if name in written))

    def _value_of(self, node: ast.AST) -> Any:
        """The value of a name or module attribute; None if unknown."""
        match node:
            case ast.Name(id=name):
                return None if name in self._reaches else self._known.get(name)
            case ast.Attribute(value, attr):
                return getattr(self._value_of(value), attr, None)
            case _:
                return None


class _CodesBeingRead(threading.local):
    """The kernels that this thread is reading."""

    def __init__(self) -> None:
        self.codes: list[types.CodeType] = []


_reading = _CodesBeingRead()


def _pairs(target: ast.AST, value: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    if (
        isinstance(target, ast.Tuple)
        and isinstance(value, ast.Tuple)
        and len(target.elts) == len(value.elts)
    ):
        for part, given in zip(target.elts, value.elts):
            yield from _pairs(part, given)
    else:
        yield target, value


def _name_of(function: ast.AST) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _is_pure(callee: Any) -> bool:
    return type(callee).__name__ == "ConstexprFunction"
