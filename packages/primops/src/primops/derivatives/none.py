"""Prims without a derivative, by reason."""

from __future__ import annotations

from primops import prims
from primops.derivatives.table import no_derivative
from primops.prim import registered

no_derivative(
    "takes integers or bools",
    prims.bitwise_not, prims.bitwise_and, prims.bitwise_or, prims.bitwise_xor, prims.shift_left,
    prims.shift_right, registered()["gcd"], registered()["lcm"], prims.any, prims.all,
)  # fmt: skip
no_derivative("the result is bool", prims.eq, prims.ne, prims.lt, prims.le, prims.gt, prims.ge)
no_derivative("the result is a position", prims.argmax, prims.argmin)
no_derivative("bits are no number", prims.bitcast)
no_derivative("its values are a grid", registered()["nextafter"])
no_derivative("takes no tensor", prims.full, prims.iota)
no_derivative("a random number", prims.random_seed, prims.uniform, prims.uniform16)
no_derivative(
    "aotgrad differentiates the branches, and builds control flow of them",
    prims.cond, prims.while_loop, prims.scan, prims.call,
)  # fmt: skip
for _prim in registered().values():
    if "extern" in _prim.tags:
        no_derivative("aotgrad differentiates the ATen operator", _prim)
