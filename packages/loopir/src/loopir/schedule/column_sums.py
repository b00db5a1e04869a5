"""Column sums fused into row kernels: a row kernel adds the share of each row to sums over the
rows.

The gradients of a norm's weight and bias are sums over rows of values that the row pass has in
registers. A kernel has one reduction (C4.1), so the sums become stores with ``mode="add"`` into
zeroed memory; a code generator sums over the rows of one program or thread first. GPU programs add
in any order, so this is not done where results must be reproducible.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from symshapes.choices import current
from symshapes.decisions import may

from loopir.ir.kernel import Instruction, Value
from loopir.ir.node import LoopNode, LoweredGraph
from loopir.ir.program import Decision
from loopir.ir.simplify import points_of, product

from .dag import Dag
from .group import Group, Joint, Member, joints, merged
from .users import NOBODY

LEAST_ROWS = {"cuda": 1056, "cpu": 64}
IN_ORDER = frozenset({"cpu"})
"""Devices whose kernels add in a fixed order, and for symbolic sizes too."""
LONGEST_ROW = 8192
MOST_SUMS = 4
FUSED = "fused"
"""The rule of recorded fusions."""

SamePoints = Callable[[Group, Group, Joint, list[str]], bool]
Takes = Callable[[Group, Group, Group], bool]


@dataclass(frozen=True, slots=True)
class ColumnSums:
    """Where column sums may move. ``same_points(left, right, joint, buffers)``: whether each point
    reads from ``buffers`` only what it writes itself. ``takes(fused, left, right)``: whether the
    code generator takes the fused loops.
    """

    graph: LoweredGraph
    dag: Dag
    same_points: SamePoints
    takes: Takes


def add_sums_to_rows(where: ColumnSums) -> list[Decision]:
    """Moves column sums into row groups that read the same buffers, or that write what they sum;
    returns a description of each move.
    """
    decisions, dag = [], where.dag
    for name in sorted(dag.groups, key=lambda name: dag.groups[name].first):
        sums = dag.groups.get(name)
        if sums is None or not _are_column_sums(sums, where.graph):
            continue
        if not _are_worth_moving(sums, where.graph):
            continue
        for other in _readers(sums, dag):
            rows = dag.groups[other]
            if where.graph.facts.hint(points_of(rows.reduction)) > LONGEST_ROW:
                continue
            moved = _move(where, rows, sums)
            if moved is not None:
                decisions.append(moved)
                break
    return decisions


def add_sums(where: ColumnSums, rows: Group, sums: Group) -> Decision | None:
    """Moves column sums into a row group, whether or not that pays off; None if it isn't legal."""
    if not _are_column_sums(sums, where.graph) or rows.name not in _readers(sums, where.dag):
        return None
    return _move(where, rows, sums)


def _move(where: ColumnSums, rows: Group, sums: Group) -> Decision | None:
    joined = _joined(rows, sums, where)
    if joined is None:
        return None
    choices = current()
    if choices is not None:
        choices.extend(FUSED, f"sums of {sums.title} into {rows.title}")
    shared = ", ".join(sorted(sums.reads & joined.reads))
    reason = f"sums of columns while rows of {shared} are read"
    return Decision(rows.name, sums.name, True, reason, 0)


def _readers(sums: Group, dag: Dag) -> list[str]:
    names = dict.fromkeys(
        name for buffer in sorted(sums.reads) for name in dag.readers.get(buffer, NOBODY)
    )
    return [name for name in names if name in dag.groups and name != sums.name]


def _are_column_sums(group: Group, graph: LoweredGraph) -> bool:
    if group.extern is not None or not group.reduction or not group.is_fusable:
        return False
    device = graph.buffers[group.members[0].node.buffer].device.type
    reduced = [member.node for member in group.members if member.node.reduction]
    if device not in LEAST_ROWS:
        return False
    if any(member.inner and not member.node.reduction for member in group.members):
        return False
    rows, columns = points_of(group.reduction), points_of(group.ranges)
    if device not in IN_ORDER and (
        torch.are_deterministic_algorithms_enabled() or (rows * columns).free_symbols
    ):
        return False
    buffers = [graph.buffers[node.buffer] for node in reduced]
    return (
        all(map(_is_plain_sum, reduced))
        and all(b.dtype is torch.float32 for b in buffers)
        and _inner_reads(group).isdisjoint(group.writes)
    )


