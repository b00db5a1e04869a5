"""Elementwise prims: arithmetic, comparison, selection, conversion.

Operands have one shape and one dtype; a number takes the dtype of the tensor operands. No
promotion, no broadcasting.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from primops.errors import PrimError
from primops.meta import TensorMeta, contiguous
from primops.prim import Prim, group
from primops.promotion import COMPUTE_FLOATS, INTEGER_DTYPES, is_number
from primops.shapes import same_shape

FLOATS = COMPUTE_FLOATS
NUMBERS = COMPUTE_FLOATS | INTEGER_DTYPES
INTEGERS = INTEGER_DTYPES | {torch.bool}
COMPARABLE = NUMBERS | {torch.bool}

EXACT = "correctly rounded"
FUNCTION = "at most 4 ULP"


def check_number(value: object, dtype: torch.dtype) -> None:
    """Raises PrimError when a number operand does not fit the dtype of the tensor operands."""
    if isinstance(value, complex) and not dtype.is_complex:
        raise PrimError(f"complex number {value} with {dtype}")
    is_float = isinstance(value, (float, torch.SymFloat))
    if is_float and not (dtype.is_floating_point or dtype.is_complex):
        raise PrimError(f"float number {value} with {dtype}")


def common_meta(*operands: TensorMeta | Any) -> TensorMeta:
    """The first tensor operand, after checking that all have its shape and dtype. Raises PrimError.

    Its device is the one that isn't the CPU, if any: there, a scalar of the CPU may have been
    broadcast.
    """
    first: TensorMeta | None = None
    for operand in operands:
        if not isinstance(operand, TensorMeta):
            continue
        if first is None:
            first = operand
        elif operand.dtype is not first.dtype:
            raise PrimError(f"dtypes {first.dtype} and {operand.dtype} differ")
        elif not same_shape(operand.shape, first.shape):
            raise PrimError(f"shapes {first.shape} and {operand.shape} differ")
    if first is None:
        raise PrimError("needs a tensor operand")
    for operand in operands:
        if is_number(operand):
            check_number(operand, first.dtype)
    return replace(first, device=_device_of(*operands))


def _device_of(*operands: TensorMeta | Any) -> torch.device:
    devices = [operand.device for operand in operands if isinstance(operand, TensorMeta)]
    return next((device for device in devices if device.type != "cpu"), devices[0])


def as_tensors(*operands: Any) -> list[torch.Tensor]:
    """Numbers turned into tensors of the tensor operands' dtype, shape and device."""
    like = next(x for x in operands if isinstance(x, torch.Tensor))
    return [
        x
        if isinstance(x, torch.Tensor)
        else torch.tensor(x, dtype=like.dtype, device=like.device).expand(like.shape)
        for x in operands
    ]


def _rule(
    domain: frozenset[torch.dtype], result: torch.dtype | None = None
) -> Callable[..., TensorMeta]:
    """The meta rule of prims on ``domain``, whose result has the operands' dtype by default."""

    def rule(*operands: TensorMeta | Any) -> TensorMeta:
        first = common_meta(*operands)
        if first.dtype not in domain:
            raise PrimError(f"does not take {first.dtype}")
        return contiguous(first.shape, result or first.dtype, first.device)

    return rule


def _where_rule(cond: TensorMeta, a: TensorMeta | Any, b: TensorMeta | Any) -> TensorMeta:
    first = common_meta(a, b)
    if cond.dtype is not torch.bool or not same_shape(cond.shape, first.shape):
        raise PrimError(f"condition is {cond.dtype} {cond.shape}, operands are {first.shape}")
    return contiguous(first.shape, first.dtype, _device_of(first, cond))


def _convert_rule(a: TensorMeta, *, dtype: torch.dtype) -> TensorMeta:
    return contiguous(a.shape, dtype, a.device)


def _bitcast_rule(a: TensorMeta, *, dtype: torch.dtype) -> TensorMeta:
    if a.dtype.itemsize != dtype.itemsize:
        raise PrimError(f"{a.dtype} and {dtype} differ in width")
    return contiguous(a.shape, dtype, a.device)


