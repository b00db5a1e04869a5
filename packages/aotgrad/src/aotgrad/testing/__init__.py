"""Testing kit: an oracle for backends (a compiled program against eager, down to aliases, versions
and gradients), and a conformance kit for ahead-of-time autograd.

``python -m aotgrad.testing --autograd module:attribute`` prints the kit's table.
"""

from .conformance import check_autograd, own_autograd
from .oracle import capture_symbolically, check_against_eager

__all__ = ["capture_symbolically", "check_against_eager", "check_autograd", "own_autograd"]
