"""The kernels of the conformance kit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch

from loopir.ir.text import format_dtype, method_name

from . import shapes

FLOATS = (torch.float32, torch.float64)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
HALVES = (torch.float16, torch.bfloat16)
ALL = (torch.bool, *INTEGERS, *HALVES, *FLOATS)


@dataclass(frozen=True, slots=True)
class Case:
    """A kernel with the sizes to run it for, value limits per input buffer ("*": the others), the
    error allowed, and the area that it belongs to.
    """

    name: str
    text: str
    sizes: tuple[tuple[int, ...], ...] = ((),)
    limits: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    rtol: float | None = None
    atol: float = 1e-6
    specials: tuple[float, ...] = ()
    area: str = "kernels"

    def tolerance_for(self, dtype: torch.dtype) -> float:
        """Relative error allowed for a result of this dtype."""
        if self.rtol is not None:
            return self.rtol
        return {
            torch.float64: 1e-9,
            torch.float32: 3e-6,
            torch.float16: 2e-3,
            torch.bfloat16: 1.6e-2,
        }.get(dtype, 0.0)


def pointwise(
    name: str, inputs: list[torch.dtype], result: torch.dtype, lines: list[str], **options: object
) -> Case:
    """A kernel over 67 points (a full vector and a tail): loads ``v0``, ``v1``, ..., runs ``lines``
    and stores ``out``.
    """
    parameters = [f"in{i}: In('{format_dtype(d)}', 67)" for i, d in enumerate(inputs)]
    loads = [f"v{i} = load(in{i}, [x0], '{format_dtype(d)}')" for i, d in enumerate(inputs)]
    body = "\n        ".join([*loads, *lines, "store(out0, [x0], out)"])
    text = f"""\
@kernel(device='cpu', vector='x0')
def {name}({", ".join([*parameters, f"out0: Out('{format_dtype(result)}', 67)"])}):
    for x0 in range(67):
        {body}
