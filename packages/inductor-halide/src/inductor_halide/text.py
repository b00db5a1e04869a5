"""The text of a kernel: a Python function that declares its Halide stages, which ``pipeline`` runs.

Bodies are functions of the loops' coordinates, since a stage may run them over variables or over a
reduction domain.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

import sympy
import torch
from loopir import FloorDiv, Instruction, Kernel, Mod, Value

from .plan import Plan, Stage, needed_steps, plan_kernel

INDENT = "    "


def kernel_text(kernel: Kernel) -> str:
    """The function's text. Raises UnsupportedKernelError."""
    return _Writer(plan_kernel(kernel)).write()


def dtype_name(dtype: torch.dtype | None) -> str:
    """``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def print_index(expr: sympy.Expr, names: Mapping[str, str] = MappingProxyType({})) -> str:
    """An index expression on Halide's int32, whose division rounds down for positive divisors."""
    if isinstance(expr, sympy.Symbol):
        return names.get(expr.name, expr.name)
    if isinstance(expr, sympy.Integer):
        return str(expr) if expr >= 0 else f"({expr})"
    parts = [print_index(part, names) for part in expr.args]  # type: ignore[arg-type]
    if isinstance(expr, sympy.Add):
        return f"({' + '.join(sorted(parts))})"
    if isinstance(expr, sympy.Mul):
        return " * ".join(sorted(parts))
    if isinstance(expr, sympy.Pow):
        return " * ".join([f"({parts[0]})"] * int(parts[1]))
    if isinstance(expr, FloorDiv | Mod):
        return f"(({parts[0]}) {'//' if isinstance(expr, FloorDiv) else '%'} ({parts[1]}))"
    name = "ops.index_min" if isinstance(expr, sympy.Min) else "ops.index_max"
    return f"{name}({', '.join(sorted(parts))})"


def print_number(number: object) -> str:
    """A literal."""
    if isinstance(number, float) and not math.isfinite(number):
        return "ops.nan" if math.isnan(number) else "ops.inf" if number > 0 else "-ops.inf"
    return repr(number)


