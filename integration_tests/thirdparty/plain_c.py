"""A code generator as somebody else would write one: plain C loops, one statement per instruction,
no vectors, no threads.
"""

from __future__ import annotations

import ctypes
import math
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import loopir
import sympy
import torch
from loopir import ArtifactStore, Body, Instruction, Kernel, KernelSource, Value

C_TYPES = {
    torch.bool: "bool", torch.uint8: "uint8_t", torch.int8: "int8_t", torch.int16: "int16_t",
    torch.int32: "int32_t",
    torch.int64: "int64_t", torch.float16: "_Float16", torch.bfloat16: "bf16",
    torch.float32: "float", torch.float64: "double",
}  # fmt: skip

PRELUDE = """\
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
typedef struct { uint16_t bits; } bf16;
static float from_bf16(bf16 a) { uint32_t u = (uint32_t)a.bits << 16; float f; memcpy(&f, &u, 4); return f; }
static bf16 to_bf16(float f) {
    uint32_t u; memcpy(&u, &f, 4);
    bf16 r = { (uint16_t)(f != f ? 0x7fc0 : (u + 0x7fff + ((u >> 16) & 1)) >> 16) };
    return r;
}
static int64_t floor_div(int64_t a, int64_t b) { int64_t q = a / b; return q - (a % b != 0 && (a < 0) != (b < 0)); }
static int64_t floor_mod(int64_t a, int64_t b) { int64_t m = a % b; return m && (m < 0) != (b < 0) ? m + b : m; }
static double float_mod(double a, double b) { double m = fmod(a, b); return m && (m < 0) != (b < 0) ? m + b : m; }
static int64_t index_min(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t index_max(int64_t a, int64_t b) { return a > b ? a : b; }
static const uint32_t *philox(uint64_t seed, uint64_t block, uint32_t stream, int rounds) {
    static uint32_t c[4];
    uint32_t k[2] = { (uint32_t)seed, (uint32_t)(seed >> 32) };
    c[0] = (uint32_t)block; c[1] = (uint32_t)(block >> 32); c[2] = stream; c[3] = 0;
    for (int i = 0; i < rounds; ++i) {
        uint64_t a = (uint64_t)c[0] * 0xD2511F53u, b = (uint64_t)c[2] * 0xCD9E8D57u;
        uint32_t n[4] = { (uint32_t)(b >> 32) ^ c[1] ^ k[0], (uint32_t)b, (uint32_t)(a >> 32) ^ c[3] ^ k[1], (uint32_t)a };
        memcpy(c, n, 16);
        k[0] += 0x9E3779B9u; k[1] += 0xBB67AE85u;
    }
    return c;
}
static float uniform(uint64_t seed, uint64_t counter) {
    return (philox(seed, counter >> 2, 0, 10)[counter & 3] >> 8) * 0x1p-24f;
}
static float uniform16(uint64_t seed, uint64_t counter) {
    uint32_t word = philox(seed, counter >> 3, 1, 7)[(counter >> 1) & 3];
    return ((counter & 1 ? word >> 16 | word << 16 : word) >> 8) * 0x1p-24f;
}
"""

INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&", "or": "|", "xor": "^",
    "lshift": "<<", "rshift": ">>",
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=",
}  # fmt: skip
RENAMED = {"abs": "fabs", "round": "nearbyint", "pow": "pow", "minimum": "<", "maximum": ">"}
START = {"sum": "0", "prod": "1", "any": "false", "all": "true"}


def print_index(expr: sympy.Expr) -> str:
    """An index expression in C, on int64_t."""
    args = [print_index(arg) for arg in expr.args]  # type: ignore[arg-type]
    if isinstance(expr, sympy.Symbol):
        return expr.name
    if isinstance(expr, sympy.Integer):
        return f"INT64_C({expr})"
    if isinstance(expr, sympy.Add | sympy.Mul):
        return f"({(' + ' if isinstance(expr, sympy.Add) else ' * ').join(args)})"
    if isinstance(expr, sympy.Pow):
        return "(" + " * ".join([args[0]] * int(expr.args[1])) + ")"  # type: ignore[arg-type]
    if isinstance(expr, loopir.FloorDiv | loopir.Mod):
        return f"{'floor_div' if isinstance(expr, loopir.FloorDiv) else 'floor_mod'}({args[0]}, {args[1]})"
    function = "index_min" if isinstance(expr, sympy.Min) else "index_max"
    text = args[0]
    for arg in args[1:]:
        text = f"{function}({text}, {arg})"
    return text


def print_number(number: object, dtype: torch.dtype) -> str:
    """A literal of a dtype."""
    if isinstance(number, float) and not math.isfinite(number):
        text = "NAN" if math.isnan(number) else "INFINITY" if number > 0 else "-INFINITY"
    elif isinstance(number, float):
        text = number.hex()
    else:
        text = f"INT64_C({int(number)})" if number != -(1 << 63) else "INT64_MIN"  # type: ignore[call-overload]
    return f"to_bf16({text})" if dtype is torch.bfloat16 else f"(({C_TYPES[dtype]}){text})"


