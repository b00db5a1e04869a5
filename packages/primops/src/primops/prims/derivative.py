"""What the derivative of each prim is, for the op set's documentation (``g``: incoming gradient,
``y``: result).
"""

from __future__ import annotations

from primops.prim import registered

_ELEMENTWISE = """
neg: -g; abs: g * sign(a); exp: g * y; expm1: g * (y + 1); log: g / a; log2: g / (a * ln 2); log1p:
g / (a + 1); sqrt: g / (2 * y); rsqrt: -g * y**3 / 2; sin: g * cos(a); cos: -g * sin(a); tan: g * (1
+ y*y); asin: g / sqrt(1 - a*a); acos: -g / sqrt(1 - a*a); atan: g / (1 + a*a); sinh: g * cosh(a);
cosh: g * sinh(a); tanh: g * (1 - y*y); erf: g * 2 / sqrt(pi) * exp(-a*a); lgamma: g * digamma(a);
add: g, g; sub: g, -g; mul: g * b, g * a; div: g / b, -g * y / b; pow: g * b * a**(b - 1), g * y *
log(a); atan2: g * b / (a*a + b*b), -g * a / (a*a + b*b); maximum: g to the larger, half to each of
equals; minimum: g to the smaller, half to each of equals; fmod: g, -g * trunc(a / b); remainder: g,
-g * floor(a / b); where: g where cond, g where not; convert: g converted back, none through
integers; erfc: -g * 2 / sqrt(pi) * exp(-a*a); erfinv: g * sqrt(pi) / 2 * exp(y*y); digamma: g *
trigamma(a); trigamma: g * polygamma(2, a); ndtri: g * sqrt(2 * pi) * exp(y*y / 2); i0: g * i1(a);
i0e: g * (i1e(a) - sign(a) * y); erfcx: g * (2 * a * y - 2 / sqrt(pi)); log_ndtr: g / erfcx(-a /
sqrt(2)) * sqrt(2 / pi); broadcast_in_dim: g summed over what was repeated; reshape: g in the old
shape; permute: g permuted back; slice: g padded with zeros; flip: g flipped; pad: g sliced; cat: g
sliced; window: g added up where windows overlap; index: g added up at the indices; index_put: g
with zeros at the indices (or g), g at the indices; gather: g added up at the indices; scatter: g
with zeros at the indices, g at the indices; scatter_add: g, g at the indices; sum: g repeated;
prod: g * y / a (by exclusive products where a is 0); amax: g to the maxima, in equal parts;
amin: g to the minima, in equal parts;
cumsum: the reversed running sum of g; cumprod: reversed running sum of g * y, over a
"""


def note_derivatives() -> None:
    """Fills in ``derivative`` of all prims but the extern ones and control flow."""
    pairs = (entry.partition(":") for entry in _ELEMENTWISE.split(";"))
    formulas = {name.strip(): " ".join(text.split()) for name, _, text in pairs}
    for name, prim in registered().items():
        if not prim.tags & {"extern", "control"}:
            is_special = "special" in prim.tags
            other = "not defined here; ATen's where it has one" if is_special else "none"
            prim.derivative = formulas.get(name, other)
