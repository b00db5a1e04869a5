"""Arguments for every decomposition: operator name -> functions that make arguments from a
``Make``.
"""

from packages.primops.tests.cases import elementwise, lists, movement, reduction
from packages.primops.tests.cases.make import CASES, Make, calls

__all__ = ["CASES", "Make", "calls", "elementwise", "lists", "movement", "reduction"]
