"""Testing kit: captured programs against eager mode, and Hypothesis strategies
(``bytecode_dynamo.testing.strategies``).

``python -m bytecode_dynamo.testing.fuzz`` checks many random programs in several processes.
"""

from .differences import difference
from .oracle import check_against_eager, check_source, load

__all__ = ["check_against_eager", "check_source", "difference", "load"]
