"""Minimum cuts of directed graphs."""

from __future__ import annotations

from collections.abc import Iterable

Edge = tuple[int, int, int | None]


def sink_side(edges: Iterable[Edge], source: int, sink: int) -> set[int]:
    """The nodes behind a minimum cut; of all minimum cuts the one nearest to the sink, which is unique.

    Args:
        edges: (tail, head, capacity), one at most per pair of nodes; an edge of capacity None is never cut.
        source: where flow starts.
        sink: where it ends.

    Raises ValueError when no finite cut exists.
    """
    # networkx takes longer to import than all of aotgrad, and programs without backward never get here
    import networkx as nx  # noqa: PLC0415
    from networkx.algorithms.flow import boykov_kolmogorov  # noqa: PLC0415

    graph = nx.DiGraph()
    graph.add_nodes_from((source, sink))
    for tail, head, capacity in edges:
        graph.add_edge(tail, head, **({} if capacity is None else {"capacity": capacity}))
    try:
        _, (_, behind) = nx.minimum_cut(graph, source, sink, flow_func=boykov_kolmogorov)
    except nx.NetworkXUnbounded as error:
        raise ValueError("every cut passes an edge that must not be cut") from error
    return behind