"""
    return Case(name, text, **options)  # type: ignore[arg-type]


UNARY_LIMITS: dict[str, tuple[float, float]] = {
    "log": (1e-3, 50), "log2": (1e-3, 50), "sqrt": (0, 50), "rsqrt": (1e-2, 50),
    "log1p": (-0.99, 50),
    "exp": (-80, 80), "expm1": (-20, 20), "sinh": (-15, 15), "cosh": (-15, 15), "lgamma": (0.1, 40),
    "sin": (-30, 30), "cos": (-30, 30), "tan": (-1.4, 1.4), "tanh": (-10, 10), "erf": (-5, 5),
}  # fmt: skip
FLOAT_UNARY = [
    "neg", "abs", "floor", "ceil", "trunc", "round", "exp", "expm1", "log", "log2", "log1p", "sqrt",
    "rsqrt", "sin",
    "cos", "tan", "atan", "sinh", "cosh", "tanh", "erf", "lgamma",
]  # fmt: skip
ANY_UNARY_SPECIALS = ("neg", "abs", "exp", "tanh", "sqrt", "erf", "floor", "round", "trunc", "ceil")


def unary_cases() -> Iterator[Case]:
    """Every unary operation on every dtype it takes."""
    for op in FLOAT_UNARY:
        for dtype in FLOATS:
            limits = {"in0": UNARY_LIMITS.get(op, (-10, 10))}
            specials = (
                (float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 0.5, 1.5, 2.5)
                if op in ANY_UNARY_SPECIALS
                else ()
            )
            rtol = (
                3e-5 if op in ("lgamma", "tan", "sinh", "cosh") and dtype is torch.float32 else None
            )
            name = f"{op}_{format_dtype(dtype)}"
            yield pointwise(
                name,
                [dtype],
                dtype,
                [f"out = {op}(v0)"],
                limits=limits,
                specials=specials,
                rtol=rtol,
            )
    for op in ("neg", "abs", "not"):
        for dtype in INTEGERS:
            low = 0 if dtype is torch.uint8 else -100
            name = f"{op}_{format_dtype(dtype)}"
            yield pointwise(
                name, [dtype], dtype, [f"out = {method_name(op)}(v0)"], limits={"in0": (low, 100)}
            )
    yield pointwise("not_bool", [torch.bool], torch.bool, ["out = not_(v0)"])


def binary_cases() -> Iterator[Case]:
    """Every binary operation on every dtype it takes."""
    yield from _float_binary_cases()
    yield from _integer_binary_cases()
    for op in ("and", "or", "xor"):
        yield pointwise(
            f"{op}_bool", [torch.bool, torch.bool], torch.bool, [f"out = {method_name(op)}(v0, v1)"]
        )


def _float_binary_cases() -> Iterator[Case]:
    nans = (float("nan"), float("inf"), 1.0, -2.0)
    for dtype in FLOATS:
        for op in [
            "add",
            "sub",
            "mul",
            "minimum",
            "maximum",
            "remainder",
            "fmod",
            "div",
            "pow",
            "atan2",
        ]:
            limits = {
                "in0": (0.1, 4) if op == "pow" else (-9, 9),
                "in1": (-3, 3) if op == "pow" else (0.5, 7),
            }
            specials = nans if op in ("add", "minimum", "maximum", "mul") else ()
            rtol = 3e-5 if op in ("remainder", "fmod") and dtype is torch.float32 else None
            name = f"{op}_{format_dtype(dtype)}"
            yield pointwise(
                name,
                [dtype, dtype],
                dtype,
                [f"out = {op}(v0, v1)"],
                limits=limits,
                specials=specials,
                rtol=rtol,
                atol=1e-5,
            )


def _integer_binary_cases() -> Iterator[Case]:
    for dtype in INTEGERS:
        low = 0 if dtype is torch.uint8 else -11
        variants = [
            (op, "", {"*": (low, 11)})
            for op in ("add", "sub", "mul", "minimum", "maximum", "and", "or", "xor")
        ]
        for op in ("remainder", "fmod", "floordiv"):
            variants.append((op, "", {"in0": (2 * low, 22), "in1": (1, 5)}))
            if low:
                variants.append((op, "_negative", {"in0": (2 * low, 22), "in1": (-5, -1)}))
        for op in ("lshift", "rshift"):
            variants.append((op, "", {"in0": (low, 11), "in1": (0, 3)}))
        for op, suffix, limits in variants:
            name = f"{op}{suffix}_{format_dtype(dtype)}"
            lines = [f"out = {method_name(op)}(v0, v1)"]
            yield pointwise(name, [dtype] * 2, dtype, lines, limits=limits)


def selection_cases() -> Iterator[Case]:
    """Comparisons and where."""
    for dtype in (torch.bool, *INTEGERS, *FLOATS):
        low = 0 if dtype is torch.uint8 else -2
        for op in ("eq", "ne", "lt", "le"):
            if dtype is torch.bool and op in ("lt", "le"):
                continue
            specials = (float("nan"), float("inf")) if dtype.is_floating_point else ()
            name = f"{op}_{format_dtype(dtype)}"
            yield pointwise(
                name,
                [dtype] * 2,
                torch.bool,
                [f"out = {op}(v0, v1)"],
                limits={"*": (low, 2)},
                specials=specials,
            )
    for dtype in ALL:
        limits = {"*": (0, 100)}
        yield pointwise(
            f"where_{format_dtype(dtype)}",
            [torch.bool, dtype, dtype],
            dtype,
            ["out = where(v0, v1, v2)"],
            limits=limits,
        )


def conversion_cases() -> Iterator[Case]:
    """Casts between all dtypes, bitcasts, constants and index values."""
    yield from _cast_cases()
    yield from _constant_cases()
    for dtype in HALVES:
        name = format_dtype(dtype)
        lines = [
            "v2 = cast(v0, 'float32')",
            "v3 = exp(v2)",
            "v4 = mul(v3, v2)",
            f"out = cast(v4, '{name}')",
        ]
        yield pointwise(f"compute_{name}", [dtype], dtype, lines)
    for op in ("uniform", "uniform16"):
        lines = ["v1 = index_expr(x0 + 5, 'int64')", f"out = {op}(v0, v1)"]
        yield pointwise(
            op,
            [torch.int64],
            torch.float32,
            lines,
            limits={"in0": (-(1 << 62), 1 << 62)},
            rtol=0.0,
            atol=0.0,
        )


def _cast_cases() -> Iterator[Case]:
    for source in ALL:
        for target in ALL:
            if source is target:
                continue
            low = 0 if torch.uint8 in (source, target) or source is torch.bool else -60
            name = f"cast_{format_dtype(source)}_{format_dtype(target)}"
            yield pointwise(
                name,
                [source],
                target,
                [f"out = cast(v0, '{format_dtype(target)}')"],
                limits={"in0": (low, 60)},
            )
    for a, b in (
        (torch.float32, torch.int32),
        (torch.float64, torch.int64),
        (torch.bfloat16, torch.int16),
    ):
        for source, target in ((a, b), (b, a)):
            name = f"bitcast_{format_dtype(source)}_{format_dtype(target)}"
            yield pointwise(
                name,
                [source],
                target,
                [f"out = bitcast(v0, '{format_dtype(target)}')"],
                limits={"in0": (0, 60)},
            )


def _constant_cases() -> Iterator[Case]:
    for dtype in ALL:
        number = "True" if dtype is torch.bool else "1.5" if dtype.is_floating_point else "3"
        name = f"constant_{format_dtype(dtype)}"
        yield pointwise(name, [], dtype, [f"out = constant({number}, '{format_dtype(dtype)}')"])
    for number in ("inf", "-inf", "nan"):
        name = f"constant_{number.replace('-', 'minus_')}"
        yield pointwise(name, [], torch.float32, [f"out = constant({number}, 'float32')"])
    for dtype in (*INTEGERS[3:], *FLOATS):
        index = "max(3*x0 - 7, min(x0, 20)) + (x0 // 5) - (x0 % 7)"
        yield pointwise(
            f"index_{format_dtype(dtype)}",
            [],
            dtype,
            [f"out = index_expr({index}, '{format_dtype(dtype)}')"],
        )


def reduction_cases() -> Iterator[Case]:
    """Every kind of reduction along rows, columns, everything, and several axes at once."""
    kinds = {
        "sum": (*FLOATS, torch.int32, torch.int64),
        "prod": (*FLOATS, torch.int64),
        "any": (torch.bool,),
        "all": (torch.bool,),
    }
    kinds |= dict.fromkeys(("max", "min", "argmax", "argmin"), (*FLOATS, torch.int32, torch.int64))
    for kind, dtypes in kinds.items():
        for dtype in dtypes:
            result = torch.int64 if kind.startswith("arg") else dtype
            limits = (
                {"in0": (0.7, 1.4)}
                if kind == "prod" and dtype.is_floating_point
                else {"in0": (-2, 9)}
            )
            for layout in ("rows", "columns", "all", "two_axes", "one"):
                text = shapes.REDUCTIONS[layout].format(
                    name=f"{kind}_{layout}_{format_dtype(dtype)}",
                    kind=kind,
                    dtype=format_dtype(dtype),
                    result=format_dtype(result),
                )
                rtol = 1e-4 if dtype is torch.float32 and not kind.startswith("arg") else None
                specials = (
                    (float("nan"),)
                    if kind in ("max", "min", "argmax", "argmin") and layout == "rows"
                    else ()
                )
                name = f"{kind}_{layout}_{format_dtype(dtype)}"
                yield Case(name, text, limits=limits, rtol=rtol, atol=1e-4, specials=specials)
    for kind in ("sum", "prod", "max", "min", "any", "all"):
        dtype = "bool" if kind in ("any", "all") else "float32"
        yield Case(
            f"{kind}_empty",
            shapes.EMPTY_REDUCTION.format(kind=kind, dtype=dtype),
            sizes=((0,), (1,), (17,)),
            atol=1e-4,
        )


def structure_cases() -> Iterator[Case]:
    """Whole kernels: several bodies, masks, gathers, scatters, scans, symbolic sizes, odd
    strides.
    """
    some = ((0,), (1,), (2,), (7,), (64,), (129,))
    for name, text in shapes.SYMBOLIC.items():
        yield Case(name, text, sizes=some, rtol=1e-4, atol=1e-5, limits=shapes.LIMITS.get(name, {}))
    for name, text in shapes.STATIC.items():
        yield Case(name, text, rtol=1e-4, atol=1e-5, limits=shapes.LIMITS.get(name, {}))
    for kind in ("sum", "prod"):
        for dtype in ("float32", "float64", "int64"):
            for layout, text in shapes.SCANS.items():
                name = f"scan_{kind}_{layout}_{dtype}"
                limits = {"in0": (0.8, 1.2) if "float" in dtype else (-2, 2)}
                text = text.format(name=name, kind=kind, dtype=dtype)
                yield Case(
                    name, text, sizes=((1,), (5,), (70,)), limits=limits, rtol=1e-4, atol=1e-4
                )


AREAS = {
    "unary operations": unary_cases,
    "binary operations": binary_cases,
    "comparison, selection": selection_cases,
    "conversions": conversion_cases,
    "reductions": reduction_cases,
    "whole kernels": structure_cases,
}
CASES = tuple(replace(case, area=area) for area, cases in AREAS.items() for case in cases())
