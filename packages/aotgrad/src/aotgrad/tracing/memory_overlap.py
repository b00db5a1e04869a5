"""Tests whether tensors share memory: storage first, then elements."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from symshapes import inner_tensors

from .disjoint_guards import guard_disjoint
from .functional import extent, has_hint, layout_numbers, size_hint, storage_id

_MAX_STEPS = 2000  # steps of the search; tensors with ordinary strides need one per dimension


def all_inner_tensors(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """The plain tensors inside tensors, some of which are of wrapper subclasses."""
    return [inner for t in tensors for inner in inner_tensors(t)]


def share_storage(written: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    """Whether a tensor that will be written shares its storage, or memory that isn't torch's, with
    another one.
    """
    targets = [t.untyped_storage() for t in written]
    storages = {storage._cdata for storage in targets}
    if len(storages) != len(written):
        return True
    read = [t.untyped_storage() for t in others]
    if any(storage._cdata in storages for storage in read):
        return True
    if all(storage.resizable() for storage in (*targets, *read)):
        return False
    return _share_addresses(targets, read)


def share_foreign_memory(written: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    """Whether storages of a tensor that will be written and of another one overlap. Each storage
    of torch has memory of its own; two that were made around arrays may not.
    """
    targets, read = ({t.untyped_storage()._cdata: t for t in ts} for ts in (written, others))
    apart = [t.untyped_storage() for key, t in read.items() if key not in targets]
    return _share_addresses([t.untyped_storage() for t in targets.values()], apart)


def _share_addresses(
    written: Sequence[torch.UntypedStorage], others: Sequence[torch.UntypedStorage]
) -> bool:
    spans = [
        (storage.data_ptr(), storage.data_ptr() + storage.nbytes(), k < len(written))
        for k, storage in enumerate((*written, *others))
        if storage.nbytes()
    ]
    ends = {True: 0, False: 0}  # of what begins before, by whether it is written
    for low, high, is_written in sorted(spans):
        if low < max(ends[True], ends[False] if is_written else 0):
            return True
        ends[is_written] = max(ends[is_written], high)
    return False


def share_elements(written: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    """Whether a tensor that will be written has bytes in common with another one."""
    return any(overlap(a, b) for i, a in enumerate(written) for b in (*written[i + 1 :], *others))


def overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors have bytes in common; also True if it would take too long to rule that
    out.

    Symbolic sizes are those of the example.
    """
    storages = a.untyped_storage(), b.untyped_storage()
    in_one = storages[0]._cdata == storages[1]._cdata
    if not in_one and all(storage.resizable() for storage in storages):
        return False
    if not size_hint(a.numel()) or not size_hint(b.numel()):
        return False
    # two bytes coincide if the distance is a sum of multiples of strides, each multiple within its
    # bounds
    bounds: dict[int, tuple[int, int]] = {}
    for t, sign in ((a, 1), (b, -1)):
        steps = (
            (size_hint(n), size_hint(s) * t.element_size()) for n, s in zip(t.shape, t.stride())
        )
        for size, stride in ((t.element_size(), 1), *steps):
            low, high = bounds.get(stride, (0, 0))
            bounds[stride] = (low + min(0, sign * (size - 1)), high + max(0, sign * (size - 1)))
    bounds.pop(0, None)
    strides = sorted(((stride, *limits) for stride, limits in bounds.items()), reverse=True)
    distance = (
        size_hint(b.storage_offset()) * b.element_size()
        - size_hint(a.storage_offset()) * a.element_size()
    )
    if not in_one:
        distance += storages[1].data_ptr() - storages[0].data_ptr()
    return _reaches(distance, strides, [_MAX_STEPS])


def _reaches(distance: int, steps: Sequence[tuple[int, int, int]], budget: list[int]) -> bool:
    if not steps:
        return distance == 0
    budget[0] -= 1
    if budget[0] < 0:
        return True
    (stride, low, high), rest = steps[0], steps[1:]
    lowest, highest = sum(s * n for s, n, _ in rest), sum(s * n for s, _, n in rest)
    first = max(low, -(-(distance - highest) // stride))
    last = min(high, (distance - lowest) // stride)
    return any(_reaches(distance - stride * n, rest, budget) for n in range(first, last + 1))


def has_gaps(t: torch.Tensor) -> bool:
    """Whether memory between a tensor's elements may belong to other tensors."""
    if t.layout != torch.strided:
        return False
    return size_hint(extent(t.shape, t.stride())) != size_hint(t.numel())


def overlaps_itself(t: torch.Tensor) -> bool:
    """Whether a tensor is expanded, so that several elements share memory."""
    return any(
        type(stride) is int and stride == 0 and size != 1
        for size, stride in zip(t.shape, t.stride())
    )


def overlaps(target: torch.Tensor, read: torch.Tensor) -> bool:
    """Whether two tensors have elements in common, or, if layouts are unknown, whether they share a
    storage.
    """
    if target is read or storage_id(target) != storage_id(read):
        return target is read
    layouts = (*layout_numbers(target), *layout_numbers(read))
    return not all(type(n) is int for n in layouts) or overlap(target, read)


def overlaps_partly(target: torch.Tensor, read: torch.Tensor) -> bool:
    """Whether two tensors have some elements in common, but not all at the same indices.

    If they are disjoint, adds guards for that. Eager refuses a partial overlap of dense tensors.
    With other tensors it reads elements that it has just written, which no functional program does.
    """
    if target is read or storage_id(target) != storage_id(read):
        return False
    if not all(map(has_hint, (*layout_numbers(target), *layout_numbers(read)))):
        return False  # usual programs write to one part and read another
    if not overlap(target, read):
        guard_disjoint(target, read)
        return False
    steps = [[(n, s) for n, s in zip(t.shape, t.stride()) if n != 1] for t in (target, read)]
    if steps[0] != steps[1] or target.storage_offset() != read.storage_offset():
        return True
    # The elements coincide: eager refuses dense tensors that differ in rank or in the stride of a
    # dimension of one element.
    is_dense = bool(extent(target.shape, target.stride()) == target.numel())
    return is_dense and [*target.stride()] != [*read.stride()]
