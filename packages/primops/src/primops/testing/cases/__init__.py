"""Arguments for every decomposition: operator name -> functions that make arguments from a ``Make``."""

from primops.testing.cases import elementwise, lists, movement, reduction
from primops.testing.cases.make import CASES, Make, calls

__all__ = ["CASES", "Make", "calls", "elementwise", "lists", "movement", "reduction"]
