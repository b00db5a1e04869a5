"""Parses kernels from their text form with Python's own parser."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from typing import Any

import sympy
import torch
from symshapes import ParseError
from symshapes.text.form import parameters, reading

from .expr import expr_of_ast, symbol
from .kernel import Body, Instruction, Kernel, KernelBuffer, Number, Range, Value
from .ops import ARGUMENTS, OPS, DtypeRule
from .text import KERNELS, ROLES

STATED_DTYPES = {
    DtypeRule.BOOL: torch.bool,
    DtypeRule.FLOAT32: torch.float32,
    "indirect": torch.int64,
}
ROLE_OF = {name: role for role, name in ROLES.items()}


def parse_kernel(text: str) -> Kernel:
    """Parses one kernel. Raises ``symshapes.ParseError`` with line and column, and its subclass
    VersionError for a text of a version that can't be read.
    """
    kernels = parse_kernels(text)
    if len(kernels) != 1:
        raise ParseError(f"expected one kernel, found {len(kernels)}")
    return kernels[0]


def parse_kernels(text: str) -> list[Kernel]:
    """All kernels of a text, in order."""
    with reading():
        return [KernelParser(statement).parse() for statement in KERNELS.parse(text).body]


def _fail(node: ast.AST, message: str) -> ParseError:
    return ParseError(message, getattr(node, "lineno", 0), getattr(node, "col_offset", 0) + 1)


def parse_dtype(node: ast.expr) -> torch.dtype:
    """A dtype from its quoted name."""
    name = node.value if isinstance(node, ast.Constant) else None
    dtype = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(dtype, torch.dtype):
        raise ParseError.at(node, "not a dtype")
    return dtype


def parse_number(node: ast.expr) -> Number:
    """A literal, ``inf`` or ``nan``, with an optional minus."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -parse_number(node.operand)
    if isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
        return node.value
    if isinstance(node, ast.Name) and node.id in ("inf", "nan"):
        return math.inf if node.id == "inf" else math.nan
    raise _fail(node, f"not a number: {ast.unparse(node)}")


def _call_of(node: ast.AST | None, name: str | None = None) -> ast.Call:
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and name in (None, node.func.id)
    ):
        return node
    raise _fail(node or ast.Pass(), f"expected a call{f' of {name}' if name else ''}")


def _callee(call: ast.Call) -> str:
    assert isinstance(call.func, ast.Name)
    return call.func.id


def parse_parameters(
    function: ast.FunctionDef,
) -> tuple[list[KernelBuffer], list[sympy.Symbol], list[tuple[sympy.Symbol, int]]]:
    """The buffers and sizes that a kernel or template takes, and the sizes' example values."""
    buffers, sizes, hints = [], [], []
    for argument in parameters(function):
        call = _call_of(argument.annotation)
        kind = _callee(call)
        if kind == "Size":
            sizes.append(symbol(argument.arg))
            hints += [
                (symbol(argument.arg), ast.literal_eval(k.value))
                for k in call.keywords
                if k.arg == "hint"
            ]
        elif kind in ROLE_OF and len(call.args) == 2:
            numel = expr_of_ast(call.args[1])
            buffers.append(
                KernelBuffer(argument.arg, parse_dtype(call.args[0]), ROLE_OF[kind], numel)
            )
        else:
            raise _fail(
                argument, "expected In(dtype, numel), Out(...), InOut(...) or Size(hint=...)"
            )
    return buffers, sizes, hints


