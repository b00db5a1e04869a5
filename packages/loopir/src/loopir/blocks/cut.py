"""Where a periodic stretch of calls is cut into blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import fx

from .keys import is_library_call, is_view
from .runs import Run


def depths_of(nodes: Sequence[fx.Node]) -> dict[fx.Node, int]:
    """The most library calls on a path to each node, itself included."""
    depths: dict[fx.Node, int] = {}
    for node in nodes:
        before = max((depths.get(x, 0) for x in node._input_nodes), default=0)
        depths[node] = before + is_library_call(node.target)
    return depths


def best_cut(
    calls: Sequence[fx.Node],
    places: Mapping[fx.Node, int],
    depths: Mapping[fx.Node, int],
    run: Run,
) -> int | None:
    """The number of calls of a run that come before the first block; None if it is better not cut.

    Between blocks nothing is fused. So no value may cross the cut that loops read with no library
    call on any way there, and blocks have library calls. Of such cuts the one is
    chosen that the fewest values cross, and the fewest that are read in another shape.
    """
    period, start = run.period, run.start
    first, end = start + period, start + 2 * period
    feeds = _feeding_loops(calls, places, depths, first, min(end + period, run.start + run.length))
    parted, crossing, viewed = counts = [[0] * (2 * period + 1) for _ in range(3)]

    def add(counts: list[int], made: int, read: int) -> None:
        """Counts a value for the cuts after ``made`` and not after ``read``."""
        counts[made - first + 1] += 1
        counts[min(read, made + period) - first + 1] -= 1

    for place in range(first, end):
        node = calls[place]
        users = [places[user] for user in node.users if user in places]
        if not users:
            continue
        add(crossing, place, max(users))
        near = [
            user
            for user in users
            if feeds.get(user)
            and (depths[calls[user]] == depths[node] or not _leads_to_library(calls, place, user))
        ]
        if isinstance(node.meta["val"], tuple | list):  # its results stay together
            near = users
        if near:
            add(parted, place, max(near))
        views = [u for u in users if is_view(calls[u].target)]
        if views:
            add(viewed, place, max(views))
    costs = zip(*(_folded(each, period) for each in counts))
    least, best = min((cost, cut) for cut, cost in enumerate(costs))
    has_library_call = any(is_library_call(node.target) for node in calls[first:end])
    return best if has_library_call and not least[0] else None


def _leads_to_library(calls: Sequence[fx.Node], made: int, read: int) -> bool:
    """Whether a way from one call to another leads through a library call."""
    ways = {calls[made]: False}
    for place in range(made + 1, read + 1):
        node = calls[place]
        found = [ways[x] for x in node._input_nodes if x in ways]
        if found:
            ways[node] = any(found) or is_library_call(node.target)
    return ways[calls[read]]


def _feeding_loops(
    calls: Sequence[fx.Node],
    places: Mapping[fx.Node, int],
    depths: Mapping[fx.Node, int],
    first: int,
    end: int,
) -> dict[int, bool]:
    """By position: whether a call is computed by loops, or a view that such a call reads with no
    library call between them.
    """
    feeds: dict[int, bool] = {}
    for place in reversed(range(first, end)):
        node = calls[place]
        feeds[place] = not is_library_call(node.target)
        if is_view(node.target):
            feeds[place] = any(
                feeds.get(places.get(user, -1)) and depths[user] == depths[node]
                for user in node.users
            )
    return feeds


def _folded(changes: Sequence[int], period: int) -> list[int]:
    """Sums of ``changes`` up to each position, added up for positions a period apart."""
    totals, held = [0] * period, 0
    for place, change in enumerate(changes):
        held += change
        totals[place % period] += held
    return totals
