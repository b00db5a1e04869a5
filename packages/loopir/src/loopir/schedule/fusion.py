"""Which groups become one kernel: by estimated bytes of memory traffic saved, as far as the
contract of kernels allows.

Candidates are pairs that share a buffer, the largest saving first. A pair is fused when (1) its
loops align, (2) every load of a buffer that the other writes reads exactly what the same point
stored (C4.5), (3) no third step has to run between the two, and (4) the result still has enough
parallel work.
"""

from __future__ import annotations

import heapq
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import islice

import torch
from symshapes.choices import current
from symshapes.decisions import may

from loopir.backend import OffersTemplates
from loopir.ir.expr import substitute
from loopir.ir.node import LoweredGraph, Origin
from loopir.ir.program import Decision
from loopir.ir.simplify import extents_of, points_of
from loopir.options import Options

from .column_sums import FUSED, ColumnSums, add_sums, add_sums_to_rows
from .dag import UNKNOWN, Dag
from .group import Group, Joint, joints, merged
from .selection import Selection
from .template import build_template, is_operand, offer_template
from .users import NOBODY

MAX_MEMBERS = 64
MAX_BUFFERS = 40
MAX_INSTRUCTIONS = 1200
MAX_NEAR = 6
"""How many writers and how many readers of a buffer are candidates for each group that uses it."""
MAX_EXPLAINED = 32
SMALL_BUNDLE = 1 << 10
SMALL_WORK = 1 << 15
SHORT_LAUNCH = 1 << 22
"""Bytes that a GPU moves in the time of a launch: groups that move fewer are fused for whatever
they share.
"""
_ENTRY = re.compile(r"(?:sums of )?(\S+) (?:and|into) (\S+?)(?:, loops (?P<loops>\d+))?")


