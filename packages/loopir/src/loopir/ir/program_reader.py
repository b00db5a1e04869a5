"""Reads the text form of programs and templates; see ``program_text``."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import primops.text
import sympy
import torch
from primops import ContractError, check_prims
from symshapes import ParseError
from symshapes.text.expressions import parse_expression
from symshapes.text.form import parameters, reading
from symshapes.text.graph_reader import GraphReader
from symshapes.text.names import find_target
from symshapes.text.tensors import parse_tensor_type
from symshapes.text.values import MISSING, parse_value

from loopir.errors import VerificationError

from .expr import expr_of_ast, symbol
from .host_functions import ROOTS
from .kernel import Kernel
from .node import Bind, Buffer, ExternNode, Item, Symbolic, View
from .parse import KernelParser, parse_parameters
from .program import Allocate, ExternCall, Free, Launch, MakeView, Program, Step, check_program
from .program_text import PROGRAMS
from .simplify import ZERO
from .template import Stage, Template
from .verify import check_kernel

CHECKS = (VerificationError, ContractError)
VIEWS = {"view": View, "item": Item}


class _Symbols(Mapping[str, sympy.Symbol]):
    """Every name is a size."""

    def __getitem__(self, name: str) -> sympy.Symbol:
        return symbol(name)

    def __contains__(self, name: object) -> bool:
        return True

    def __iter__(self) -> Any:
        raise TypeError("all names")

    def __len__(self) -> int:
        raise TypeError("all names")


SYMBOLS = _Symbols()


def parse_program(text: str, constants: Mapping[str, torch.Tensor] | None = None) -> Program:
    """The program of a text, with its kernels and itself checked. ``constants`` by name.

    Raises ``symshapes.ParseError`` with line and column, ``symshapes.VersionError`` for a text of a
    newer version, VerificationError and ``primops.ContractError`` for what the checkers find.
    """
    reader = _ProgramReader(constants or {})
    for statement in PROGRAMS.parse(text).body:
        reader.read(statement)
    if reader.program is None:
        raise ParseError("the text has no function program")
    check_program(reader.program)
    return reader.program


@dataclass
class _ProgramReader:
    constants: Mapping[str, torch.Tensor]
    graphs: GraphReader = field(default_factory=lambda: GraphReader(primops.text.GRAPHS, {}))
    kernels: dict[str, Kernel | Template] = field(default_factory=dict)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    program: Program | None = None

    def read(self, statement: ast.stmt) -> None:
        """Reads a kernel, a template, a graph, a size or the program."""
        with reading(statement, *CHECKS):
            self._read(statement)

    def _read(self, statement: ast.stmt) -> None:
        if not isinstance(statement, ast.FunctionDef):
            self.graphs.read(statement)
            return
        kind = _decorator(statement)
        if kind in ("kernel", "template"):
            if statement.name in self.kernels:
                raise ParseError.at(statement.args, f"there are two kernels {statement.name}")
            self.kernels[statement.name] = (
                read_kernel(statement) if kind == "kernel" else _read_template(statement, self)
            )
        elif statement.name == "program":
            self.program = _StepReader(self, statement).read()
        else:
            self.graphs.read(statement)
            check_prims(self.graphs.graphs[statement.name])

    def argument(self, node: ast.expr) -> Any:
        """An argument of an extern call, or an output."""
        return parse_value(node, self._leaf)

    def _leaf(self, node: ast.expr) -> Any:
        match node:
            case ast.Call(
                func=ast.Name(id="view" | "item" as kind), args=[ast.Name(id=name), *parts]
            ):
                if len(parts) == 3:
                    shape, stride = map(_sizes, parts[:2])
                    return VIEWS[kind](name, shape, stride, expr_of_ast(parts[2]))
            case ast.Call(func=ast.Name(id="symbolic"), args=[inner]):
                return Symbolic(parse_expression(inner, SYMBOLS))
            case ast.Call(func=ast.Name(id="size"), args=[inner]):
                return parse_expression(inner, SYMBOLS)
            case ast.Attribute(value=ast.Name(id="graphs"), attr=name) if (
                name in self.graphs.graphs
            ):
                return self.graphs.graphs[name]
            case ast.Name(id=name) if name in self.buffers:
                buffer = self.buffers[name]
                return View(name, buffer.shape, buffer.stride, ZERO)
        return MISSING


def _decorator(function: ast.FunctionDef) -> str:
    """The name of the one decorator, or an empty text."""
    match function.decorator_list:
        case [ast.Call(func=ast.Name(id=name))]:
            return name
    return ""


def read_kernel(function: ast.FunctionDef) -> Kernel:
    """A kernel, checked."""
    kernel = KernelParser(function).parse()
    check_kernel(kernel)
    return kernel


def _keywords(call: ast.Call, *names: str) -> dict[str, Any]:
    found = {str(word.arg): parse_value(word.value) for word in call.keywords}
    if set(found) - set(names):
        raise ParseError.at(call, f"expected {', '.join(names)}")
    return found


def _sizes(node: ast.expr) -> tuple[sympy.Expr, ...]:
    if not isinstance(node, ast.Tuple):
        raise ParseError.at(node, "expected a tuple of sizes")
    return tuple(map(expr_of_ast, node.elts))


def _read_template(function: ast.FunctionDef, reader: _ProgramReader) -> Template:
    """A template: prologues, the operator, its result, and the epilogue."""
    (decorator,) = function.decorator_list
    assert isinstance(decorator, ast.Call)
    buffers, sizes, hints = parse_parameters(function)
    prologues, found = [], dict[str, Any]()
    for statement in function.body:
        match statement:
            case ast.FunctionDef(decorator_list=[ast.Call(func=ast.Name(id=kind)) as notes, _]):
                given = _keywords(notes, "operand", "buffer", "arguments")
                stage = Stage(_stage_kernel(statement), given["buffer"], given["arguments"])
                if kind == "prologue":
                    prologues.append((given["operand"], stage))
                else:
                    found["epilogue"] = stage
            case ast.Assign(value=ast.Call(args=[target, *args], keywords=words)):
                found["op"] = _function(target)
                found["args"] = tuple(map(reader.argument, args))
                found["kwargs"] = tuple((str(w.arg), reader.argument(w.value)) for w in words)
            case ast.Expr(value=ast.Call(func=ast.Name(id="result"), args=[view])):
                found["result"] = reader.argument(view)
            case _:
                raise ParseError.at(statement, "expected a stage, the operator or its result")
    try:
        return Template(
            name=function.name, **_keywords(decorator, "device"), buffers=tuple(buffers),
            sizes=tuple(sizes), hints=tuple(hints), prologues=tuple(prologues), **found,
        )  # fmt: skip
    except TypeError as error:
        raise ParseError.at(decorator, f"an incomplete template, {error}") from error


def _stage_kernel(function: ast.FunctionDef) -> Kernel:
    """The kernel of a stage; its other decorator is the stage's."""
    function.decorator_list = function.decorator_list[1:]
    return read_kernel(function)


