"""Vector-Jacobian rules of the prims, written in prims, and why the other prims have none."""

from primops.derivatives import elementwise, indexing, movement, none, reduction
from primops.derivatives.table import (
    DERIVATIVES,
    Derivative,
    derivative_of,
    describe,
    gradient_of,
    vjp,
)

__all__ = ["DERIVATIVES", "Derivative", "derivative_of", "describe", "gradient_of", "vjp"]

_FAMILIES = (elementwise, movement, indexing, reduction, none)
