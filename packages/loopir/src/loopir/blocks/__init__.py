"""Equal parts of a functional graph, such as the layers of a transformer, become calls of one
graph, so that what follows is done once for all of them (docs/decisions/0020-repeated-blocks.md).
"""

from .outline import graphs_of, outline

__all__ = ["graphs_of", "outline"]
