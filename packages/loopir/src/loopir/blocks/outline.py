"""Replaces equal parts of a functional graph by calls of one graph."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from primops import TensorMeta, prims
from symshapes import LazyGraphModule, PlainGraph
from symshapes.choices import choose, current
from torch import fx

from .cut import best_cut, depths_of
from .keys import CallNumbers, calls_of
from .runs import MIN_COUNT, Run, find_runs

Cut: TypeAlias = tuple[Run, int]
"""A run, and the number of its calls before the first part."""


@dataclass(frozen=True, slots=True)
class Repeated:
    """Equal parts of a graph.

    Attributes:
        parts: the calls of each part, in one order.
        operands: the values that each part reads from outside, in one order.
        results: the positions in ``parts`` of the calls that any part gives to others.
    """

    parts: Sequence[Sequence[fx.Node]]
    operands: Sequence[Sequence[fx.Node]]
    results: Sequence[int]


def outline(gm: fx.GraphModule) -> fx.GraphModule:
    """The graph with calls of ``prims.call`` in the place of equal parts; ``gm`` itself if there
    are none. ``gm`` is left as it is.

    Parts are equal if their calls have the same operators, arguments, metadata and edges, and the
    values that they read have the same metadata. They have no constants and no sizes that depend on
    data.
    """
    calls = calls_of(gm.graph)
    numbers = CallNumbers()
    sequence = [numbers.of(node) for node in calls]
    runs = find_runs(sequence)
    if not runs and current() is None:
        return gm
    places = {node: place for place, node in enumerate(calls)}
    depths = depths_of(calls)
    cuts = [(run, best_cut(calls, places, depths, run)) for run in runs]
    repeat = partial(_repeated, calls, places, numbers.operands)
    found = {(run, cut): repeat(run, cut) for run, cut in cuts if cut is not None}
    wanted = _recorded_cuts([each for each in found if found[each] is not None], sequence)
    repeated = [found.get((run, cut)) or repeat(run, cut, least=1) for run, cut in wanted]
    repeated = [each for each in repeated if each is not None]
    return _Outlined(gm, repeated).run() if repeated else gm


def _recorded_cuts(cuts: Sequence[Cut], sequence: Sequence[int]) -> Sequence[Cut]:
    """The recorded runs of equal parts, each with the number of calls before its first part."""
    if current() is None:
        return cuts
    own = [f"{run.start} {run.period} {run.length} {cut}" for run, cut in cuts]
    text = choose("equal parts", "calls", ", ".join(own), partial(_are_runs, sequence))
    return [(Run(*run), cut) for *run, cut in _fields(text)]


def _are_runs(sequence: Sequence[int], text: str) -> bool:
    """Whether a text names parts of equal calls that do not overlap."""
    end = 0
    for part in sorted(_fields(text)):
        if len(part) != 4 or part[0] < end or part[1] < 1 or not 0 <= part[3] < part[1]:
            return False
        start, period, length, _ = part
        end = start + length
        places = range(start + period, end)
        if end > len(sequence) or any(sequence[i] != sequence[i - period] for i in places):
            return False
    return True


def _fields(text: str) -> list[list[int]]:
    parts = [part.split() for part in text.split(", ") if part]
    return [[int(x) if x.isdigit() else -1 for x in part] for part in parts]


def graphs_of(gm: fx.GraphModule) -> list[fx.GraphModule]:
    """The graph, and each graph that it calls, once."""
    called = [node.kwargs["graph"] for node in gm.graph.nodes if node.target is prims.call]
    return [gm, *dict.fromkeys(called)]  # type: ignore[list-item]


def _repeated(
    calls: Sequence[fx.Node],
    places: Mapping[fx.Node, int],
    operands: Mapping[fx.Node, Sequence[fx.Node]],
    run: Run,
    cut: int,
    least: int = MIN_COUNT,
) -> Repeated | None:
    """The equal parts of a run that is cut after ``cut`` calls; None if they are fewer than
    ``least``.
    """
    starts = range(run.start + cut, run.start + run.length - run.period + 1, run.period)
    parts = [calls[start : start + run.period] for start in starts]
    edges = [_edges(part, places, operands, start) for part, start in zip(parts, starts)]
    wanted, _ = Counter(edges).most_common(1)[0] if edges else ((), 0)
    parts = [part for part, own in zip(parts, edges) if own == wanted and _given(part)]
    if len(parts) < least:
        return None
    results = sorted({place for part in parts for place in _given(part)})
    metas = [parts[0][place].meta["val"] for place in results]
    if not all(isinstance(meta, torch.Tensor | TensorMeta) for meta in metas):
        return None
    return Repeated(parts, [_read(part, operands) for part in parts], results)


def _edges(
    part: Sequence[fx.Node],
    places: Mapping[fx.Node, int],
    operands: Mapping[fx.Node, Sequence[fx.Node]],
    start: int,
) -> tuple[int, ...]:
    """For each tensor that a call of the part reads, in order, its place in the part; for the n-th
    value from outside, -n.
    """
    outside: dict[fx.Node, int] = {}
    found = []
    for node in part:
        for x in operands[node]:
            place = places.get(x, -1) - start
            found.append(place if place >= 0 else outside.setdefault(x, -1 - len(outside)))
    return tuple(found)


def _read(part: Sequence[fx.Node], operands: Mapping[fx.Node, Sequence[fx.Node]]) -> list[fx.Node]:
    """The values that a part reads from outside."""
    inside = set(part)
    return [*dict.fromkeys(x for node in part for x in operands[node] if x not in inside)]


def _given(part: Sequence[fx.Node]) -> list[int]:
    """The positions of the calls whose values others read."""
    inside = set(part)
    return [i for i, node in enumerate(part) if any(user not in inside for user in node.users)]


class _Outlined:
    """Copies a graph; ``made`` maps its nodes to the copies."""

    def __init__(self, gm: fx.GraphModule, found: Sequence[Repeated]) -> None:
        self.gm = gm
        self.graph = PlainGraph()
        self.made: dict[fx.Node, fx.Node] = {}
        self.inside = {x for repeated in found for part in repeated.parts for x in part}
        self.ends = {
            part[-1]: (repeated, number)
            for repeated in found
            for number, part in enumerate(repeated.parts)
        }
        self.bodies = {id(repeated): _body(repeated) for repeated in found}

    def run(self) -> fx.GraphModule:
        for node in self.gm.graph.nodes:
            if node in self.ends:
                self._call(*self.ends[node])
            elif node not in self.inside:
                self.made[node] = self.graph.node_copy(node, self.made.__getitem__)
        result = LazyGraphModule(self.gm, self.graph, self.gm.__class__.__name__)
        result.meta.update(self.gm.meta)
        return result

    def _call(self, repeated: Repeated, number: int) -> None:
        part, body = repeated.parts[number], self.bodies[id(repeated)]
        operands = tuple(map(self.made.__getitem__, repeated.operands[number]))
        call = self.graph.call_function(prims.call, operands, {"graph": body})  # type: ignore[arg-type]
        call.meta["val"] = body.graph.output_node().meta["val"]
        if "stack_trace" in part[0].meta:
            call.meta["stack_trace"] = part[0].meta["stack_trace"]
        for place in _given(part):
            node, position = part[place], repeated.results.index(place)
            item = self.made[node] = self.graph.call_function(operator.getitem, (call, position))
            item.meta = dict(node.meta)


def _body(repeated: Repeated) -> fx.GraphModule:
    """The graph of the first of the parts."""
    graph, part = PlainGraph(), repeated.parts[0]
    made: dict[fx.Node, Any] = {}
    for position, given in enumerate(repeated.operands[0]):
        new = made[given] = graph.placeholder(f"in{position}")
        new.meta = {key: given.meta[key] for key in ("val", "static") if key in given.meta}
    for node in part:
        made[node] = graph.node_copy(
            node,
            lambda x: made[x] if x in made else x.meta["val"],  # a size, which is no operand
        )
    results = [part[place] for place in repeated.results]
    output = graph.output(tuple(made[node] for node in results))
    output.meta["val"] = tuple(_meta(node.meta["val"]) for node in results)
    return LazyGraphModule(torch.nn.Module(), graph)


def _meta(value: torch.Tensor | TensorMeta) -> TensorMeta:
    return value if isinstance(value, TensorMeta) else TensorMeta.from_tensor(value)
