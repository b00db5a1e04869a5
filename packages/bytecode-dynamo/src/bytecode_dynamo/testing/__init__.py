"""Testing kit: captured programs against eager mode, and Hypothesis strategies
(``bytecode_dynamo.testing.strategies``).

``python -m bytecode_dynamo.testing --capture module:attribute`` scores a capture, ``python -m
bytecode_dynamo.testing.fuzz`` checks many random programs in several processes.
"""

from .conformance import check_capture, own_capture
from .differences import difference
from .oracle import check_against_eager, check_source, load

__all__ = [
    "check_against_eager", "check_capture", "check_source", "difference", "load",
    "own_capture",
]  # fmt: skip