def convert(text: str, source: torch.dtype, target: torch.dtype) -> str:
    """ATen's conversion: through int64 for floats that become small integers, to bool by comparison
    with zero.
    """
    if source is torch.bfloat16:
        text, source = f"from_bf16({text})", torch.float32
    if target is torch.bfloat16:
        return f"to_bf16({text})"
    if target is torch.bool:
        return f"({text} != 0)"
    through = "(int64_t)" if source.is_floating_point and not target.is_floating_point else ""
    return f"({C_TYPES[target]}){through}({text})"


class Writer:
    """Writes one kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.lines: list[str] = []
        self.dtypes: dict[str, torch.dtype] = {}
        self.depth = 1

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def write(self) -> str:
        kernel = self.kernel
        const = {b.name: "const " if b.role == "in" else "" for b in kernel.buffers}
        parameters = [f"{const[b.name]}{C_TYPES[b.dtype]}* {b.name}" for b in kernel.buffers]
        parameters += [f"int64_t {size.name}" for size in kernel.sizes]  # type: ignore[attr-defined]
        self.open_loops(kernel.ranges)
        for body in kernel.bodies:
            self.write_inner(body) if body.inner else [
                self.write_step(step) for step in body.instructions
            ]
        self.close_loops(len(kernel.ranges))
        head = f"int {kernel.name}({', '.join(parameters)}) {{"
        return "\n".join([head, *self.lines, "    return 0;", "}", ""])

    def open_loops(self, ranges: Sequence) -> None:
        for item in ranges:
            name = item.symbol.name
            self.line(f"for (int64_t {name} = 0; {name} < {print_index(item.extent)}; ++{name}) {{")
            self.depth += 1

    def close_loops(self, count: int) -> None:
        for _ in range(count):
            self.depth -= 1
            self.line("}")

    def write_inner(self, body: Body) -> None:
        for step in body.instructions:
            if step.op in ("reduce", "scan"):
                self.declare(step)
        self.open_loops(self.kernel.reduction)
        for step in body.instructions:
            self.write_step(step)
        self.close_loops(len(self.kernel.reduction))
        for step in body.instructions:
            if step.op == "reduce":
                self.line(f"const {C_TYPES[step.dtype]} {step.result} = {step.result}_all;")  # type: ignore[index]
                self.dtypes[str(step.result)] = step.dtype  # type: ignore[assignment]

    def declare(self, step: Instruction) -> None:
        """The accumulator of a reduction or scan; float sums are kept in double."""
        kind, dtype = str(step.args[0]), step.dtype
        assert dtype is not None
        if kind in ("argmax", "argmin"):
            self.line(
                f"int64_t {step.result}_all = 0, {step.result}_at = 0; double {step.result}_best = "
                f"0;"
            )
            return
        wide = "double" if dtype.is_floating_point and kind in ("sum", "prod") else C_TYPES[dtype]
        start = START.get(kind) or self.extreme(dtype, lowest=kind == "max")
        self.line(f"{wide} {step.result}_all = {start};")

    @staticmethod
    def extreme(dtype: torch.dtype, lowest: bool) -> str:
        if dtype.is_floating_point:
            return "-INFINITY" if lowest else "INFINITY"
        if dtype is torch.bool:
            return "false" if lowest else "true"
        return print_number(torch.iinfo(dtype).min if lowest else torch.iinfo(dtype).max, dtype)

    def write_step(self, step: Instruction) -> None:
        if step.op == "store":
            return self.write_store(step)
        if step.op == "reduce":
            return self.write_reduce(step)
        name, dtype = str(step.result), step.dtype
        if step.op == "indirect":
            value = str(step.args[0])
            self.line(
                f"const int64_t {name} = {value}; if ({name} < 0 || {name} >= "
                f"{print_index(step.args[1])}) return 1;"
            )  # type: ignore[arg-type]
            return None
        assert dtype is not None
        if step.op == "scan":
            self.line(f"{name}_all {'+' if step.args[0] == 'sum' else '*'}= {step.args[1]};")
        self.dtypes[name] = dtype
        self.line(f"const {C_TYPES[dtype]} {name} = {self.value(step, dtype)};")

    def write_store(self, step: Instruction) -> None:
        buffer, index, value, mode = step.args
        self.line(f"{buffer}[{print_index(index)}] {'+=' if mode == 'add' else '='} {value};")  # type: ignore[arg-type]

    def write_reduce(self, step: Instruction) -> None:
        kind, value, total = str(step.args[0]), str(step.args[1]), f"{step.result}_all"
        if kind in ("argmax", "argmin"):
            sign = ">" if kind == "argmax" else "<"
            best, at = f"{step.result}_best", f"{step.result}_at"
            better = f"{value} {sign} {best} || ({value} != {value} && {best} == {best})"
            self.line(f"if ({at} == 0 || {better}) {{ {best} = {value}; {total} = {at}; }} ++{at};")
        elif kind in ("max", "min"):
            sign = ">" if kind == "max" else "<"
            self.line(f"if ({value} {sign} {total} || {value} != {value}) {total} = {value};")
        else:
            self.line(f"{total} {dict(sum='+=', prod='*=', any='|=', all='&=')[kind]} {value};")

    def value(self, step: Instruction, dtype: torch.dtype) -> str:
        """The C expression of an instruction's result."""
        op, names = step.op, [arg.name for arg in step.args if isinstance(arg, Value)]
        if op == "load":
            buffer, index, mask, other = step.args
            element = f"{buffer}[{print_index(index)}]"  # type: ignore[arg-type]
            return element if mask is None else f"{mask} ? {element} : {print_number(other, dtype)}"
        if op == "index_expr":
            return convert(print_index(step.args[0]), torch.int64, dtype)  # type: ignore[arg-type]
        if op == "constant":
            return print_number(step.args[0], dtype)
        if op == "cast":
            return convert(names[0], self.dtypes[names[0]], dtype)
        if op == "bitcast":
            return f"({{ {C_TYPES[dtype]} bits; memcpy(&bits, &{names[0]}, sizeof bits); bits; }})"
        if op == "scan":
            return f"{step.result}_all"
        if op == "where":
            return f"{names[0]} ? {names[1]} : {names[2]}"
        if op in ("uniform", "uniform16"):
            return f"{op}({names[0]}, {names[1]})"
        return self.arithmetic(op, names, self.dtypes[names[0]])

    def arithmetic(self, op: str, names: list[str], dtype: torch.dtype) -> str:
        a, b = names[0], names[-1]
        if self.dtypes[a] is torch.bfloat16:
            a, b = f"from_bf16({a})", f"from_bf16({b})"
        if op in INFIX:
            return f"{a} {INFIX[op]} {b}"
        if op in ("minimum", "maximum"):
            return f"{a} {RENAMED[op]} {b} || {a} != {a} ? {a} : {b}"
        if op == "neg" or op == "not":
            return f"-{a}" if op == "neg" else f"!{a}" if dtype is torch.bool else f"~{a}"
        if not dtype.is_floating_point:
            if op == "abs":
                return f"{a} < 0 ? -{a} : {a}"
            self.line(f"if ({b} == 0) return 2;")
            floored = {"floordiv": f"floor_div({a}, {b})", "remainder": f"floor_mod({a}, {b})"}
            return floored.get(op, f"{a} % {b}")
        if op == "remainder":
            return f"float_mod({a}, {b})"
        if op == "rsqrt":
            return f"1 / sqrt({a})"
        return f"{RENAMED.get(op, op)}({', '.join([a, b][: len(names)])})"