@dataclass(slots=True)
class Fusion:
    """Fuses the groups of a graph in place; ``decisions`` says what was considered."""

    graph: LoweredGraph
    options: Options
    dag: Dag
    templates: Mapping[str, OffersTemplates]
    selection: Selection
    decisions: list[Decision] = field(default_factory=list)
    _outputs: set[str] = field(default_factory=set)
    _bytes: dict[str, int] = field(default_factory=dict)
    _joint: int = 0

    def run(self) -> None:
        """Fuses while a fusion saves memory traffic; keeps the last decision on each pair."""
        self._outputs = self.graph.output_buffers
        self._offer_templates()
        if not self._repeat_known():
            self._search()
        last = {(decision.first, decision.second): decision for decision in self.decisions}
        self._explain_others(last)
        self.decisions = list(last.values())

    def _repeat_known(self) -> bool:
        """Repeats the recorded fusions, in order; False if there are none, or one is stale."""
        choices = current()
        known = None if choices is None else choices.sequence(FUSED)
        if choices is None or known is None:
            return False
        choices.extend(FUSED)
        for entry in known:
            if not self._repeat(entry):
                choices.extend(FUSED, stale=f"{entry} can't be fused")
                return False
        return True

    def _repeat(self, entry: str) -> bool:
        found = _ENTRY.fullmatch(entry)
        names = found.groups()[:2] if found else ()
        known = [self.dag.groups.get(name.rpartition(":")[2]) for name in names]
        left, right = known if known else (None, None)
        if found is None or left is None or right is None or left is right:
            return False
        if not entry.startswith("sums"):
            return self._try(left, right, joint=int(found["loops"] or 0)) is not None
        moved = add_sums(self._sums, right, left)
        self.decisions += [] if moved is None else [moved]
        return moved is not None

    def _search(self) -> None:
        queue: list[tuple[int, int, int, str, str]] = []
        seen: defaultdict[str, set[str]] = defaultdict(set)
        for group in list(self.dag.groups.values()):
            self._add_candidates(group, queue, seen)
        budget = 64 + 24 * len(self.dag.groups)
        while queue and budget > 0:
            _, _, _, a, b = heapq.heappop(queue)
            left, right = self.dag.groups.get(a), self.dag.groups.get(b)
            if left is None or right is None:
                continue
            budget -= 1
            fused = self._try(left, right)
            if fused is not None:
                for partner in seen.pop(fused.name, ()):
                    seen[partner].discard(fused.name)
                self._add_candidates(fused, queue, seen)
        self.decisions += add_sums_to_rows(self._sums)
        self._bundle_small()

    def _explain_others(self, known: dict[tuple[str, str], Decision]) -> None:
        """Adds the reasons why loops that share a buffer, and are near each other, were never
        candidates.
        """
        for buffer, writers in self.dag.writers.items():
            for first in filter(self.dag.groups.__contains__, writers):
                for second in self._near(buffer, self.dag.groups[first], MAX_EXPLAINED):
                    self._explain(first, second, known)

    def _explain(self, first: str, second: str, known: dict[tuple[str, str], Decision]) -> None:
        pair = sorted(
            (self.dag.groups[first], self.dag.groups[second]), key=lambda g: (g.first, g.last)
        )
        names = (_names(pair[0]), _names(pair[1]))
        if any(group.extern is not None for group in pair) or names in known:
            return
        alone = next((group.members[0].node.kind for group in pair if not group.is_fusable), None)
        reason = f"a {alone} is a kernel of its own" if alone else "others share more with each"
        origins = map(_origins, pair)
        known[names] = Decision(*names, False, reason, self._saved(*pair), *origins)

    def _near(self, buffer: str, group: Group, count: int) -> list[str]:
        """Of the other writers of a buffer, and of its other readers, the ``count`` closest to
        ``group`` in program order.
        """
        users = (self.dag.writers.get(buffer, NOBODY), self.dag.readers.get(buffer, NOBODY))
        names = [name for each in users for name in each.near(group.name, group.first, count)]
        return [name for name in dict.fromkeys(names) if name in self.dag.groups]

    def _offer_templates(self) -> None:
        for group in self.dag.groups.values():
            names = group.extern.result_names if group.extern is not None else ()
            backend = (
                self.templates.get(self.graph.buffers[names[0]].device.type) if names else None
            )
            is_known = backend is not None and group.extern.op in backend.template_ops  # type: ignore[union-attr]
            if is_known and may("fusion", "offer template", group.name):
                offer_template(group, self.graph)
                self.dag.positions |= {id(member.node): group.first for member in group.members}

    def _bundle_small(self) -> None:
        """Joins small pointwise groups over equal loops even if they share no buffer: a launch
        costs more than their work.
        """
        bundles: dict[object, Group] = {}
        for group in sorted(self.dag.groups.values(), key=lambda g: g.first):
            if not group.is_fusable or group.reduction or group.extern is not None:
                continue
            if self.graph.facts.hint(points_of(group.ranges)) > SMALL_BUNDLE:
                continue
            key = (tuple(item.extent for item in group.ranges), self._device(group))
            bundle = bundles.get(key)
            fused = self._try(bundle, group, small=True) if bundle is not None else None
            bundles[key] = group if fused is None else fused

    def _size(self, name: str) -> int:
        if name not in self._bytes:
            self._bytes[name] = self.graph.bytes_of(name)
        return self._bytes[name]

    def _add_candidates(self, group: Group, queue: list, seen: defaultdict[str, set[str]]) -> None:
        if not group.is_fusable:
            return
        for name in sorted(group.reads | set(group.writes)):
            for other in self._near(name, group, MAX_NEAR):
                found = self.dag.groups[other]
                if not found.is_fusable:
                    continue
                if other in seen[group.name]:
                    continue
                seen[group.name].add(other)
                seen[other].add(group.name)
                left, right = sorted((group, found), key=lambda g: (g.first, g.last))
                saved = self._saved(left, right)
                if not saved:
                    continue  # they write different parts of a buffer
                heapq.heappush(
                    queue, (-saved, right.first - left.first, left.first, left.name, right.name)
                )

    def _shared(self, left: Group, right: Group) -> list[str]:
        a, b = left.reads | set(left.writes), right.reads | set(right.writes)
        return sorted(
            (a & b) - (left.parts & right.parts), key=lambda name: (-self._size(name), name)
        )

    def _saved(self, left: Group, right: Group) -> int:
        total = 0
        written = {*left.writes, *right.writes}
        for name in self._shared(left, right):
            total += self._size(name)
            if name not in written or name in self._outputs:
                continue
            if not self.dag.readers.get(name, NOBODY).others(left.name, right.name):
                total += self._size(name)
        return total

    @property
    def _sums(self) -> ColumnSums:
        return ColumnSums(self.graph, self.dag, self._same_points, self.selection.takes)

    def _try(
        self, left: Group, right: Group, small: bool = False, joint: int | None = None
    ) -> Group | None:
        """The fused group if that is legal and, without the recorded number of a ``joint``, pays
        off.
        """
        saved = self._saved(left, right)
        reason, fused = self._judge(left, right, saved, small, joint)
        first, second = _names(left), _names(right)
        if fused is not None and not may("fusion", "fuse", f"{first} and {second}"):
            reason, fused = "a search for a wrong result keeps them apart", None
        is_fused, origins = fused is not None, map(_origins, (left, right))
        self.decisions.append(Decision(first, second, is_fused, reason, saved, *origins))
        if fused is not None:
            self._note(left, right)
            self.dag.replace(left, right, fused)
        return fused

    def _note(self, left: Group, right: Group) -> None:
        choices = current()
        if choices is not None:
            loops = f", loops {self._joint}" if self._joint else ""
            choices.extend(FUSED, f"{left.title} and {right.title}{loops}")

    def _judge(
        self, left: Group, right: Group, saved: int, small: bool, joint: int | None
    ) -> tuple[str, Group | None]:
        self._joint = 0
        large = _too_large(left, right) if joint is None else ""
        if large:
            return large, None
        if self._device(left) != self._device(right):
            return "different devices", None
        between = self.dag.step_between(left, right)
        if between is UNKNOWN:
            return "too many steps may have to run between them", None
        if between is not None:
            return f"{_names(between)} has to run between them", None
        if left.extern is not None or right.extern is not None:
            return self._judge_template(left, right, saved)
        shared = self._shared(left, right)
        written = [name for name in shared if name in left.writes or name in right.writes]
        if joint is not None:
            return self._align_known(left, right, shared, written, joint)
        less, more = sorted((self._traffic(left), self._traffic(right)))
        is_short = self._device(left).type == "cuda" and more <= SHORT_LAUNCH
        if not written and not small and not is_short and saved * 8 < less:
            return f"only {saved} bytes shared", None
        return self._align(left, right, shared, written, saved, small)

    def _judge_template(self, left: Group, right: Group, saved: int) -> tuple[str, Group | None]:
        """Judges whether loops become a prologue or an epilogue of an operator for which a backend
        has a template.
        """
        if left.extern is not None and right.extern is not None:
            return "two operators", None
        if left.extern is None:
            return self._judge_prologue(left, right, saved)
        written = [name for name in self._shared(left, right) if name in left.writes]
        reason = "they share only what both read" if not written else "their loops do not align"
        for joint in joints(left, right, written, self.graph.facts) if written else ():
            candidate = merged(left, right, joint)
            if self._same_points(left, right, joint, written):
                refused = self._refused(candidate, {left.name, right.name})
                return refused or f"epilogue, saves {saved} bytes", None if refused else candidate
            reason = "a point reads another point of the operator's result"
        return reason, None

    def _judge_prologue(self, left: Group, right: Group, saved: int) -> tuple[str, Group | None]:
        assert right.extern is not None
        if left.reduction:
            return "a reduction is no part of an operator", None
        names = [name for name in left.writes if name in right.extern.read_names]
        if len(left.writes) != 1 or len(names) != 1 or not is_operand(right.extern, names[0]):
            return "the loops compute more than one operand", None
        users = {*self.dag.readers[names[0]], *self.dag.writers[names[0]]}
        if names[0] in self._outputs or users != {left.name, right.name}:
            return "the operand is needed elsewhere, too", None
        candidate = replace(
            right,
            name=left.name,
            first=min(left.first, right.first),
            last=max(left.last, right.last),
        )
        candidate.prologues += ((names[0], left),)
        refused = self._refused(candidate, users)
        return refused or f"prologue, saves {saved} bytes", None if refused else candidate

    def _refused(self, candidate: Group, inside: set[str]) -> str:
        """Why the group can't be a template; empty if it can."""
        backend = self.templates[self._device(candidate).type]
        built = build_template(
            candidate, self.graph, self.dag.external(candidate, inside, self._outputs)
        )
        if built is not None:
            return backend.refuses(built[0])
        return "the loops are no parts of the operator's dims"

    def _align(
        self,
        left: Group,
        right: Group,
        shared: list[str],
        written: list[str],
        saved: int,
        small: bool,
    ) -> tuple[str, Group | None]:
        reason = "their loops do not align"
        for number, joint in enumerate(joints(left, right, shared, self.graph.facts)):
            candidate, self._joint = merged(left, right, joint), number
            if not self._same_points(left, right, joint, written):
                reason = "a point reads what another point writes"
                continue
            if not written and not small and not self._shares_reads(left, right, joint, shared):
                reason = "they read the shared buffers at different points"
                continue
            if not self._is_parallel(candidate, left, right):
                reason = "too little parallel work"
                continue
            if not self.selection.takes(candidate, left, right):
                reason = "the code generator does not support the fused loops"
                continue
            return "saves a launch" if small else f"saves {saved} bytes", candidate
        return reason, None

    def _align_known(
        self, left: Group, right: Group, shared: list[str], written: list[str], number: int
    ) -> tuple[str, Group | None]:
        """The group with the recorded one of the common loops, if it is legal."""
        found = islice(joints(left, right, shared, self.graph.facts), number, None)
        joint, self._joint = next(found, None), number
        if joint is None or not self._same_points(left, right, joint, written):
            return "the recorded loops do not align", None
        candidate = merged(left, right, joint)
        if not self.selection.takes(candidate, left, right):
            return "the code generator does not support the fused loops", None
        return "recorded", candidate

    def _device(self, group: Group) -> torch.device:
        return self.graph.buffers[group.members[0].node.buffer].device

    def _traffic(self, group: Group) -> int:
        return sum(self._size(name) for name in group.reads | set(group.writes))

    def _indices(self, group: Group, buffer: str, change: dict, joint: Joint) -> set:
        extents = extents_of(joint.ranges, joint.reduction)
        return {
            (self.graph.facts.simplify(substitute(index, change), extents), masked)
            for index, masked in group.accesses(buffer)
        }

    def _same_points(self, left: Group, right: Group, joint: Joint, written: list[str]) -> bool:
        for name in written:
            both = self._indices(left, name, joint.left, joint) | self._indices(
                right, name, joint.right, joint
            )
            if len(both) != 1 or next(iter(both))[1]:
                return False
        return True

    def _shares_reads(self, left: Group, right: Group, joint: Joint, shared: list[str]) -> bool:
        return bool(
            shared
            and self._indices(left, shared[0], joint.left, joint)
            & self._indices(right, shared[0], joint.right, joint)
        )

    def _is_parallel(self, candidate: Group, left: Group, right: Group) -> bool:
        """Whether enough points remain to run in parallel when a pointwise group moves into the
        loops of a reduction.
        """
        if not candidate.reduction or bool(left.reduction) == bool(right.reduction):
            return True
        facts = self.graph.facts
        points = facts.hint(points_of(candidate.ranges))
        work = points * facts.hint(points_of(candidate.reduction))
        if work <= SMALL_WORK:
            return True
        on_cpu = self._device(candidate).type == "cpu"
        wanted = 2 * (self.options.threads or torch.get_num_threads()) if on_cpu else 64
        return points >= wanted


def _names(group: Group) -> str:
    if group.extern is not None:
        return (
            f"{getattr(group.extern.op, '__name__', group.extern.op)} "
            f"({group.name.partition('.')[0]})"
        )
    return "+".join(member.node.buffer for member in group.members)


def _origins(group: Group) -> tuple[tuple[Origin, ...], ...]:
    """The origins of each node of a group."""
    if group.extern is not None:
        return (group.extern.origins,)
    return tuple(member.node.origins for member in group.members)


def _too_large(left: Group, right: Group) -> str:
    if len(left.members) + len(right.members) > MAX_MEMBERS:
        return f"more than {MAX_MEMBERS} nodes"
    if len(left.reads | right.reads | set(left.writes) | set(right.writes)) > MAX_BUFFERS:
        return f"more than {MAX_BUFFERS} buffers"
    if _instructions(left) + _instructions(right) > MAX_INSTRUCTIONS:
        return f"more than {MAX_INSTRUCTIONS} instructions"
    return ""


def _instructions(group: Group) -> int:
    return sum(len(member.node.program) for member in group.members)
