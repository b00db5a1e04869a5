"""Fake tensors that record which operators write, draw random numbers, or may refuse their data."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from symshapes import FakeTensor, FakeTensorMode

# Operators that check their data, by name (indices out of range, singular matrices, probabilities),
# or their memory.
_REFUSING = re.compile(
    "index|gather|scatter|take|put|embedding|nll|entropy|linalg|cholesky|inverse|solve|svd|eig|qr|lu_|bincount|one_hot|hist|"
    "multinomial|bernoulli$|repeat_interleave|assert|item|_local_scalar|quantile|ctc|unique|segment|sparse|bucketize|search|as_strided$"
)
# Operators that check integers: division by zero, and kernels missing for bool, which meta kernels
# accept.
_INTEGERS = re.compile("div|remainder|fmod|pow|mm$|dot$|mv$|conv|lerp|prelu|loss")
# Real kernels refuse mixed dtypes that meta kernels accept, except for most pointwise operators and
# these.
_OF_ONE = re.compile("heaviside|lerp|polar|complex$|binary_cross_entropy$")
_MIXING = re.compile("copy|^aten::(cat|stack|where|masked_fill)_?$")


class ObservedMode(FakeTensorMode):
    """Fake tensors, with a record of operators that write, draw random numbers, or may refuse their
    data.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.events: list[Any] = []
        """Written storages, "random", "custom", "refuse" and "history" (a view got one), in order.
        """
        self._with_history: set[int] = set()

    def note_history(self, view: FakeTensor) -> None:
        """Note that a write gives a view among the inputs a history."""
        self.events.append("history")
        self._with_history.add(view.untyped_storage()._cdata)

    def run_op(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        kind = _kinds.get(func)
        if kind is None:
            kind = _kinds[func] = _kind(func)
        notes, refuses, mixes, counts, written = kind
        before = len(self.events)
        self.events += notes
        if refuses is None:
            refuses = not any(
                isinstance(arg, (float, FakeTensor)) and _is_floating(arg) for arg in args
            )
        refuses = (
            refuses
            or (not mixes and _differ(args, mixes))
            or (counts and any(map(_is_empty, args)))
        )
        if not refuses and written and _may_overlap((*args, *kwargs.values())):
            self.events.append("refuse")
        for place, name in written:
            self._note(args[place] if place < len(args) else kwargs.get(name))
        if refuses:
            self.events.append("refuse")  # it may have written part of its output
        try:
            return super().run_op(func, args, kwargs)
        except Exception:
            del self.events[before:]  # a call that is not in the graph
            raise

    def _note(self, value: Any) -> None:
        for tensor in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(tensor, FakeTensor):
                storage = tensor.untyped_storage()._cdata
                self.events.append(storage)
                # eager refuses until the view has its base's history
                if storage in self._with_history:
                    self.events.append("refuse")


_Kind = tuple[tuple[str, ...], bool | None, bool | None, bool, tuple[tuple[int, str], ...]]
_kinds: dict[Any, _Kind] = {}


def _kind(func: Any) -> _Kind:
    """The kind of an operator.

    Returns what to note, whether it may refuse its data (None: integers only), whether it accepts
    mixed dtypes (None: parameters wider than the input), whether it may refuse empty tensors, and
    the arguments that it writes to.
    """
    schema = func._schema
    written = tuple(
        (place, arg.name)
        for place, arg in enumerate(schema.arguments)
        if arg.alias_info is not None and arg.alias_info.is_write
    )
    custom = func.namespace not in ("aten", "prims", "prim")
    refuses: bool | None = custom or _REFUSING.search(schema.name) is not None
    if not refuses and _INTEGERS.search(schema.name):
        refuses = None
    pointwise = torch.Tag.pointwise in func.tags and not _OF_ONE.search(schema.name)
    mixes = None if "norm" in schema.name else pointwise or _MIXING.search(schema.name) is not None
    notes = ("random",) * (torch.Tag.nondeterministic_seeded in func.tags) + ("custom",) * custom
    counts = not (pointwise or func.is_view)
    return notes, refuses, mixes, counts, written


def _is_empty(value: Any) -> bool:
    """Whether a tensor is empty: meta kernels accept its extremes, which eager refuses. (A symbolic
    size is not zero.)
    """
    return isinstance(value, FakeTensor) and any(
        type(size) is int and not size for size in value.shape
    )


def _may_overlap(values: Sequence[Any]) -> bool:
    """Whether a write may overlap its operands or itself: eager refuses partial overlap."""
    tensors = {id(value): value for value in values if isinstance(value, FakeTensor)}.values()
    shared = len({tensor.untyped_storage()._cdata for tensor in tensors}) < len(tensors)
    return shared or any(
        type(step) is int and step == 0 for tensor in tensors for step in tensor.stride()
    )


def _differ(args: Sequence[Any], mixes: bool | None) -> bool:
    """Whether dtypes differ in a way that real kernels may refuse."""
    dtypes = [arg.dtype for arg in args if isinstance(arg, FakeTensor)]
    return len({*dtypes}) > 1 and (
        mixes is False or dtypes[0] not in (torch.bfloat16, torch.float16)
    )


def _is_floating(value: Any) -> bool:
    return isinstance(value, float) or value.dtype.is_floating_point or value.dtype.is_complex