class PlainCGenerator:
    """Contract G with the C compiler ``cc``."""

    device = "cpu"

    def generate(self, kernel: Kernel) -> KernelSource:
        return KernelSource(kernel, Writer(kernel).write())

    def build(
        self, sources: Sequence[KernelSource], store: ArtifactStore
    ) -> list[Callable[..., None]]:
        names = [f"k{number}" for number in range(len(sources))]
        texts = [
            source.text.replace(f"int {source.kernel.name}(", f"int {name}(")
            for source, name in zip(sources, names)
        ]
        text = PRELUDE + "\n".join(texts)
        key = store.key("plain_c", text)
        path = store.get(key, ".so") or store.put(
            key, ".so", lambda target: compile_c(text, target)
        )
        library = ctypes.CDLL(str(path))
        return [launcher(source.kernel, library[name]) for source, name in zip(sources, names)]


def compile_c(text: str, target: Path) -> None:
    """Runs the compiler. Raises loopir.BuildError with its output."""
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory) / "kernels.c"
        source.write_text(text)
        flags = "-O2 -fwrapv -fno-builtin-lgamma -shared -fPIC".split()
        command = ["cc", *flags, str(source), "-o", str(target), "-lm"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise loopir.BuildError("cc failed", command=" ".join(command), output=result.stderr)


def launcher(kernel: Kernel, function: Callable[..., int]) -> Callable[..., None]:
    """Calls the C function; its non-zero results are errors."""
    function.argtypes = [ctypes.c_void_p] * len(kernel.buffers) + [ctypes.c_int64] * len(
        kernel.sizes
    )  # type: ignore[attr-defined]

    def launch(*args: torch.Tensor | int) -> None:
        error = function(
            *(arg.data_ptr() if isinstance(arg, torch.Tensor) else arg for arg in args)
        )
        if error:
            if error == 1:
                raise IndexError(f"{kernel.name}: index out of range")
            raise RuntimeError("ZeroDivisionError")

    return launch
