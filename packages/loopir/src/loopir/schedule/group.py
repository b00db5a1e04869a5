"""Groups of nodes that become one step of the program, and whether two groups can be merged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import sympy

from loopir.ir.expr import substitute, symbol
from loopir.ir.kernel import Range
from loopir.ir.node import ExternNode, LoopNode
from loopir.ir.simplify import ONE, ZERO, Facts, extents_of, linear_parts, points_of

from .align import Refinement, Substitution, refine

SINGLE = Range(symbol("h0"), ONE)
"""The reduction of loops that all have one element."""


@dataclass(slots=True, eq=False)
class Member:
    """A loop node in a group. ``inner``: its program runs per point of ranges x reduction.
    ``substitution`` maps the node's loop symbols to the group's.
    """

    node: LoopNode
    inner: bool
    substitution: Substitution

    def moved(self, inner: bool | None, change: Substitution) -> Member:
        """The member in a group whose loop symbols ``change`` substitutes."""
        substitution = {s: substitute(e, change) for s, e in self.substitution.items()}
        return Member(self.node, self.inner if inner is None else inner, substitution)

    @property
    def store_index(self) -> sympy.Expr:
        """The index that it writes, in the symbols of the group."""
        return substitute(self.node.store_index, self.substitution)


@dataclass(slots=True, eq=False)
class Group:
    """One step: an extern call, or loop nodes over common ranges. ``first`` and ``last`` bound its
    position in program order.

    An extern call for which a backend has a template can have both: members that continue from the
    operator's result, which they load as buffer ``product``, and ``prologues``, groups that compute
    its operand of that name.
    """

    name: str
    extern: ExternNode | None
    members: list[Member]
    ranges: list[Range]
    reduction: list[Range]
    first: int
    last: int
    product: str = ""
    prologues: tuple[tuple[str, Group], ...] = ()

    @property
    def title(self) -> str:
        """``name``, after the node of the graph from which its first part comes."""
        first = self.extern if self.extern is not None else self.members[0].node
        return f"{next((name for name, _ in first.origins), '')}:{self.name}"

    @property
    def is_fusable(self) -> bool:
        """Whether it can be fused: not scatters, scans, or extern calls without a template."""
        if self.extern is not None and not self.product:
            return False
        return all(m.node.kind in ("pointwise", "reduction") for m in self.members)

    @property
    def is_call(self) -> bool:
        """Whether it is an extern call without fused loops."""
        return self.extern is not None and len(self.members) <= 1 and not self.prologues

    @property
    def is_ordered(self) -> bool:
        """Whether the position along the reduction matters (argmax, argmin)."""
        return any(
            step.op == "reduce" and str(step.args[0]).startswith("arg")
            for m in self.members
            for step in m.node.program
        )

    @property
    def writes(self) -> dict[str, Member]:
        """Buffers written by loops, by name."""
        return {member.node.buffer: member for member in self.members}

    @property
    def parts(self) -> set[str]:
        """Buffers of which it writes only some elements, and other groups the rest."""
        return {member.node.buffer for member in self.members if member.node.is_part}

    @property
    def reads(self) -> set[str]:
        """Buffers read."""
        names = {name for member in self.members for name in member.node.read_names} - {
            self.product
        }
        if self.extern is not None:
            names |= self.extern.read_names
            for operand, producer in self.prologues:
                names = (names - {operand}) | producer.reads
        return names

    def accesses(self, buffer: str) -> Iterator[tuple[sympy.Expr, bool]]:
        """The index (in the symbols of the group) of every load and store of ``buffer``, and
        whether it is masked.
        """
        for member in self.members:
            if member.node.buffer == buffer:
                yield member.store_index, False
            for access in member.node.reads:
                if access.buffer == buffer:
                    yield substitute(access.index, member.substitution), access.masked


def group_of(node: LoopNode | ExternNode, position: int) -> Group:
    """A group of one node."""
    if isinstance(node, ExternNode):
        name = next(iter(node.result_names), f"call{position}")
        return Group(name, node, [], [], [], position, position)
    own = {item.symbol: item.symbol for item in (*node.ranges, *node.reduction)}
    member = Member(node, inner=bool(node.reduction), substitution=own)  # type: ignore[arg-type]
    return Group(
        node.buffer, None, [member], list(node.ranges), list(node.reduction), position, position
    )


@dataclass(slots=True)
class Joint:
    """The common loops of two groups that are merged."""

    ranges: list[Range]
    reduction: list[Range]
    left: Substitution
    right: Substitution
    left_inner: bool | None
    right_inner: bool | None


def joints(left: Group, right: Group, shared: list[str], facts: Facts) -> Iterator[Joint]:
    """Ways to give two groups common loops, the plain one first."""
    if bool(right.reduction) and not left.reduction:
        for joint in joints(right, left, shared, facts):
            yield Joint(
                joint.ranges,
                joint.reduction,
                joint.right,
                joint.left,
                joint.right_inner,
                joint.left_inner,
            )
        return
    for permutation in (None, *shared[:3]):
        joint = _joint(left, right, permutation, facts)
        if joint is not None:
            yield joint


def _joint(left: Group, right: Group, permutation: str | None, facts: Facts) -> Joint | None:
    if left.reduction and right.reduction:
        return _both_reduce(left, right, permutation, facts)
    if not left.reduction:
        refinement = _refine(left, right, left.ranges, right.ranges, permutation, facts)
        return refinement and Joint(
            [r for r, _ in refinement.loops], [], refinement.left, refinement.right, None, None
        )
    if points_of(right.ranges) == points_of(left.ranges):
        refinement = _refine(left, right, left.ranges, right.ranges, permutation, facts)
        if refinement is None:
            return None
        same = {item.symbol: item.symbol for item in left.reduction}
        ranges = [r for r, _ in refinement.loops]
        return Joint(
            ranges, left.reduction, {**refinement.left, **same}, refinement.right, None, False
        )
    refinement = _refine(
        left, right, [*left.ranges, *left.reduction], right.ranges, permutation, facts
    )
    if refinement is None:
        return None
    reduced = {item.symbol for item in left.reduction}
    ranges = [r for r, owner in refinement.loops if owner not in reduced]
    reduction = [r for r, owner in refinement.loops if owner in reduced] or [SINGLE]
    if left.is_ordered and not _keeps_order(left.reduction, refinement):
        return None
    return Joint(ranges, reduction, refinement.left, refinement.right, None, True)


def _keeps_order(reduction: list[Range], refinement: Refinement) -> bool:
    owners = [owner for _, owner in refinement.loops]
    places = [owners.index(item.symbol) for item in reduction if item.symbol in owners]
    return places == sorted(places)


def _both_reduce(left: Group, right: Group, permutation: str | None, facts: Facts) -> Joint | None:
    if permutation is not None and (left.is_ordered or right.is_ordered):
        return None
    outer = _refine(left, right, left.ranges, right.ranges, permutation, facts)
    if outer is None:
        return None
    inner = _refine(left, right, left.reduction, right.reduction, permutation, facts)
    if inner is None:
        return None
    ranges, reduction = [r for r, _ in outer.loops], [r for r, _ in inner.loops] or [SINGLE]
    return Joint(
        ranges, reduction, {**outer.left, **inner.left}, {**outer.right, **inner.right}, None, None
    )


def _refine(
    left: Group, right: Group, a: list[Range], b: list[Range], permutation: str | None, facts: Facts
) -> Refinement | None:
    reduced = {item.symbol for item in left.reduction}
    if permutation is None:
        return refine(a, b, reduced)
    a_strides, b_strides = (strides_of(group, permutation, facts) for group in (left, right))
    if a_strides is None or b_strides is None:
        return None
    return refine(_by_stride(a, a_strides), _by_stride(b, b_strides), reduced)


def _by_stride(loops: list[Range], strides: dict[sympy.Symbol, int]) -> list[Range]:
    """Sorts by falling strides; a loop on which the access does not depend keeps its position,
    outside.
    """
    return sorted(
        loops, key=lambda item: -abs(strides[item.symbol]) if item.symbol in strides else -(1 << 62)
    )


def strides_of(group: Group, buffer: str, facts: Facts) -> dict[sympy.Symbol, int] | None:
    """The strides of the group's loops in an access of ``buffer``, for the example sizes; None when
    no access is affine.
    """
    loops = [item.symbol for item in (*group.ranges, *group.reduction)]
    extents = extents_of(group.ranges, group.reduction)
    for index, _ in group.accesses(buffer):
        parts = linear_parts(facts.simplify(index, extents), loops)
        if parts is not None:
            return {
                symbol: facts.hint(coefficient)
                for symbol, coefficient in parts[0].items()
                if coefficient != ZERO
            }
    return None


def merged(left: Group, right: Group, joint: Joint) -> Group:
    """The two groups as one, members in program order."""
    members = [
        member.moved(None if member.node.reduction else inner, change)
        for group, inner, change in (
            (left, joint.left_inner, joint.left),
            (right, joint.right_inner, joint.right),
        )
        for member in group.members
    ]
    return replace(
        left if left.extern is not None else right,
        name=left.name,
        members=members,
        ranges=joint.ranges,
        reduction=joint.reduction,
        first=min(left.first, right.first),
        last=max(left.last, right.last),
    )