def _on_tensors(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda *operands: function(*as_tensors(*operands))


def _prim(
    signature: str, meaning: str, domain: frozenset[torch.dtype], *, numerics: str = EXACT,
    aten: str = "", tags: str = "", function: Callable[..., torch.Tensor] | None = None,
) -> Prim:  # fmt: skip
    name = signature.partition("(")[0]
    arity = "binary" if "," in signature else "unary"
    own = ["float", *tags.split()] if domain is FLOATS else tags.split()
    elementwise = group(
        f"elementwise {arity}", "elementwise", *own, dtype_rule="the operands' dtype"
    )
    reference = _on_tensors(function or getattr(torch, aten or name))
    return elementwise(signature, _rule(domain), reference, meaning, numerics=numerics)


def _comparison(name: str, meaning: str, *tags: str) -> Prim:
    comparison = group("comparison", "elementwise", *tags, dtype_rule="bool")
    reference = _on_tensors(getattr(torch, name))
    return comparison(f"{name}(a, b)", _rule(COMPARABLE, torch.bool), reference, meaning)


neg = _prim("neg(a)", "-a", NUMBERS)
abs = _prim("abs(a)", "|a|", NUMBERS)
sign = _prim("sign(a)", "-1, 0 or 1; 0 for NaN", NUMBERS, aten="sgn")
floor = _prim("floor(a)", "largest integer <= a", FLOATS)
ceil = _prim("ceil(a)", "smallest integer >= a", FLOATS)
trunc = _prim("trunc(a)", "a rounded toward zero", FLOATS)
round = _prim("round(a)", "a rounded to the nearest integer, ties to even", FLOATS)
exp = _prim("exp(a)", "e ** a", FLOATS, numerics=FUNCTION)
expm1 = _prim("expm1(a)", "e ** a - 1, accurate near 0", FLOATS, numerics=FUNCTION)
log = _prim("log(a)", "natural logarithm", FLOATS, numerics=FUNCTION)
log2 = _prim("log2(a)", "logarithm to base 2", FLOATS, numerics=FUNCTION)
log1p = _prim("log1p(a)", "log(1 + a), accurate near 0", FLOATS, numerics=FUNCTION)
sqrt = _prim("sqrt(a)", "square root", FLOATS)
rsqrt = _prim("rsqrt(a)", "1 / sqrt(a)", FLOATS, numerics=FUNCTION)
sin = _prim("sin(a)", "sine", FLOATS, numerics=FUNCTION)
cos = _prim("cos(a)", "cosine", FLOATS, numerics=FUNCTION)
tan = _prim("tan(a)", "tangent", FLOATS, numerics=FUNCTION)
asin = _prim("asin(a)", "arc sine", FLOATS, numerics=FUNCTION)
acos = _prim("acos(a)", "arc cosine", FLOATS, numerics=FUNCTION)
atan = _prim("atan(a)", "arc tangent", FLOATS, numerics=FUNCTION)
sinh = _prim("sinh(a)", "hyperbolic sine", FLOATS, numerics=FUNCTION)
cosh = _prim("cosh(a)", "hyperbolic cosine", FLOATS, numerics=FUNCTION)
tanh = _prim("tanh(a)", "hyperbolic tangent", FLOATS, numerics=FUNCTION)
erf = _prim("erf(a)", "2 / sqrt(pi) * integral of exp(-t*t) from 0 to a", FLOATS, numerics=FUNCTION)
lgamma = _prim("lgamma(a)", "log |gamma(a)|", FLOATS, numerics="at most 16 ULP")
bitwise_not = _prim("bitwise_not(a)", "~a; logical for bool", INTEGERS)

SPECIAL = "at most 64 ULP of the result's scale"


def _special(names: str, domain: frozenset[torch.dtype] = FLOATS) -> dict[str, Prim]:
    """Prims of functions that ``torch.special`` (or ``torch``) implements under the same name."""
    made = {}
    for line in filter(None, map(str.strip, names.split(";"))):
        signature, _, meaning = line.partition(":")
        name = signature.partition("(")[0]
        function = getattr(torch.special, name, None) or getattr(torch, name)
        meaning = " ".join(meaning.split())
        made[name] = _prim(
            signature, meaning, domain, numerics=SPECIAL, tags="special", function=function
        )
    return made


SPECIAL_FUNCTIONS = _special("""
    erfc(a): 1 - erf(a), accurate for large a; erfinv(a): x with erf(x) = a; erfcx(a): exp(a*a) *
    erfc(a); digamma(a): derivative of lgamma; ndtri(a): x with normal distribution function a;
    log_ndtr(a): log of the normal distribution function;
    i0(a): modified Bessel function I0; i0e(a): exp(-|a|) * i0(a); i1(a): modified Bessel function
    I1; i1e(a): exp(-|a|) * i1(a);
    bessel_j0(a): Bessel function J0; bessel_j1(a): Bessel function J1; bessel_y0(a): Bessel
    function Y0; bessel_y1(a): Bessel function Y1; modified_bessel_i0(a): I0 over all reals;
    modified_bessel_i1(a): I1 over all reals; modified_bessel_k0(a): K0; modified_bessel_k1(a): K1;
    scaled_modified_bessel_k0(a): exp(a) * K0(a); scaled_modified_bessel_k1(a): exp(a) * K1(a);
    spherical_bessel_j0(a): sin(a) / a; airy_ai(a): Airy function Ai; zeta(a, b): sum over k >= 0 of
    (k + b) ** -a; igamma(a, b): regularised lower incomplete gamma function P(a, b);
    igammac(a, b): regularised upper incomplete gamma function Q(a, b);
    nextafter(a, b): the float after a toward b;
    chebyshev_polynomial_t(a, b): T_b(a), b truncated; chebyshev_polynomial_u(a, b): U_b(a), b
    truncated; chebyshev_polynomial_v(a, b): V_b(a), b truncated; chebyshev_polynomial_w(a, b):
    W_b(a), b truncated; shifted_chebyshev_polynomial_t(a, b): T_b(2a - 1);
    shifted_chebyshev_polynomial_u(a, b): U_b(2a - 1);
    shifted_chebyshev_polynomial_v(a, b): V_b(2a - 1);
    shifted_chebyshev_polynomial_w(a, b): W_b(2a - 1);
    hermite_polynomial_h(a, b): physicist's H_b(a);
    hermite_polynomial_he(a, b): probabilist's He_b(a);
    laguerre_polynomial_l(a, b): L_b(a); legendre_polynomial_p(a, b): P_b(a)
""")
SPECIAL_FUNCTIONS |= _special(
    "gcd(a, b): greatest common divisor; lcm(a, b): least common multiple", INTEGER_DTYPES
)
trigamma = _prim(
    "trigamma(a)", "second derivative of lgamma", FLOATS, numerics=SPECIAL, tags="special",
    function=lambda a: torch.polygamma(1, a),
)  # fmt: skip

add = _prim("add(a, b)", "a + b", NUMBERS, tags="commutative")
sub = _prim("sub(a, b)", "a - b", NUMBERS)
mul = _prim("mul(a, b)", "a * b", NUMBERS, tags="commutative")
div = _prim("div(a, b)", "a / b", FLOATS)
pow = _prim("pow(a, b)", "a ** b, as C's pow", FLOATS, numerics=FUNCTION)
atan2 = _prim("atan2(a, b)", "angle of the point (b, a)", FLOATS, numerics=FUNCTION)
maximum = _prim("maximum(a, b)", "the larger; NaN wins", NUMBERS, tags="commutative")
minimum = _prim("minimum(a, b)", "the smaller; NaN wins", NUMBERS, tags="commutative")
fmod = _prim("fmod(a, b)", "a - b * trunc(a / b), sign of a", NUMBERS)
remainder = _prim("remainder(a, b)", "a - b * floor(a / b), sign of b", NUMBERS)
floor_div = _prim("floor_div(a, b)", "floor(a / b)", NUMBERS, aten="floor_divide")
bitwise_and = _prim("bitwise_and(a, b)", "a & b; logical for bool", INTEGERS, tags="commutative")
bitwise_or = _prim("bitwise_or(a, b)", "a | b; logical for bool", INTEGERS, tags="commutative")
bitwise_xor = _prim("bitwise_xor(a, b)", "a ^ b; logical for bool", INTEGERS, tags="commutative")
shift_left = _prim("shift_left(a, b)", "a << b", INTEGER_DTYPES, aten="bitwise_left_shift")
shift_right = _prim(
    "shift_right(a, b)", "arithmetic a >> b", INTEGER_DTYPES, aten="bitwise_right_shift"
)

eq = _comparison("eq", "a == b", "commutative")
ne = _comparison("ne", "a != b; true for NaN", "commutative")
lt = _comparison("lt", "a < b")
le = _comparison("le", "a <= b")
gt = _comparison("gt", "a > b")
ge = _comparison("ge", "a >= b")

where = group("selection", "elementwise", dtype_rule="the dtype of a and b")(
    "where(cond, a, b)", _where_rule,
    lambda cond, a, b: torch.where(cond, *as_tensors(a, b)), "a where cond, else b",
)  # fmt: skip
_conversion = group("conversion", "elementwise", dtype_rule="dtype")
convert = _conversion(
    "convert(a, *, dtype)", _convert_rule, lambda a, *, dtype: a.to(dtype, copy=True),
    "a as dtype by ATen's rules: float to int truncates, to bool is a != 0, to a narrower "
    "float rounds to even",
    numerics=EXACT,
)  # fmt: skip
bitcast = _conversion(
    "bitcast(a, *, dtype)", _bitcast_rule, lambda a, *, dtype: a.contiguous().view(dtype),
    "the bits of a read as dtype, of the same width",
)  # fmt: skip
