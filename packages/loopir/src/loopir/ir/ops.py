"""The vocabulary of loop bodies: each operation, its operands and its dtype rule.

A body is a function of an ops handler; each handler implements exactly these operations. Arithmetic
follows IEEE 754, except where torch has a rule of its own (``minimum`` and ``maximum`` return NaN
if an operand is NaN).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch


class DtypeRule(Enum):
    """How the result dtype follows from the operands."""

    SAME = "the operands' dtype"
    BOOL = "bool"
    FLOAT32 = "float32"
    GIVEN = "stated by the operation"
    NONE = "no result"


class Domain(Enum):
    """The dtypes that an operation accepts. float16 and bfloat16 are storage only (clause C4.3)."""

    ANY = "any"
    NUMBER = "float32, float64 and integers"
    FLOAT = "float32, float64"
    INTEGER = "integers and bool"


@dataclass(frozen=True, slots=True)
class OpSpec:
    """One operation: its name, the number of SSA value operands, its dtype rule, operand domain and
    meaning.
    """

    name: str
    arity: int
    rule: DtypeRule
    domain: Domain
    meaning: str


def _same(domain: Domain, arity: int, **meanings: str) -> list[OpSpec]:
    return [
        OpSpec(name.rstrip("_"), arity, DtypeRule.SAME, domain, text)
        for name, text in meanings.items()
    ]


MEMORY = [
    OpSpec(
        "load",
        0,
        DtypeRule.GIVEN,
        Domain.ANY,
        "buffer[index]; with a mask value, `other` where the mask is false",
    ),
    OpSpec(
        "store", 1, DtypeRule.NONE, Domain.ANY, "buffer[index] = value; mode 'add' adds atomically"
    ),
]
INDEXING = [
    OpSpec("index_expr", 0, DtypeRule.GIVEN, Domain.ANY, "the value of an index expression"),
    OpSpec(
        "indirect",
        1,
        DtypeRule.NONE,
        Domain.INTEGER,
        "an index symbol that holds the value, checked against [0, size)",
    ),
]
CONVERSION = [
    OpSpec("constant", 0, DtypeRule.GIVEN, Domain.ANY, "a number"),
    OpSpec(
        "cast",
        1,
        DtypeRule.GIVEN,
        Domain.ANY,
        "conversion by ATen's rules (float to int truncates, to bool is != 0)",
    ),
    OpSpec("bitcast", 1, DtypeRule.GIVEN, Domain.ANY, "same bits, another dtype of the same width"),
]
UNARY = [
    *_same(Domain.NUMBER, 1, neg="-a", abs="|a|"),
    *_same(
        Domain.FLOAT,
        1,
        floor="round down",
        ceil="round up",
        trunc="round to zero",
        round="round half to even",
        exp="e**a",
        expm1="e**a - 1",
        log="ln a",
        log2="log2 a",
        log1p="ln(1 + a)",
        sqrt="square root",
        rsqrt="1 / sqrt(a)",
        sin="sine",
        cos="cosine",
        tan="tangent",
        atan="arc tangent",
        sinh="hyperbolic sine",
        cosh="hyperbolic cosine",
        tanh="hyperbolic tangent",
        erf="error function",
        lgamma="ln |gamma(a)|",
    ),
    *_same(Domain.INTEGER, 1, not_="bitwise complement; logical for bool"),
]
BINARY = [
    *_same(
        Domain.NUMBER,
        2,
        add="a + b",
        sub="a - b",
        mul="a * b",
        minimum="smaller, NaN wins",
        maximum="larger, NaN wins",
        remainder="a - b * floor(a / b), sign of b",
        fmod="a - b * trunc(a / b), sign of a",
    ),
    *_same(Domain.FLOAT, 2, div="a / b", pow="a ** b", atan2="angle of (b, a)"),
    *_same(
        Domain.INTEGER,
        2,
        floordiv="floor(a / b)",
        and_="bitwise and",
        or_="bitwise or",
        xor="bitwise exclusive or",
        lshift="a << b",
        rshift="arithmetic a >> b",
    ),
]
COMPARISON = [
    OpSpec(name, 2, DtypeRule.BOOL, Domain.ANY, text)
    for name, text in {"eq": "a == b", "ne": "a != b", "lt": "a < b", "le": "a <= b"}.items()
]
SELECTION = [OpSpec("where", 3, DtypeRule.SAME, Domain.ANY, "b if the bool a, else c")]
RANDOM = [
    OpSpec(
        "uniform",
        2,
        DtypeRule.FLOAT32,
        Domain.INTEGER,
        "float32 in [0, 1): top 24 bits of lane c % 4 of Philox4x32-10(key=seed, counter=(lo32(c "
        "// 4), hi32(c // 4), 0, 0)), "
        "times 2**-24",
    ),
    OpSpec(
        "uniform16",
        2,
        DtypeRule.FLOAT32,
        Domain.INTEGER,
        "float32 in [0, 1), its upper 16 bits its own and the others its neighbour's: top 24 bits "
        "of lane c % 8 // 2 of "
        "Philox4x32-7(key=seed, counter=(lo32(c // 8), hi32(c // 8), 1, 0)), the halves swapped "
        "for odd c, times 2**-24",
    ),
]
COLLECTIVE = [
    OpSpec(
        "reduce",
        1,
        DtypeRule.GIVEN,
        Domain.ANY,
        "combines the value over `reduction`; kinds: see REDUCTIONS",
    ),
    OpSpec(
        "scan",
        1,
        DtypeRule.SAME,
        Domain.NUMBER,
        "inclusive prefix over the single `reduction` range, in order; kinds: sum, prod",
    ),
]

OPS: dict[str, OpSpec] = {
    spec.name: spec
    for group in (
        MEMORY,
        INDEXING,
        CONVERSION,
        UNARY,
        BINARY,
        COMPARISON,
        SELECTION,
        RANDOM,
        COLLECTIVE,
    )
    for spec in group
}

ARGUMENTS: dict[str, tuple[str, ...]] = {
    "load": ("buffer", "index"),
    "store": ("buffer", "index", "value"),
    "index_expr": ("expression",),
    "indirect": ("value", "expression"),
    "constant": ("number",),
    "reduce": ("kind", "value"),
    "scan": ("kind", "value"),
}
"""The kinds of an operation's arguments, where not all are values. In the text form they are
followed by the dtype, if the operation states one, and by mask and mode as keywords.
"""

REDUCTIONS: dict[str, str] = {
    "sum": "sum, starting at 0",
    "prod": "product, starting at 1",
    "max": "maximum, NaN wins; starts at the dtype's lowest value",
    "min": "minimum, NaN wins; starts at the dtype's highest value",
    "argmax": "flat position (row-major over `reduction`) of the first maximum, NaN counts as the "
    "largest; int64",
    "argmin": "flat position of the first minimum, NaN counts as the smallest; int64",
    "any": "or of bools",
    "all": "and of bools",
}
REDUCED_DTYPES: dict[str, torch.dtype] = {
    **dict.fromkeys(("argmax", "argmin"), torch.int64),
    **dict.fromkeys(("any", "all"), torch.bool),
}
"""Result dtypes of the reductions that don't return the dtype of their operand."""
