"""Arithmetic of numbers that change between calls, in a program that catches what it raises.

What held for the numbers of one call held for all: that Python raises, or that it does not. What
the symbols could not do reached the program as an exception.
"""

from __future__ import annotations

import math

import bytecode_dynamo
import pytest
import torch
import torchstrata

EXPRESSIONS = """
a//b
a%b
a/b
divmod(a,b)
a**b
b**a
a**-1
a**0.5
(-a)**b
math.sqrt(a)
math.log(a)
math.log2(b)
math.log(a,b)
math.acos(a)
math.atan2(a,b)
math.fmod(a,b)
math.pow(a,b)
math.exp(a*300)
int(a)
round(a)
round(a/2,1)
math.floor(a)
math.ceil(b)
math.trunc(a)
float(a)
abs(a)
max(a,b)
min(a,b)
bool(a)
a and b
not a
a if a>b else b
int(a)<<int(b)
int(a)>>int(b)
int(a)&int(b)
int(a)^int(b)
~int(a)
math.hypot(a,b)
math.copysign(a,b)
math.isfinite(a)
math.gcd(int(a),int(b))
math.comb(int(a),int(b))
math.isqrt(int(a))
math.factorial(int(a))
[1,2,3][int(a)]
list(range(0,7,int(b)))
'xy'*int(a)
(1,2)*int(b)
f'{a:.2f}'
str(a)
a.is_integer()
complex(a,b)
int(a).bit_length()
a<b<3
a==b
sum([a,b,1])
pow(int(a),int(b),3)
pow(3,int(a),5)
-a
+a
math.degrees(a)
math.tan(a)
math.modf(a)
math.ldexp(a,int(b))
math.frexp(a)
math.remainder(a,b)
math.dist([a],[b])
math.prod([a,b])
math.lgamma(a)
math.gamma(a)
math.erf(a)
math.cbrt(a)
math.log1p(a)
math.expm1(a)
math.sinh(a)
math.asin(a)
math.atanh(a)
math.acosh(a)
a.as_integer_ratio()
float(a).hex()
int(a).to_bytes(2,'big')
chr(int(a))
bin(int(a))
divmod(int(a),int(b))
sorted([a,b,1])
[a,b].index(1)
{a:1}.get(b)
a in (0,1,2)
slice(int(a),int(b)).indices(5)
'abcdef'[int(a):int(b)]
[1,2,3,4][::int(b)]
float('%.1f'%a)
isinstance(a,float)
type(a).__name__
a is b
""".strip().splitlines()
INTS = [(3, 2), (1, 0), (2, 5), (0, 3), (-1, 2), (4, -2), (0, 0), (7, 1), (-3, -2), (1, 1)]
FLOATS = [
    (0.5, 2.0), (1.5, 0.0), (-1.0, 0.5), (2.0, -1.0), (0.0, 3.0), (math.inf, 1.0), (math.nan, 2.0),
    (-0.0, 1.0), (1.0, 1.0),
    (3.5, 1e3),
]  # fmt: skip
MIXED = [(3, 0.5), (2, 0.0), (-1, 0.5), (0, -1.0), (4, 2.0), (5, math.inf)]
NUMBERS = {"ints": INTS, "floats": FLOATS, "mixed": MIXED}


@pytest.fixture(autouse=True)
def no_limit():
    with bytecode_dynamo.config.patch(recompile_limit=64):
        yield


def program(expression):
    lines = [
        "def function(x, a, b):",
        "    try:",
        f"        result = {expression}",
        "    except Exception as error:",
        "        result = type(error).__name__",
        "    return x * 1, result",
    ]
    namespace = {"math": math}
    exec("\n".join(lines), namespace)
    return namespace["function"]


def results(call, numbers):
    found = [call(torch.ones(2), a, b)[1] for a, b in numbers]
    return [(type(result), repr(result)) for result in found]


@pytest.mark.parametrize("expression", EXPRESSIONS)
@pytest.mark.parametrize("kind", NUMBERS)
def test_results_are_those_of_python(expression, kind):
    function, numbers = program(expression), NUMBERS[kind]
    compiled = torchstrata.compile(function, backend="eager")
    assert results(compiled, numbers) == results(function, numbers)


@pytest.mark.slow
@pytest.mark.parametrize("expression", EXPRESSIONS)
@pytest.mark.parametrize("kind", NUMBERS)
@pytest.mark.parametrize("start", [1, 2, 3, 5])
@pytest.mark.parametrize("step", [1, -1])
def test_in_other_orders(expression, kind, start, step):
    numbers = (NUMBERS[kind][start:] + NUMBERS[kind][:start])[::step]
    function = program(expression)
    assert results(torchstrata.compile(function, backend="eager"), numbers) == results(
        function, numbers
    )


TRAPS = {
    "//": lambda i: i // (i - 2),
    "%": lambda i: i % (i - 2),
    "/": lambda i: i / (i - 2),
    "divmod": lambda i: divmod(i, i - 2),
    "float, //": lambda i: 5.0 // (i - 2),
    "** -1": lambda i: (i - 2) ** -1,
    "<<": lambda i: 1 << (i - 2),
    "sqrt": lambda i: math.sqrt(i - 2),
    "pop": lambda i: [1, 2, 3].pop(i - 2),
    "range": lambda i: list(range(0, 5, i - 2)),
    "round": lambda i: round(float(i) / (i - 2)),
}


@pytest.mark.parametrize("trap", TRAPS)
@pytest.mark.parametrize(
    "order", [(1, 2, 3, 4, 0, 5), (2, 1, 3, 4, 0), (3, 2, 1, 0, 5, 4), (3, 4, 2, 5, 1, 0, 2)]
)
def test_a_divisor_that_is_zero_once(trap, order):
    def function(x, i):
        try:
            result = TRAPS[trap](i)
        except (ArithmeticError, ValueError, IndexError):
            result = "raised"
        return x * 1, result

    compiled = torchstrata.compile(function, backend="eager")
    assert [compiled(torch.ones(2), i)[1] for i in order] == [
        function(torch.ones(2), i)[1] for i in order
    ]


def test_floats_that_become_constant():
    """An index fixes the number after a float was computed from it: SymPy's 1.0 - 1 is an
    integer.
    """

    def function(x, i, items):
        numbers = i / i + i, float(i) + 1, (i + 0.5) - 0.5, i * 1.0
        return x * items[i], numbers

    compiled = torchstrata.compile(function, backend="eager")
    items = [torch.ones(2)] * 4
    for i in (3, -1, 2):
        assert repr(compiled(torch.ones(2), i, items)) == repr(function(torch.ones(2), i, items))