def _are_worth_moving(group: Group, graph: LoweredGraph) -> bool:
    device = graph.buffers[group.members[0].node.buffer].device.type
    rows, columns = (graph.facts.hint(points_of(x)) for x in (group.reduction, group.ranges))
    count = sum(bool(member.node.reduction) for member in group.members)
    return count <= MOST_SUMS and columns <= LONGEST_ROW and rows >= LEAST_ROWS[device]


def _inner_reads(group: Group) -> set[str]:
    return {
        name for member in group.members if member.node.reduction for name in member.node.read_names
    }


def _is_plain_sum(node: LoopNode) -> bool:
    reduces = [step for step in node.program if step.op == "reduce"]
    plain = len(node.epilogue) == 1 and node.epilogue[0].op == "store" and len(reduces) == 1
    return plain and reduces[0].args[0] == "sum" and node.program[-1] is reduces[0]


def _joined(rows: Group, sums: Group, where: ColumnSums) -> Group | None:
    """The row group with the sums, inserted into ``dag``; None if the two can't be fused."""
    graph, dag = where.graph, where.dag
    adds = [member for member in sums.members if member.node.reduction]
    if not rows.is_fusable or not rows.reduction or rows.name in dag.successors[sums.name]:
        return None
    if points_of(rows.ranges, rows.reduction) != points_of(sums.ranges, sums.reduction):
        return None
    if dag.step_between(rows, sums) is not None:
        return None
    nodes = [_adding(member.node) for member in adds]
    for member, node in zip(adds, nodes):
        dag.positions[id(node)] = dag.positions[id(member.node)]
    members = [Member(node, False, member.substitution) for node, member in zip(nodes, adds)]
    loops = [*sums.reduction, *sums.ranges]
    pointwise = replace(sums, members=members, ranges=loops, reduction=[])
    touched, written = rows.reads | set(rows.writes), sorted(_inner_reads(sums) & set(rows.writes))
    shared = sorted(
        touched & _inner_reads(sums),
        key=lambda name: -graph.facts.hint(product(graph.buffers[name].shape)),
    )
    for joint in joints(rows, pointwise, shared, graph.facts) if shared else ():
        fused = merged(rows, pointwise, joint)
        fits = points_of(joint.reduction) == points_of(sums.ranges)
        fits = fits and where.same_points(rows, pointwise, joint, written)
        allowed = fits and where.takes(fused, rows, sums)
        if allowed and may("fusion", "add sums to rows", sums.name):
            others = [member for member in sums.members if not member.node.reduction]
            dag.move_adds(rows, sums, fused, replace(sums, members=others, reduction=[]))
            _zero(nodes, sums, fused, dag)
            return fused
    return None


def _adding(node: LoopNode) -> LoopNode:
    """The sum, written as additions of its terms."""
    term, store = node.program[-1].args[1], node.epilogue[0]
    add = Instruction(None, "store", (store.args[0], store.args[1], term, "add"), None)
    return replace(
        node,
        kind="scatter",
        ranges=(*node.reduction, *node.ranges),
        reduction=(),
        program=(*node.program[:-1], add),
        epilogue=(),
    )


def _zero(nodes: list[LoopNode], sums: Group, fused: Group, dag: Dag) -> None:
    """A group that runs before ``fused`` and sets the sums to zero."""
    zeros: list[Member] = []
    for node in nodes:
        store, sum_ = node.program[-1], sums.writes[node.buffer]
        steps = (
            Instruction("zero", "constant", (0.0,), torch.float32),
            Instruction(None, "store", (store.args[0], store.args[1], Value("zero"), None), None),
        )
        loops = sum_.node.ranges
        zero = replace(node, kind="pointwise", ranges=loops, program=steps, reads=())
        dag.positions[id(zero)] = dag.positions[id(node)]
        columns = {item.symbol: sum_.substitution[item.symbol] for item in loops}
        zeros.append(Member(zero, False, columns))
    place = fused.first
    dag.add_before(fused, Group(f"{sums.name}.zero", None, zeros, sums.ranges, [], place, place))
