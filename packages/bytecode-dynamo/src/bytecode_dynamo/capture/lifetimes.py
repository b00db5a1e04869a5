"""Objects whose destruction the program observes, by ``__del__`` or weak references."""

from __future__ import annotations

import gc
import types
import weakref
from collections.abc import Iterable
from typing import Any

import torch

from bytecode_dynamo.class_flags import HEAP_TYPE
from bytecode_dynamo.hook.frame_hook import FrameView
from bytecode_dynamo.hook.origins import origins

MOST = 200
"""The most objects that are inspected."""


def holds_watched(view: FrameView) -> bool:
    """Whether a frame may hold the last reference to an observed object.

    A resume function does: it received the variables of the frame before it.
    """
    return id(view.code) in origins.by_code and any_is_watched(view.locals)


def any_is_watched(values: Iterable[Any]) -> bool:
    """Whether the program observes the destruction of these objects, or of objects that only they
    hold.
    """
    todo, seen = list(values), set[int]()
    while todo and len(seen) < MOST:
        value = todo.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if _is_watched(value):
            return True
        todo += _held(value)
    return False


def _is_watched(value: Any) -> bool:
    cls = type(value)
    if not cls.__flags__ & HEAP_TYPE or isinstance(value, (torch.Tensor, torch.nn.Module, type)):
        return False
    return hasattr(cls, "__del__") or weakref.getweakrefcount(value) > 0


def _held(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value)
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, types.CellType):
        return [] if value == types.CellType() else [value.cell_contents]
    if type(value).__flags__ & HEAP_TYPE and not isinstance(
        value, (torch.Tensor, torch.nn.Module, type)
    ):
        # reading __dict__ creates one, which changes how a partial of a partial is flattened
        return gc.get_referents(value)
    return []