def _function(node: ast.expr) -> Callable[..., Any]:
    found = find_target(ast.unparse(node), ROOTS)
    if not callable(found):
        raise ParseError.at(node, "not a function that a program may call")
    return found


class _StepReader:
    """Reads the function ``program``."""

    def __init__(self, reader: _ProgramReader, function: ast.FunctionDef) -> None:
        self.reader = reader
        self.function = function
        self.buffers = reader.buffers
        self.constants: dict[str, torch.Tensor] = {}
        self.numbers: set[str] = set()
        self.hints: dict[sympy.Symbol, int] = {}
        self.required: list[tuple[sympy.Basic, str]] = []
        self.steps: list[Step] = []
        self.places = {name: i for i, name in enumerate(reader.kernels)}

    def read(self) -> Program:
        inputs = tuple(map(self._input, parameters(self.function)))
        *steps, last = self.function.body
        for statement in steps:
            with reading(statement, *CHECKS):
                self._statement(statement)
        if not isinstance(last, ast.Return) or not isinstance(last.value, ast.Tuple):
            raise ParseError.at(last, "expected a return statement with a tuple")
        return Program(
            inputs=inputs,
            buffers=self.buffers,
            constants=self.constants,
            kernels=tuple(self.reader.kernels.values()),
            steps=tuple(self.steps),
            outputs=tuple(self.reader.argument(last.value)),
            hints=self.hints,
            numbers=frozenset(self.numbers),
            required=tuple(self.required),
        )

    def _input(self, argument: ast.arg) -> str | sympy.Symbol | None:
        match argument.annotation:
            case ast.Constant(value=None):
                return None
            case ast.Name(id="size"):
                return symbol(argument.arg)
            case ast.Call(func=ast.Name(id="number"), args=[given]):
                self.numbers.add(argument.arg)
                self._declare(argument.arg, given)
                return argument.arg
            case ast.expr() as given:
                self._declare(argument.arg, given)
                return argument.arg
        raise ParseError.at(argument, "expected a type")

    def _declare(self, name: str, node: ast.expr) -> None:
        given = parse_tensor_type(node, expr_of_ast)
        if given is None or name in self.buffers:
            raise ParseError.at(node, f"not the type of a new buffer {name}")
        strides = tuple(map(sympy.sympify, given.strides))
        self.buffers[name] = Buffer(name, given.dtype, given.device, given.shape, strides)

    def _statement(self, statement: ast.stmt) -> None:
        match statement:
            case ast.AnnAssign(
                target=ast.Name(id=name),
                annotation=ast.Call(func=ast.Name(id="constant"), args=[given]),
            ):
                if name not in self.reader.constants:
                    raise ParseError.at(statement, "the tensor is not among the constants given")
                self._declare(name, given)
                self.constants[name] = self.reader.constants[name]
            case ast.AnnAssign(target=ast.Name(id=name), annotation=given, value=None):
                self._declare(name, given)
            case ast.Expr(value=ast.Call(func=ast.Name(id=kind)) as call) if kind in STATEMENTS:
                STATEMENTS[kind](self, call)
            case ast.AnnAssign(
                target=ast.Name(id=name) as target,
                annotation=given,
                value=ast.Call(func=ast.Name(id="allocate" | "call" | "call_view" as kind)) as call,
            ):
                self._declare(name, given)
                ASSIGNMENTS[kind](self, target, call)
            case ast.Assign(targets=[target], value=ast.Call(func=ast.Name(id=kind)) as call) if (
                kind in ASSIGNMENTS
            ):
                ASSIGNMENTS[kind](self, target, call)
            case _:
                raise ParseError.at(statement, "not a step")

    def hint(self, call: ast.Call) -> None:
        self.hints |= {symbol(str(w.arg)): parse_value(w.value) for w in call.keywords}

    def require(self, call: ast.Call) -> None:
        condition, message = call.args
        self.required.append((parse_expression(condition, SYMBOLS), parse_value(message)))

    def free(self, call: ast.Call) -> None:
        (buffer,) = call.args
        self.steps.append(Free(_name(buffer)))

    def launch(self, call: ast.Call) -> None:
        kernel, *operands = call.args
        if _name(kernel) not in self.places:
            raise ParseError.at(kernel, "no such kernel")
        read = [_operand(node) for node in operands]
        starts = tuple(start for _, start in read)
        self.steps.append(
            Launch(
                self.places[_name(kernel)],
                tuple(name for name, _ in read),
                starts if any(start != 0 for start in starts) else (),
            )
        )

    def allocate(self, target: ast.expr, call: ast.Call) -> None:
        reuses = next((_name(w.value) for w in call.keywords if w.arg == "reuses"), None)
        in_place = any(w.arg == "in_place" for w in call.keywords)
        self.steps.append(Allocate(_name(target), reuses, in_place))

    def view(self, target: ast.expr, call: ast.Call) -> None:
        self.steps.append(MakeView(_name(target), self.reader.argument(call)))

    def call(self, target: ast.expr, call: ast.Call) -> None:
        several = isinstance(target, ast.Tuple)
        names = [_name(node) for node in (target.elts if several else [target])]
        assert isinstance(call.func, ast.Name)
        node = ExternNode(
            op=_function(call.args[0]),
            args=tuple(map(self.reader.argument, call.args[1:])),
            kwargs=tuple((str(w.arg), self.reader.argument(w.value)) for w in call.keywords),
            results=tuple(None if name == "_" else name for name in names),
            single=not several,
            binds=(),
            origins=(),
            aliases=call.func.id == "call_view",
        )
        self.steps.append(ExternCall(node))

    def bind(self, target: ast.expr, call: ast.Call) -> None:
        result, dim = map(parse_value, call.args)
        last = self.steps[-1] if self.steps else None
        if not isinstance(last, ExternCall):
            raise ParseError.at(call, "a size is bound by the call before")
        bind = Bind(symbol(_name(target)), result, dim)
        self.steps[-1] = ExternCall(replace(last.node, binds=(*last.node.binds, bind)))


STATEMENTS: dict[str, Callable[[_StepReader, ast.Call], None]] = {
    "hints": _StepReader.hint, "require": _StepReader.require, "free": _StepReader.free,
    "launch": _StepReader.launch,
}  # fmt: skip
ASSIGNMENTS: dict[str, Callable[[_StepReader, ast.expr, ast.Call], None]] = {
    "allocate": _StepReader.allocate, "view": _StepReader.view, "call": _StepReader.call,
    "call_view": _StepReader.call, "bind": _StepReader.bind,
}  # fmt: skip


def _operand(node: ast.expr) -> tuple[str, sympy.Expr]:
    """A buffer of a launch, and the element at which the kernel's buffer begins."""
    match node:
        case ast.Subscript(value=base, slice=ast.Slice(lower=ast.expr() as start)):
            return _name(base), expr_of_ast(start)
    return _name(node), ZERO


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    raise ParseError.at(node, "expected a name")