class _Writer:
    def __init__(self, plan: Plan) -> None:
        self.plan, self.kernel = plan, plan.kernel
        self.lines: list[str] = []
        self.dtypes: dict[str, torch.dtype] = {
            step.result: step.dtype for step in self.kernel.steps if step.result and step.dtype
        }
        self.indirect = {str(step.result) for step in self.kernel.steps if step.op == "indirect"}
        self.stage_of = {
            name: stage for stage in plan.stages for name in stage.results if stage.kind != "scatter"
        }

    def write(self) -> str:
        kernel = self.kernel
        self.line(f"def kernel(stages):  # {kernel.name}", 0)
        for size in kernel.sizes:
            self.line(f"{size} = stages.size({str(size)!r})")
        for buffer in kernel.buffers:
            if buffer.name in self.plan.inputs:
                self.line(f"stages.input({buffer.name!r}, {dtype_name(buffer.dtype)!r})")
        for kind, loops in (("ranges", kernel.ranges), ("reduction", kernel.reduction)):
            extents = [f"{item.symbol}={print_index(item.extent)}" for item in loops]
            self.line(f"stages.{kind}({', '.join(extents)})")
        for number in range(len(kernel.bodies)):
            self.write_body(number)
        return "\n".join(self.lines) + "\n"

    def line(self, text: str, depth: int = 1) -> None:
        self.lines.append(INDENT * depth + text)

    def write_body(self, number: int) -> None:
        stages = [stage for stage in self.plan.stages if stage.body == number]
        steps = list(self.kernel.bodies[number].instructions)
        for stage in stages:
            if stage.kind == "scan":
                name = f"before_{stage.results[0]}"
                needed = needed_steps(steps, stage.steps[0].reads, self.plan.forwarded)
                self.write_function(name, number, needed, [stage])
                self.declare(stage, name)
        rest = [stage for stage in stages if stage.kind != "scan"]
        if not rest:
            return
        name = f"body{number}"
        kept = [step for step in steps if step.op not in ("reduce", "store", "scan")]
        self.write_function(name, number, kept, rest)
        for stage in rest:
            self.declare(stage, name)

    def write_function(
        self, name: str, number: int, steps: list[Instruction], stages: list[Stage]
    ) -> None:
        loops = ", ".join(str(item.symbol) for item in self.plan.loops(number))
        self.line("")
        self.line(f"def {name}({loops}):")
        for step in steps:
            self.line(f"{step.result} = {self.value(step, number)}", 2)
        self.line("return dict(", 2)
        for stage in stages:
            for key, text in self.results(stage, number):
                self.line(f"{key}={text},", 3)
        self.line(")", 2)

    def results(self, stage: Stage, number: int) -> list[tuple[str, str]]:
        """Keys and values of what a body's function returns for a stage."""
        if stage.kind == "values":
            return [(name, self.operand(Value(name), number)) for name in stage.results]
        if stage.kind in ("reduce", "scan"):
            return [(str(s.result), self.operand(s.args[1], number)) for s in stage.steps]
        found = []
        for place, step in enumerate(stage.steps):
            value = self.operand(step.args[2], number)
            if stage.kind == "store":
                found.append((str(step.args[0]), value))
            else:
                index = self.index(step.args[1], number)
                found.append((f"{step.args[0]}_{place}", f"({index}, {value})"))
        return found

    def declare(self, stage: Stage, function: str) -> None:
        if stage.kind in ("reduce", "scan"):
            kinds = [f"{s.result}=({str(s.args[0])!r}, {dtype_name(s.dtype)!r})" for s in stage.steps]
        elif stage.kind == "values":
            kinds = [f"{name}={dtype_name(self.dtypes[name])!r}" for name in stage.results]
        else:
            dtypes = self.kernel.dtypes
            kinds = [f"{name}={dtype_name(dtypes[name])!r}" for name in stage.results]
        if stage.kind == "scatter":
            modes = [f"({f'{s.args[0]}_{n}'!r}, {s.args[3]!r})" for n, s in enumerate(stage.steps)]
            self.line(f"stages.scatter({function}, [{', '.join(modes)}], {', '.join(kinds)})")
            return
        names = "".join(f"{name}, " for name in stage.results).removesuffix(" ")
        if len(stage.results) > 1:
            names = names.removesuffix(",")
        self.line(f"{names} = stages.{stage.kind}({function}, {', '.join(kinds)})")

    def operand(self, arg: object, number: int) -> str:
        """A value by name, or the Func of an earlier stage at this point."""
        assert isinstance(arg, Value)
        stage = self.stage_of.get(arg.name)
        if stage is None or (stage.body == number and stage.kind != "scan"):
            return arg.name
        return self.at(arg.name, stage)

    def index(self, expr: object, number: int) -> str:
        """An index expression; indirect symbols are values."""
        assert isinstance(expr, sympy.Expr)
        names = {str(symbol) for symbol in expr.free_symbols} & self.indirect
        return print_index(expr, {n: f"ops.index({self.operand(Value(n), number)})" for n in names})

    def at(self, name: str, stage: Stage) -> str:
        reduced = stage.kind == "reduce"
        loops = self.kernel.ranges if reduced else self.plan.loops(stage.body)
        return f"{name}({', '.join(str(item.symbol) for item in loops)})"

    def value(self, step: Instruction, number: int) -> str:
        """The right side of an instruction."""
        op, args, dtype = step.op, step.args, dtype_name(step.dtype)
        operands = [self.operand(arg, number) for arg in args if isinstance(arg, Value)]
        if op == "load":
            return self.load(step, operands, number)
        if op == "constant":
            return f"ops.constant({print_number(args[0])}, {dtype!r})"
        if op == "index_expr":
            return f"ops.index_value({self.index(args[0], number)}, {dtype!r})"
        if op == "indirect":
            return f"stages.indirect({operands[0]}, {self.index(args[1], number)})"
        if op in ("cast", "bitcast"):
            assert isinstance(args[0], Value)
            source = dtype_name(self.dtypes[args[0].name])
            return f"ops.{op}({operands[0]}, {source!r}, {dtype!r})"
        return f"ops.{op}_({', '.join(operands)})" if op in ("and", "or", "not") else (
            f"ops.{op}({', '.join(operands)})"
        )

    def load(self, step: Instruction, operands: list[str], number: int) -> str:
        buffer, index, mask, other = step.args
        forwarded = self.plan.forwarded.get(str(step.result))
        dtype = dtype_name(step.dtype)
        if forwarded is not None:
            stage = self.stage_of.get(forwarded)
            text = forwarded if stage is None or stage.body == number else self.at(forwarded, stage)
            if mask is None:
                return text
            return f"ops.where({operands[0]}, {text}, ops.constant({print_number(other)}, {dtype!r}))"
        text = f"stages.load({str(buffer)!r}, {self.index(index, number)}"
        if mask is not None:
            text += f", {operands[0]}, ops.constant({print_number(other)}, {dtype!r})"
        return f"{text})"
