"""The stance "eager_then_compile": the first call of a function teaches which values change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from bytecode_dynamo.guards.source import ItemSource, LocalSource, Source
from bytecode_dynamo.hook.frame_hook import FrameView, Region
from bytecode_dynamo.state.dynamic_shapes import Seen

from .policy import Policy


def is_first_call(region: Region, policy: Policy, view: FrameView) -> bool:
    """Whether code was neither captured nor called before; notes its arguments if so."""
    if region.entries(view.code) or view.code in policy.seen:
        return False
    seen = policy.seen[view.code] = Seen()
    for name, value in zip(view.code.co_varnames, view.locals):
        for source, inner in _values(LocalSource(name), value):
            _note(seen, source.name, inner)
    return True


def _note(seen: Seen, name: str, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        if value.layout is torch.strided and not value.is_nested:
            seen.merge_sizes(name, tuple(value.shape))
            seen.merge_strides(name, value.shape, value.stride())
    elif type(value) in (int, float):
        seen.merge_number(name, value)


def _values(source: Source, value: Any) -> Iterator[tuple[Source, Any]]:
    """A value, and those in its lists, tuples and dicts, with their sources."""
    yield source, value
    if type(value) in (list, tuple):
        items: Any = enumerate(value)
    elif type(value) is dict:
        items = ((key, inner) for key, inner in value.items() if type(key) in (int, str))
    else:
        return
    for key, inner in items:
        yield from _values(ItemSource(source, key), inner)