class KernelParser:
    """The state while one kernel is parsed: dtypes of the values so far, ranges by depth, bodies in
    order.
    """

    def __init__(self, statement: ast.stmt) -> None:
        if not isinstance(statement, ast.FunctionDef) or len(statement.decorator_list) != 1:
            raise _fail(statement, "expected '@kernel(...)' and a function")
        self.function = statement
        self.dtypes: dict[str, torch.dtype] = {}
        self.ranges: list[Range] = []
        self.reduction: list[Range] | None = None
        self.bodies: list[Body] = []
        self.outer: list[Instruction] = []
        self.readers: dict[str, Callable[[ast.expr], Any]] = {
            "buffer": self._name,
            "value": self._value,
            "kind": ast.literal_eval,
            "number": parse_number,
            "expression": expr_of_ast,
            "index": self._index,
        }

    def parse(self) -> Kernel:
        decorator = _call_of(self.function.decorator_list[0], "kernel")
        options = {keyword.arg: ast.literal_eval(keyword.value) for keyword in decorator.keywords}
        if set(options) - {"device", "vector", "tile"} or "device" not in options:
            raise _fail(decorator, "kernel takes device=..., vector=... and tile=...")
        buffers, sizes, hints = parse_parameters(self.function)
        self._statements(self.function.body, inner=None)
        self._flush()
        vector, tile = options.get("vector"), options.get("tile")
        return Kernel(
            name=self.function.name,
            device=options["device"],
            buffers=tuple(buffers),
            sizes=tuple(sizes),
            ranges=tuple(self.ranges),
            reduction=tuple(self.reduction or ()),
            bodies=tuple(self.bodies),
            vector_axis=symbol(vector) if vector is not None else None,
            hints=tuple(hints),
            tile_axis=symbol(tile) if tile is not None else None,
        )

    def _statements(self, statements: list[ast.stmt], inner: list[Instruction] | None) -> None:
        for statement in statements:
            if isinstance(statement, ast.For):
                self._loop(statement, inner)
            elif inner is not None:
                inner.append(self._instruction(statement))
            else:
                self.outer.append(self._instruction(statement))

    def _loop(self, statement: ast.For, inner: list[Instruction] | None) -> None:
        call = _call_of(statement.iter)
        if not isinstance(statement.target, ast.Name) or len(call.args) != 1 or call.keywords:
            raise _fail(
                statement, "expected 'for symbol in range(extent)' or '... in reduce(extent)'"
            )
        item = Range(symbol(statement.target.id), expr_of_ast(call.args[0]))
        if _callee(call) == "range":
            if self.outer or self.bodies or inner is not None:
                raise _fail(statement, "a range loop must enclose all bodies")
            self.ranges.append(item)
            self._statements(statement.body, None)
            return
        if _callee(call) != "reduce" or inner is not None:
            raise _fail(statement, f"unknown loop {_callee(call)}(...) here")
        self._flush()
        nest, body = [item], statement.body
        while len(body) == 1 and isinstance(body[0], ast.For):
            step = body[0]
            if not isinstance(step.target, ast.Name):
                raise _fail(step, "expected a loop symbol")
            nest.append(
                Range(symbol(step.target.id), expr_of_ast(_call_of(step.iter, "reduce").args[0]))
            )
            body = step.body
        if self.reduction is not None and self.reduction != nest:
            raise _fail(statement, "all reduce loops of a kernel have the same symbols and extents")
        self.reduction = nest
        instructions: list[Instruction] = []
        self._statements(body, instructions)
        self.bodies.append(Body(True, tuple(instructions)))

    def _flush(self) -> None:
        if self.outer:
            self.bodies.append(Body(False, tuple(self.outer)))
            self.outer = []

    def _instruction(self, statement: ast.stmt) -> Instruction:
        if isinstance(statement, ast.Expr):
            result, call = None, _call_of(statement.value, "store")
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            result, call = statement.targets[0].id, _call_of(statement.value)
        else:
            raise _fail(statement, "expected 'name = op(...)' or 'store(...)'")
        op = _callee(call).rstrip("_")
        if op not in OPS or (op == "store") != (result is None):
            raise _fail(call, f"unknown operation {_callee(call)!r}")
        try:
            instruction = self._operation(result, op, call)
        except (IndexError, ValueError) as error:
            raise _fail(call, f"wrong arguments: {ast.unparse(call)}") from error
        if result is not None and instruction.dtype is not None:
            self.dtypes[result] = instruction.dtype
        return instruction

    def _operation(self, result: str | None, op: str, call: ast.Call) -> Instruction:
        spec, keywords = OPS[op], {keyword.arg: keyword.value for keyword in call.keywords}
        kinds = ARGUMENTS.get(op) or ("value",) * spec.arity
        if len(call.args) != len(kinds) + (spec.rule is DtypeRule.GIVEN):
            raise ValueError(op)
        args = [self.readers[kind](node) for kind, node in zip(kinds, call.args)]
        if op == "load":
            args.append(self._value(keywords["mask"]) if "mask" in keywords else None)
            args.append(parse_number(keywords["other"]) if "other" in keywords else None)
        if op == "store":
            args.append(ast.literal_eval(keywords["mode"]) if "mode" in keywords else None)
        if spec.rule is DtypeRule.GIVEN:
            dtype = parse_dtype(call.args[-1])
        elif spec.rule is DtypeRule.SAME:
            dtype = self.dtypes[args[-1].name]
        else:
            dtype = STATED_DTYPES.get(op, STATED_DTYPES.get(spec.rule))
        return Instruction(result, op, tuple(args), dtype)

    def _name(self, node: ast.expr) -> str:
        if not isinstance(node, ast.Name):
            raise _fail(node, "expected a buffer name")
        return node.id

    def _value(self, node: ast.expr) -> Value:
        if not isinstance(node, ast.Name) or node.id not in self.dtypes:
            raise _fail(node, f"not a value: {ast.unparse(node)}")
        return Value(node.id)

    def _index(self, node: ast.expr) -> sympy.Expr:
        if not isinstance(node, ast.List) or len(node.elts) != 1:
            raise _fail(node, "expected [index]")
        return expr_of_ast(node.elts[0])
