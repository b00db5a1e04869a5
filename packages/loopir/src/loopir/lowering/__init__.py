"""Lowering: prim graphs to loop nodes."""

from loopir.lowering.context import restride
from loopir.lowering.graph import TABLE, lower
from loopir.lowering.registry import LoweringTable

__all__ = ["TABLE", "LoweringTable", "lower", "restride"]
