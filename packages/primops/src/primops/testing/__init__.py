"""Testing kit: a small tracer, an oracle for numerics, and Hypothesis strategies
(``primops.testing.strategies``).
"""

from primops.testing.oracle import assert_matches, check_against_eager
from primops.testing.trace import trace

__all__ = ["assert_matches", "check_against_eager", "trace"]
