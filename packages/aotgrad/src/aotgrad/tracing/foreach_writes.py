"""Runs foreach ops, which write to one tensor after the other: if tensors overlap, later writes
must see earlier ones in the graph, too.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch

from .functional import extent, is_functional, layout_numbers, storage_id

Span = tuple[float, float, int]
"""The first byte and the end of a tensor in its storage, and its index in the list."""


def write_to_each(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Runs an in-place foreach op. On the CPU such an op bumps versions, which functionalisation
    does not do.
    """
    for given, options in _calls(args, kwargs):
        func(*given, **options)
    written = [t for t in args[0] if is_functional(t) and t.device.type == "cpu"]
    if written:
        torch._C._increment_version(written)


def _calls(
    args: Sequence[Any], kwargs: dict[str, Any]
) -> list[tuple[Sequence[Any], dict[str, Any]]]:
    """The arguments of one call, or of one call per tensor if their order matters."""
    count = len(args[0])
    if not _is_order_seen([a for a in (*args, *kwargs.values()) if isinstance(a, (list, tuple))]):
        return [(args, kwargs)]

    def only(value: Any, i: int) -> Any:
        # the ``scalars`` operand
        if isinstance(value, torch.Tensor) and value.dim() == 1 and value.shape[0] == count:
            return value[i : i + 1]
        return [value[i]] if isinstance(value, (list, tuple)) else value

    return [
        ([only(a, i) for a in args], {name: only(a, i) for name, a in kwargs.items()})
        for i in range(count)
    ]


def _is_order_seen(lists: Sequence[Sequence[Any]]) -> bool:
    """Whether a tensor of the first list may share bytes with a tensor at another index of any
    list.
    """
    written: defaultdict[int, list[Span]] = defaultdict(list)
    for storage, span in _spans(lists[0]):
        written[storage].append(span)
    for spans in written.values():
        spans.sort()
        if any(end > start for (_, end, _), (start, _, _) in pairwise(spans)):
            return True
    return any(
        _meets_another(span, written[storage])
        for each in lists[1:]
        for storage, span in _spans(each)
        if storage in written
    )


def _meets_another(span: Span, spans: Sequence[Span]) -> bool:
    """Whether ``span`` overlaps one of ``spans`` at another index; ``spans`` are sorted and
    disjoint.
    """
    start, end, place = span
    first = bisect_right(spans, start, key=lambda s: s[1])
    return any(
        begin < end and stop > start and other != place
        for begin, stop, other in spans[first : first + 2]
    )


def _spans(tensors: Sequence[Any]) -> Iterator[tuple[int, Span]]:
    for place, t in enumerate(tensors):
        if not is_functional(t):
            continue
        if not all(type(n) is int for n in layout_numbers(t)):
            yield storage_id(t), (-math.inf, math.inf, place)
        elif t.numel():
            start, length = int(t.storage_offset()), extent(t.shape, t.stride())
            span = start * t.element_size(), (start + length) * t.element_size(), place
            yield storage_id(t), span
