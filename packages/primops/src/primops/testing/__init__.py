"""Testing kit: a small tracer, an oracle for numerics, Hypothesis strategies
(``primops.testing.strategies``), and a conformance kit for tables of decompositions.

``python -m primops.testing --decompositions module:attribute`` prints the kit's table, ``python -m
primops.testing derivatives`` that of the prims' derivatives.
"""

from primops.testing.conformance import check_decompositions
from primops.testing.oracle import assert_matches, check_against_eager
from primops.testing.trace import trace

__all__ = ["assert_matches", "check_against_eager", "check_decompositions", "trace"]
