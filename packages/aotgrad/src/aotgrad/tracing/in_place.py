"""Corrects what functionalisation alone gets wrong about writes, while a program is traced."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from symshapes import expr_of, is_wrapper
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from aotgrad.errors import Unsupported

from .autograd_history import OuterHistory, history_of
from .effects import TracedTensor
from .foreach_writes import write_to_each
from .functional import (
    current_value,
    has_own_version,
    is_functional,
    restore_layout,
    storage_id,
)
from .functional_ops import call_functional, is_fused_step, is_mutable_custom, resolve_overload
from .memory_overlap import has_gaps, overlaps, overlaps_itself, overlaps_partly
from .tracer import Tracer

_Known = dict[int, tuple[torch.Tensor, torch.Tensor]]
"""Maps the id of a tensor to the tensor itself, which keeps it alive, and a second tensor."""


class InPlaceMode(TorchFunctionMode):
    """Handles writes for which functionalisation's values behave differently from memory.

    - Refuses writes to a tensor whose elements share memory (an expanded one), except fills.
    - A write through strides with gaps results in a dense value, but the tensor keeps its strides,
      which decide whether a reshape copies. ``moved`` has the ids of tensors whose strides the
      program changed itself.
    - Refuses writes to windows that skip or share elements of their source, and to results of
      ``unsafe_split``.
    - A write to a part of an expanded tensor goes to the tensor that was expanded: otherwise
      functionalisation would add the difference, which rounds, and is NaN for infinity.
    - Bumps the version of each tensor that a foreach op writes to.
    - Runs a custom op that writes to its operands in its functional form.
    - Refuses access to gradients of inputs and hooks on them: they belong to the caller's tensors.
    - Differentiation stays inside the program: the histories of its inputs are not visible.

    Args:
        tensors: the tensors from before the call.
        tracer: records the program.

    Attributes:
        moved: see above.
        filled: ids of the moved tensors that were resized and then completely written.
        lines: by id of a tensor from before the call, the user's line that last wrote to it or
            changed it.
        outer_histories: one for each differentiation that may pass through the history of an input.
        reads_offset: the inputs into whose storage ``as_strided`` used an offset.
        unversioned: the inputs of which the program has used only ``.data``: autograd does not
            notice writes to values that it saved from them.
    """

    def __init__(self, tensors: Sequence[TracedTensor], tracer: Tracer) -> None:
        super().__init__()
        self.moved: set[int] = set()
        self.filled: set[int] = set()
        self.lines: dict[int, str] = {}
        self.outer_histories: list[OuterHistory] = []
        self.reads_offset: set[int] = set()
        self._read_by_data: set[int] = set()
        self._used: set[int] = set()  # inputs that were used in other ways
        self._tensors = tensors
        self._given = {id(t.wrapper): t for t in tensors}
        self._tracer = tracer
        self._backward_line = ""
        # autograd replays such a view with its original sizes and strides
        self._moved_views: list[torch.Tensor] = []
        self._bases = {storage_id(t.wrapper) for t in tensors if t.is_input_view}
        # results of ``unfold`` and ``unsafe_split``, and views of them, by id
        self._windows: dict[int, torch.Tensor] = {}
        # expanded tensors and views of them, and the tensors that were expanded
        self._expanded: _Known = {}
        self._detached: _Known = {}  # detached tensors, and the tensors that they were made from
        # relaid-out tensors, and the same memory with its original layout
        self._unmoved: _Known = {}
        # results of ``as_strided`` on those and views of them, and the tensor whose version counts
        # writes
        self._by_place: _Known = {}
        self._gapped = {
            storage_id(t.wrapper): t.wrapper
            for t in tensors
            if not t.is_input_view and has_gaps(t.before)
        }
        self._dense: set[int] = set()  # storages of tensors whose values no longer have gaps

    @property
    def unversioned(self) -> frozenset[int]:
        found = (self._given[i].target.index for i in self._read_by_data - self._used)
        return frozenset(index for index in found if index >= 0)

    def annotate(self, t: TracedTensor) -> TracedTensor:
        """``t`` with the changes that the program made to it."""
        i, lines = id(t.wrapper), self.lines
        return replace(t, moved=i in self.moved, filled=i in self.filled, line=lines.get(i, ""))

    def check_gradients(self) -> None:
        """Raises Unsupported if the program has called ``backward()`` with an input as a leaf."""
        reason = "backward() accumulates a gradient into an input; use torch.autograd.grad"
        for t in self._tensors:
            if t.wrapper.is_leaf and t.wrapper.grad is not None:
                raise Unsupported("AG028", reason, line=self._backward_line)

    def _check(self, func: Any, name: str, target: Any, args: Any, kwargs: Any) -> None:
        is_strided = name.startswith("as_strided") and self._dense and is_functional(target)
        if is_strided and storage_id(target) in self._dense:
            self._tracer.refuse(
                "AG022",
                "as_strided of a tensor with gaps in memory that the program has written to",
            )
        if (reads_offset := _offset_operand(name, args, kwargs)) is not None:
            self._note_offset(reads_offset)
        if name.startswith("slice_inverse"):
            self._tracer.refuse(
                "AG022", "slice_inverse, which takes the place of its source in memory"
            )
        if name.startswith("resize_") and is_functional(target) and not target.is_contiguous():
            self._tracer.refuse("AG026", f"{name} of a tensor that is not contiguous")
        if name == "backward":
            self._backward_line = self._tracer.user_line()
        given = self._given.get(id(target))
        if given is None:
            return
        moves = name in _MOVES and (not given.is_input_view or name.startswith(("resize_", "set_")))
        # check ``_bases`` first: reading a storage id creates a view
        if moves and self._bases and storage_id(target) in self._bases:
            self._tracer.refuse("AG026", f"{name} of an input that shares memory with another one")
        if given.wrapper._version != given.version:
            return
        if name in _GRADIENT_STATE or getattr(func, "__self__", None) is torch.Tensor.grad:
            what = name if name in _GRADIENT_STATE else ".grad"
            self._tracer.refuse(
                "AG028", f"{what} of an input: pass gradients as arguments, register hooks outside"
            )

    def _note_offset(self, t: torch.Tensor) -> None:
        """Notes that the program uses an offset into the storage of ``t``."""
        storage = storage_id(t)
        self.reads_offset |= {
            given.target.index for given in self._tensors if storage_id(given.wrapper) == storage
        }

    def _check_overlap(self, name: str, target: torch.Tensor, read: Any) -> None:
        if id(target) in self._windows:
            self._tracer.refuse(
                "AG029",
                f"{name} writes to windows that leave out elements or share them, unsafe pieces, "
                f"or places in a view",
            )
        meets = overlaps if name in _INDEXED else overlaps_partly
        if name != "__setitem__" and any(
            meets(target, t) for t in pytree.tree_leaves(read) if is_functional(t)
        ):
            self._tracer.refuse("AG029", f"{name} reads memory that it writes to")

    def _check_lists(self, name: str, args: Any, kwargs: Any) -> None:
        read = [
            value for value in (*args[1:], *kwargs.values()) if isinstance(value, (list, tuple))
        ]
        for i, target in enumerate(args[0]):
            if is_functional(target):
                self._check_overlap(name, target, [values[i] for values in read])

    def _not_leaves(self, outputs: Any) -> frozenset[int]:
        """The inputs with a history of their own that gradients of the outputs reach."""
        computed = [t for t in self._tensors if t.is_differentiable_input and not t.was_leaf]
        seen = history_of(outputs) if computed else set()
        return frozenset(t.target.index for t in computed if t.edge.node in seen)

    def _differentiates(self, outputs: Any, inputs: Any, *_: Any, **options: Any) -> None:
        several = inputs if isinstance(inputs, (tuple, list)) else [inputs]
        if all(isinstance(t, torch.Tensor) for t in several):
            targets = [self._given[id(t)] for t in several if id(t) in self._given]
        else:  # gradient edges
            targets = self._tensors
        found = frozenset(t.target.index for t in targets if t.is_differentiable_input)
        through = self._not_leaves(outputs) if found else frozenset()
        if through:
            if not options.get("allow_unused") and not options.get("materialize_grads"):
                inside = history_of(outputs)
                if any(
                    t.target.index in found and t.edge.node not in inside for t in self._tensors
                ):
                    self._tracer.refuse(
                        "AG031",
                        "the gradient may pass through what an input was computed from, and does "
                        "not inside",
                    )
            self.outer_histories.append(OuterHistory(found, through, self._tracer.user_line()))

    def _call_into(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Runs a call with ``out=``, which resizes results that do not fit."""
        outs = [t for t in pytree.tree_leaves(kwargs["out"]) if is_functional(t)]
        for t in outs:
            self._check_overlap(f"{func.__name__} with out=", t, args)
        before = [t.shape for t in outs]
        result = func(*args, **kwargs)
        read = {
            storage_id(t)
            for t in pytree.tree_leaves(args)
            if is_functional(t) and all(t is not o for o in outs)
        }
        for t, shape in zip(outs, before):
            if t.shape != shape:
                if storage_id(t) in read:
                    self._tracer.refuse(
                        "AG029", "out= of another size shares memory with an operand"
                    )
                self.moved.add(id(t))
                self.filled.add(id(t))
            self.lines[id(t)] = self._tracer.user_line()
        return result

    def _read(self, func: Any, target: Any, args: Any, kwargs: Any) -> Any:
        if func is torch.Tensor.unfold and is_functional(target):
            return self._unfold(target, *args[1:], **kwargs)
        if func in _EXPAND and is_functional(target):
            return self._expand(target, func(*args, **kwargs))
        if func is torch.broadcast_tensors and all(map(is_functional, args)):
            # a tensor that already has the common size is returned itself
            found = zip(args, func(*args))
            return [
                t
                if [*map(expr_of, t.shape)] == [*map(expr_of, out.shape)]
                else self._expand(t, out)
                for t, out in found
            ]
        if func in _AS_STRIDED and is_functional(target) and not target.requires_grad:
            out = self._as_strided(target, *args[1:], **kwargs)
            if self._is_part(target):
                self._windows[id(out)] = out
            return out
        out = self._call_into(func, args, kwargs) if "out" in kwargs else func(*args, **kwargs)
        if (
            id(target) in self._windows
            or func in _UNSAFE
            or (func in _AS_STRIDED and self._is_part(target))
        ):
            self._windows |= {id(t): t for t in pytree.tree_leaves(out) if is_functional(t)}
        for known in (self._expanded, self._by_place):
            if id(target) in known:
                views = (
                    t
                    for t in pytree.tree_leaves(out)
                    if is_functional(t) and storage_id(t) == storage_id(target)
                )
                known |= {id(t): (t, known[id(target)][1]) for t in views}
        if func in _DETACH or getattr(func, "__self__", None) is torch.Tensor.data:
            self._detached[id(out)] = out, target
        return out

    def _expand(self, target: torch.Tensor, expanded: torch.Tensor) -> torch.Tensor:
        """Tracks an expanded view. If it has every element only once, it is replaced by a view
        through which writes work.
        """
        more = expanded.dim() - target.dim()
        if [*map(expr_of, expanded.shape)] == [1] * more + [*map(expr_of, target.shape)]:
            # keep its strides, including those of dimensions of one element
            expanded = torch.ops.aten.alias(target)
            for _ in range(more):
                expanded = expanded.unsqueeze(0)
            if id(target) in self._expanded:
                self._expanded[id(expanded)] = expanded, self._expanded[id(target)][1]
            return expanded
        self._expanded[id(expanded)] = expanded, target
        return expanded

    def _one_of_each(self, t: torch.Tensor, name: str) -> torch.Tensor:
        """A view with each element of a tensor once; for a part of an expanded tensor, a view of
        the tensor that was expanded.
        """
        if id(t) in self._expanded:
            source = self._expanded[id(t)][1]
            is_recorded = (t.requires_grad or source.requires_grad) and torch.is_grad_enabled()
            if is_recorded or (self._gapped and storage_id(source) in self._gapped):
                self._tracer.refuse(
                    "AG029",
                    f"{name} writes to a part of what is expanded, which requires grad or has gaps "
                    f"in memory",
                )
            sizes = [
                1 if type(stride) is int and stride == 0 else size
                for size, stride in zip(t.shape, t.stride())
            ]
            if expr_of(t.storage_offset()) == expr_of(source.storage_offset()):
                return self._as_strided(source, sizes, t.stride())
            self._note_offset(source)
            return self._as_strided(source, sizes, t.stride(), t.storage_offset())
        for d, (size, stride) in enumerate(zip(t.shape, t.stride())):
            if type(stride) is int and stride == 0 and size != 0:
                t = t.narrow(d, 0, 1)
        return t

    def _as_strided(
        self, target: torch.Tensor, size: Any, stride: Any, storage_offset: Any = None
    ) -> torch.Tensor:
        """``as_strided``, called on the base of a view: functionalisation writes through its result
        only if it is not called on a view.
        """
        base: Any = target
        while base._is_view() or id(base) in self._detached:
            base = base._base if base._is_view() else self._detached[id(base)][1]
        offset = storage_offset
        if offset is None and expr_of(target.storage_offset()) != expr_of(base.storage_offset()):
            offset = target.storage_offset()
        moves = (
            storage_offset is None
            and offset is not None
            and any(base is t.wrapper for t in self._tensors)
        )
        if id(base) in self._unmoved and not moves:
            placed = self._unmoved[id(base)][1].as_strided(size, stride, offset)
            self._by_place[id(placed)] = placed, base
            return placed
        # the storage offset of an input is unknown
        if base is target or id(base) in self.moved or not is_functional(base) or moves:
            return target.as_strided(size, stride, storage_offset)
        shown = base.as_strided(size, stride, offset)
        own = has_own_version(target, base)
        return shown.data if own else shown.detach() if base.requires_grad else shown

    def _is_part(self, target: torch.Tensor) -> bool:
        """Whether functionalisation treats a tensor as a part: of another tensor, or of memory with
        gaps.
        """
        if not is_functional(target):
            return False
        is_view = target.requires_grad and (target._is_view() or id(target) in self.moved)
        return is_view or (bool(self._gapped) and storage_id(target) in self._gapped)

    def _note_write(self, func: Any, target: torch.Tensor) -> None:
        """Bumps the version of a tensor that tracks writes, and notes that a resized input was
        filled, unless it shrank: then the memory behind it is unchanged.
        """
        if id(target) in self._by_place:
            torch._C._increment_version([self._by_place[id(target)][1]])
        if func in _FILLS and id(target) in self.moved and id(target) in self._given:
            now, before = target.numel(), self._given[id(target)].before.numel()
            if type(now) is type(before) is int and now >= before:
                self.filled.add(id(target))

    def _unfold(self, target: torch.Tensor, dimension: int, size: int, step: int) -> torch.Tensor:
        """``unfold``. Functionalisation writes windows back by adding them to zeros, so windows
        that do not overlap become slices of blocks.
        """
        length = target.shape[dimension] if target.dim() else 0
        if size <= step <= length and (size == step or (length - size) // step < length // step):
            d, count = dimension % target.dim(), length // step
            blocks = target.narrow(d, 0, count * step).unflatten(d, (count, step))
            return blocks.narrow(d + 1, 0, size).movedim(d + 1, -1)
        windows = target.unfold(dimension, size, step)
        self._windows[id(windows)] = windows
        return windows

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if not (_is_write(name) or "out" in kwargs) or not any(
            map(_is_wrapped, pytree.tree_leaves((args, kwargs)))
        ):
            return self._call(func, name, args, kwargs)
        targets = [t for t in pytree.tree_leaves((args[:1], kwargs.get("out"))) if is_functional(t)]
        before = list(map(_is_wrapped, targets))
        out = self._call(func, name, args, kwargs)
        if before != [is_wrapper(current_value(t)) for t in targets]:
            self._tracer.refuse(
                "AG034",
                f"{name} of tensors of which one is of a wrapper subclass, to one that is not, or "
                f"back",
            )
        return out

    def _call(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        func, target = resolve_overload(func, args, kwargs), args[0] if args else None
        reads_data = getattr(func, "__self__", None) is torch.Tensor.data
        used = self._read_by_data if reads_data else self._used
        used.update(id(t) for t in pytree.tree_leaves((args, kwargs)) if id(t) in self._given)
        if is_mutable_custom(func) or is_fused_step(name):
            return call_functional(func, args, kwargs)
        self._check(func, name, target, args, kwargs)
        if name == "backward" and self._not_leaves(kwargs.get("tensors", target)):
            self._tracer.refuse(
                "AG031", "backward() passes through what an input was computed from"
            )
        if func is torch.autograd.grad:
            self._differentiates(*args, **kwargs)
        if id(target) in self._given and (_is_write(name) or name == "__set__"):
            self.lines[id(target)] = self._tracer.user_line()
        if name.startswith("_foreach_") and name.endswith("_"):
            self._check_lists(name, args, kwargs)
            return write_to_each(func, args, kwargs)
        if not _is_write(name) or not is_functional(target):
            return self._read(func, target, args, kwargs)
        if overlaps_itself(target):
            if func not in _IDEMPOTENT or (target.requires_grad and torch.is_grad_enabled()):
                self._tracer.refuse(
                    "AG029", f"{name} writes to a tensor whose elements share memory"
                )
            func(self._one_of_each(target, name), *args[1:], **kwargs)
            return target
        if id(target) in self._expanded:
            func(self._one_of_each(target, name), *args[1:], **kwargs)
            return target
        self._check_overlap(name, target, (args[1:], kwargs))
        # reading a storage id creates a view, which can't be resized, so only do that if the target
        # is a view already
        root = self._gapped.get(storage_id(target)) if self._gapped and target._is_view() else None
        written = [(t, t.stride()) for t in (target, root) if t is not None]
        if name in _MOVES:
            return self._move(func, name, target, args, kwargs)
        out = func(*args, **kwargs)
        if (
            target.requires_grad
            and torch.is_grad_enabled()
            and any(storage_id(v) == storage_id(target) for v in self._moved_views)
        ):
            self._tracer.refuse(
                "AG022",
                f"{name} writes to memory of a view whose sizes or strides were changed in place",
            )
        self._note_write(func, target)
        self._restore_layouts(written)
        return out

    def _move(self, func: Any, name: str, target: torch.Tensor, args: Any, kwargs: Any) -> Any:
        """Runs an op that changes sizes and strides in place."""
        if name not in _RELAYOUTS:
            self._unmoved.pop(id(target), None)
        elif not (target._is_view() or target.requires_grad or id(target) in self.moved):
            self._unmoved[id(target)] = target, target.data
        self.moved.add(id(target))
        self.filled.discard(id(target))
        out = func(*args, **kwargs)
        self._moved_views += [target] if target._is_view() else []
        return out

    def _restore_layouts(self, written: Iterable[tuple[torch.Tensor, Sequence[Any]]]) -> None:
        """Restores the strides that tensors had before a write."""
        for t, strides in written:
            restored = t.stride() == strides or restore_layout(t, strides, self._tracer)
            if not restored or (self._gapped and storage_id(t) in self._gapped):
                self._dense.add(storage_id(t))


_OFFSET_AT = {"as_strided": 3, "as_strided_": 3, "as_strided_copy": 3, "as_strided_scatter": 4}


def _offset_operand(name: str, args: Any, kwargs: Any) -> torch.Tensor | None:
    """The tensor whose storage a call addresses by an offset, if any."""
    at = _OFFSET_AT.get(name.partition(".")[0])
    if at is None or (args[at] if len(args) > at else kwargs.get("storage_offset")) is None:
        return None
    target = args[0] if args else kwargs.get("input", kwargs.get("self"))
    return target if is_functional(target) else None


def _is_wrapped(value: Any) -> bool:
    return is_functional(value) and is_wrapper(torch._from_functional_tensor(value))


def _is_write(name: str) -> bool:
    is_method = name.endswith("_") and not name.endswith("__")
    return is_method or name == "__setitem__" or name.startswith("__i")


_RELAYOUTS = frozenset(["t_", "transpose_", "swapaxes_", "swapdims_", "unsqueeze_", "squeeze_"])
_MOVES = _RELAYOUTS | {"as_strided_", "resize_", "resize_as_", "set_"}
# these write element by element: eager refuses operands that overlap the written tensor if it can
# tell
_INDEXED = frozenset(
    "index_add_ index_copy_ index_put_ index_reduce_ put_ "
    "scatter_ scatter_add_ scatter_reduce_".split()
)
_UNSAFE = frozenset([  # views that autograd and functionalisation treat as copies
    torch.unsafe_split, torch.unsafe_chunk, torch.unsafe_split_with_sizes,
    torch.Tensor.unsafe_split, torch.Tensor.unsafe_chunk, torch.Tensor.unsafe_split_with_sizes,
])  # fmt: skip
_GRADIENT_STATE = frozenset(["register_hook", "register_post_accumulate_grad_hook", "retain_grad"])
# eager may write the same value to an element several times
_IDEMPOTENT = frozenset([torch.Tensor.fill_, torch.Tensor.zero_])
_DETACH = (torch.detach, torch.Tensor.detach)
_AS_STRIDED = (torch.as_strided, torch.Tensor.as_strided)
_EXPAND = (
    torch.Tensor.expand,
    torch.Tensor.expand_as,
    torch.Tensor.broadcast_to,
    torch.broadcast_to,
)
_FILLS = _IDEMPOTENT | {torch.Tensor.copy_, torch.Tensor.uniform_, torch.Tensor.normal_}
