"""Derivatives of elementwise prims: one line for each, its formulas in the order of the operands.

``none``: no prim computes the derivative, and ATen has none, either.
"""

from __future__ import annotations

from primops import prims
from primops.derivatives.formula import Formula
from primops.derivatives.table import derive, no_derivative
from primops.operand import to_dtype
from primops.prim import registered

ARITHMETIC = """
neg: -g
abs: g * sign(a)
exp: g * y
expm1: g * (y + 1)
log: g / a
log2: g / (a * log(2))
log1p: g / (a + 1)
sqrt: g / (2 * y)
rsqrt: -g * (y * y * y) / 2
sin: g * cos(a)
cos: -g * sin(a)
tan: g * (1 + y * y)
asin: g / sqrt(1 - a * a)
acos: -g / sqrt(1 - a * a)
atan: g / (1 + a * a)
sinh: g * cosh(a)
cosh: g * sinh(a)
tanh: g * (1 - y * y)
sign: 0
floor: 0
ceil: 0
trunc: 0
round: 0
add: g; g
sub: g; -g
mul: g * b; g * a
div: g / b; -g * (y / b)
pow: where(b == 0, 0, g * (b * a ** (b - 1))); where((a == 0) & (b >= 0), 0, g * (y * log(a)))
atan2: g * (b / (a * a + b * b)); -g * (a / (a * a + b * b))
maximum: where(a == b, g / 2, where(a < b, 0, g)); where(a == b, g / 2, where(b < a, 0, g))
minimum: where(a == b, g / 2, where(a > b, 0, g)); where(a == b, g / 2, where(b > a, 0, g))
fmod: g; -g * trunc(a / b)
remainder: g; -g * floor_div(a, b)
floor_div: 0; 0
where: none; where(cond, g, 0); where(cond, 0, g)
"""
SPECIAL = """
erf: g * (2 / sqrt(pi)) * exp(-a * a)
erfc: -g * (2 / sqrt(pi)) * exp(-a * a)
erfcx: g * (2 * a * y - 2 / sqrt(pi))
erfinv: g * (sqrt(pi) / 2) * exp(y * y)
lgamma: g * digamma(a)
digamma: g * trigamma(a)
trigamma: -2 * g * zeta(3, a)
ndtri: g * sqrt(2 * pi) * exp(y * y / 2)
log_ndtr: g * sqrt(2 / pi) / erfcx(-a / sqrt(2))
i0: g * i1(a)
i0e: g * (i1e(a) - sign(a) * y)
i1: where(a == 0, g / 2, g * (i0(a) - y / a))
i1e: where(a == 0, g / 2, g * (i0e(a) - y * (sign(a) + 1 / a)))
bessel_j0: -g * bessel_j1(a)
bessel_j1: where(a == 0, g / 2, g * (bessel_j0(a) - y / a))
bessel_y0: -g * bessel_y1(a)
bessel_y1: g * (bessel_y0(a) - y / a)
modified_bessel_i0: g * modified_bessel_i1(a)
modified_bessel_i1: where(a == 0, g / 2, g * (modified_bessel_i0(a) - y / a))
modified_bessel_k0: -g * modified_bessel_k1(a)
modified_bessel_k1: -g * (modified_bessel_k0(a) + y / a)
scaled_modified_bessel_k0: g * (y - scaled_modified_bessel_k1(a))
scaled_modified_bessel_k1: g * (y - scaled_modified_bessel_k0(a) - y / a)
spherical_bessel_j0: where(a == 0, 0, g * ((cos(a) - y) / a))
airy_ai: none
zeta: none; -g * (a * zeta(a + 1, b))
igamma: none; g * exp((a - 1) * log(b) - b - lgamma(a))
igammac: none; -g * exp((a - 1) * log(b) - b - lgamma(a))
chebyshev_polynomial_t: where(b < 1, 0, g * trunc(b) * chebyshev_polynomial_u(a, b - 1)); 0
chebyshev_polynomial_u: none; 0
chebyshev_polynomial_v: none; 0
chebyshev_polynomial_w: none; 0
shifted_chebyshev_polynomial_t: where(b < 1, 0, g * (2 * trunc(b)) * shifted_chebyshev_polynomial_u(a, b - 1)); 0
shifted_chebyshev_polynomial_u: none; 0
shifted_chebyshev_polynomial_v: none; 0
shifted_chebyshev_polynomial_w: none; 0
hermite_polynomial_h: where(b < 1, 0, g * (2 * trunc(b)) * hermite_polynomial_h(a, b - 1)); 0
hermite_polynomial_he: where(b < 1, 0, g * trunc(b) * hermite_polynomial_he(a, b - 1)); 0
laguerre_polynomial_l: none; 0
legendre_polynomial_p: none; 0
"""  # noqa: E501
CONSTANT = "0, constant between jumps"

for _line in (ARITHMETIC + SPECIAL).split("\n"):
    if not _line:
        continue
    _name, _, _texts = _line.partition(": ")
    _prim = registered()[_name]
    for _operand, _text in zip(_prim.operands, _texts.split("; "), strict=True):
        if _text == "none":
            _reason = "bool" if _operand == "cond" else "no prim computes it"
            no_derivative(_reason, _prim, operand=_operand)
        else:
            _shown = CONSTANT if _text == "0" else _text
            derive(_prim, _operand, _shown, Formula(_prim, _text))

derive(
    prims.convert, "a", "g converted back; none through integers",
    lambda g, y, a, *, dtype: to_dtype(g, a.dtype),
)  # fmt: skip
