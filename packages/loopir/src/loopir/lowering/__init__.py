"""Lowering: prim graphs to loop nodes."""

from loopir.lowering.context import restride
from loopir.lowering.graph import TABLE, check_graph, lower
from loopir.lowering.registry import LoweringTable, user_line

__all__ = ["TABLE", "LoweringTable", "check_graph", "lower", "restride", "user_line"]
