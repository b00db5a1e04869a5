"""What a graph is made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from torch import fx
from torch._ops import OpOverload

from primops.errors import user_line
from primops.externs import is_declared_extern, prim_of
from primops.prim import Prim


@dataclass(frozen=True, slots=True)
class Report:
    """Counts per prim and per extern operator; ``extern_prims``: the extern prims that those
    operators spell.

    ``undeclared`` lists extern operators that spell none.
    """

    prims: dict[str, int]
    externs: dict[str, int]
    extern_prims: dict[str, int]
    undeclared: tuple[str, ...]
    lines: dict[str, str]

    def __str__(self) -> str:
        rows = [
            f"{sum(self.prims.values())} calls of {len(self.prims)} prims, "
            f"{sum(self.externs.values())} extern calls"
        ]
        for name, number in self.externs.items():
            note = "  (no decomposition)" if name in self.undeclared else ""
            where = f"  {self.lines[name]}" if name in self.lines else ""
            rows.append(f"  {number:4} {name}{note}{where}")
        return "\n".join(rows)


def _nodes(gm: fx.GraphModule) -> Iterator[fx.Node]:
    for node in gm.graph.nodes:
        yield node
        for value in node.kwargs.values():
            if isinstance(value, fx.GraphModule):
                yield from _nodes(value)


def decomposition_report(gm: fx.GraphModule) -> Report:
    """Counts the prims and extern calls of a prim graph (those of branches and loops too), most
    frequent first.

    ``lines`` has the first user line per extern.
    """
    prims: Counter[str] = Counter()
    externs: Counter[str] = Counter()
    extern_prims: Counter[str] = Counter()
    undeclared: set[str] = set()
    lines: dict[str, str] = {}
    for node in _nodes(gm):
        if isinstance(node.target, Prim):
            prims[node.target.name] += 1
        elif isinstance(node.target, OpOverload):
            name = str(node.target)
            externs[name] += 1
            found = prim_of(node.target)
            extern_prims.update([found.name] if found else [])
            if not is_declared_extern(node.target):
                undeclared.add(name)
            line = user_line(node.meta.get("stack_trace"))
            if line is not None:
                lines.setdefault(name, line)
    prim_counts, extern_counts, kinds = (
        dict(counts.most_common()) for counts in (prims, externs, extern_prims)
    )
    return Report(prim_counts, extern_counts, kinds, tuple(sorted(undeclared)), lines)
