"""Lowering: prim graphs to loop nodes."""

from loopir.lowering.graph import TABLE, lower
from loopir.lowering.registry import LoweringTable

__all__ = ["TABLE", "LoweringTable", "lower"]
