"""Lowering: prim graphs to loop nodes."""

from .context import restride
from .graph import TABLE, check_graph, lower
from .registry import LoweringTable

__all__ = ["TABLE", "LoweringTable", "check_graph", "lower", "restride"]
