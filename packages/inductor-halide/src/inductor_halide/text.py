"""The text of a kernel: a Python function that declares its Halide stages, which ``pipeline`` runs.

Bodies are functions of the loops' coordinates, since a stage may run them over variables or over a
reduction domain.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import sympy
from loopir import FloorDiv, Instruction, Kernel, Mod, Range, Value

from .plan import Plan, Stage

NO_NAMES: Mapping[str, str] = MappingProxyType({})


def kernel_text(kernel: Kernel) -> str:
    """The function's text. Raises UnsupportedKernelError."""
    return _Writer(Plan(kernel)).write()


def print_index(expr: sympy.Basic, names: Mapping[str, str] = NO_NAMES) -> str:
    """An index expression on Halide's int32, whose division rounds down for positive divisors."""
    if isinstance(expr, sympy.Symbol):
        return names.get(expr.name, expr.name)
    if isinstance(expr, sympy.Integer):
        return str(expr) if expr >= 0 else f"({expr})"
    parts = [print_index(part, names) for part in expr.args]
    if isinstance(expr, sympy.Add | sympy.Mul):
        return f"({(' + ' if expr.is_Add else ' * ').join(sorted(parts))})"
    if isinstance(expr, sympy.Pow):
        return " * ".join([f"({parts[0]})"] * int(parts[1]))
    if isinstance(expr, FloorDiv | Mod):
        return f"({parts[0]} {'//' if isinstance(expr, FloorDiv) else '%'} {parts[1]})"
    return (
        f"ops.index_{'min' if isinstance(expr, sympy.Min) else 'max'}({', '.join(sorted(parts))})"
    )


def print_number(number: object) -> str:
    """A literal."""
    if isinstance(number, float) and not math.isfinite(number):
        return "ops.nan" if math.isnan(number) else "ops.inf" if number > 0 else "-ops.inf"
    return repr(number)


def dtype_text(dtype: object) -> str:
    """``'float32'`` for ``torch.float32``."""
    return repr(str(dtype).removeprefix("torch."))


def call(loops: Sequence[Range]) -> str:
    """The coordinates of loops as arguments."""
    return f"({', '.join(item.symbol.name for item in loops)})"


class _Writer:
    def __init__(self, plan: Plan) -> None:
        self.plan, self.kernel = plan, plan.kernel
        self.lines: list[str] = []
        self.dtypes = {step.result: step.dtype for step in self.kernel.steps} | self.kernel.dtypes
        read = [stage for stage in plan.stages if stage.kind != "scatter"]
        self.stage_of = {name: stage for stage in read for name in stage.results}

    def write(self) -> str:
        kernel = self.kernel
        self.lines.append(f"def kernel(stages):  # {kernel.name}")
        self.lines += [f"    {size} = stages.size({str(size)!r})" for size in kernel.sizes]
        for name in self.plan.inputs:
            self.lines.append(f"    stages.input({name!r}, {dtype_text(kernel.dtypes[name])})")
        for kind, loops in (("ranges", kernel.ranges), ("reduction", kernel.reduction)):
            extents = ", ".join(f"{item.symbol}={print_index(item.extent)}" for item in loops)
            self.lines.append(f"    stages.{kind}({extents})")
        for number, body in enumerate(kernel.bodies):
            stages = [stage for stage in self.plan.stages if stage.body == number]
            for stage in (stage for stage in stages if stage.kind == "scan"):
                steps = self.plan.needed(number, stage.steps[0].reads)
                self.write_body(f"before_{stage.results[0]}", number, steps, [stage])
            rest = [stage for stage in stages if stage.kind != "scan"]
            steps = [s for s in body.instructions if s.op not in ("reduce", "store", "scan")]
            self.write_body(f"body{number}", number, steps, rest)
        return "\n".join(self.lines) + "\n"

    def write_body(
        self, name: str, number: int, steps: Sequence[Instruction], stages: Sequence[Stage]
    ) -> None:
        """A function of the coordinates, and the stages that run it."""
        self.lines += ["", f"    def {name}{call(self.plan.loops(number))}:"]
        self.lines += [f"        {step.result} = {self.value(step, number)}" for step in steps]
        self.lines.append("        return dict(")
        for stage in stages:
            self.lines += [f"            {text}," for text in self.results(stage, number)]
        self.lines.append("        )")
        for stage in stages:
            made = "".join(f"{result}, " for result in stage.results) + "= "
            kinds = [f"{result}={dtype_text(self.dtypes[result])}" for result in stage.results]
            if stage.kind in ("reduce", "scan"):
                kinds = [f"{s.result}=({s.args[0]!r}, {dtype_text(s.dtype)})" for s in stage.steps]
            if stage.kind == "scatter":
                made = ""
                kinds.insert(
                    0, str([(f"{s.args[0]}_{n}", s.args[3]) for n, s in enumerate(stage.steps)])
                )
            self.lines.append(f"    {made}stages.{stage.kind}({name}, {', '.join(kinds)})")

    def results(self, stage: Stage, number: int) -> list[str]:
        """What a body's function returns for a stage."""
        if stage.kind == "values":
            return [f"{name}={name}" for name in stage.results]
        if stage.kind in ("reduce", "scan"):
            return [f"{s.result}={self.operand(s.args[1], number)}" for s in stage.steps]
        values = [(s, self.operand(s.args[2], number)) for s in stage.steps]
        if stage.kind == "store":
            return [f"{step.args[0]}={value}" for step, value in values]
        return [
            f"{step.args[0]}_{place}=({self.index(step.args[1], number)}, {value})"
            for place, (step, value) in enumerate(values)
        ]

    def operand(self, arg: object, number: int) -> str:
        """A value by name, or the Func of an earlier stage at this point."""
        stage = self.stage_of.get(str(arg))
        if stage is None or (stage.body == number and stage.kind != "scan"):
            return str(arg)
        reduced = stage.kind == "reduce"
        return f"{arg}{call(self.kernel.ranges if reduced else self.plan.loops(stage.body))}"

    def index(self, expr: object, number: int) -> str:
        """An index expression; indirect symbols are values."""
        assert isinstance(expr, sympy.Expr)
        names = {str(symbol) for symbol in expr.free_symbols} & self.dtypes.keys()
        return print_index(expr, {n: f"ops.index({self.operand(n, number)})" for n in names})

    def value(self, step: Instruction, number: int) -> str:
        """The right side of an instruction."""
        op, args, dtype = step.op, step.args, dtype_text(step.dtype)
        values = [self.operand(arg, number) for arg in args if isinstance(arg, Value)]
        if op == "load":
            rest = f"ops.constant({print_number(args[3])}, {dtype})"
            stored = self.plan.forwarded.get(str(step.result))
            if stored is not None:
                text = self.operand(stored, number)
                return f"ops.where({values[0]}, {text}, {rest})" if values else text
            masked = f", {values[0]}, {rest}" if values else ""
            return f"stages.load({args[0]!r}, {self.index(args[1], number)}{masked})"
        if op == "constant":
            return f"ops.constant({print_number(args[0])}, {dtype})"
        if op == "index_expr":
            return f"ops.index_value({self.index(args[0], number)}, {dtype})"
        if op == "indirect":
            return f"stages.indirect({values[0]}, {self.index(args[1], number)})"
        if op in ("cast", "bitcast"):
            values += [dtype_text(self.dtypes[str(args[0])]), dtype]
        return f"ops.{op}{'_' if op in ('and', 'or', 'not') else ''}({', '.join(values)})"
