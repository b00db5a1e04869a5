"""Memory pools of recorded graphs, and the references to results in them.

Recordings that replay on one stream run one after the other, so their intermediates share a pool.
Results stay allocated: no later recording reuses their memory. But the result of a later recording
may share memory with an intermediate of an earlier one, so the earlier one must not replay while
that result is referenced.

The values that a forward recording saves are freed once its backward has been recorded. Later
recordings may reuse that memory, and must not replay while such a backward is still to come.
"""

from __future__ import annotations

import os
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from inductor_triton.launching.extension import loaded_extension

_to_dlpack: Callable[[torch.Tensor], Any] = torch._C._to_dlpack  # type: ignore[attr-defined]
_from_dlpack: Callable[[Any], torch.Tensor] = torch._C._from_dlpack  # type: ignore[attr-defined]


NOT_GROWING = "expandable_segments:False"


def handed_out(owner: torch.Tensor) -> torch.Tensor:
    """A tensor over the memory of ``owner`` with a storage of its own, which keeps that memory
    alive. To autograd and to users it is the only reference.
    """
    return _from_dlpack(_to_dlpack(owner))


def borrowed(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor over the same memory that does not keep it alive."""
    storage = tensor.untyped_storage()
    own = torch._C._construct_storage_from_data_pointer(
        storage.data_ptr(), tensor.device, storage.nbytes()
    )  # type: ignore[attr-defined]
    place = tensor.storage_offset(), tensor.shape, tensor.stride()
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(own, *place)  # type: ignore[call-overload]


def hold(owner: torch.Tensor) -> object:
    """A reference to ``owner`` without a tensor."""
    return _to_dlpack(owner)


@cache
def _counts_tensors() -> bool:
    """Whether ``handed_out`` references the owner itself; else it references a view, and so the
    owner's storage.
    """
    owner = torch.empty(2, device="cpu")
    before = owner._use_count()  # type: ignore[attr-defined]
    out = handed_out(owner)
    return owner._use_count() > before and out is not None  # type: ignore[attr-defined]


class ResultBlock:
    """Memory of results, and a count of the references to it.

    Attributes:
        owner: the tensor in that memory: the result, or bytes if several results share a storage.
        addresses: its address; a token (``Results.token``) stands for several blocks.
        idle: the reference count while no result is handed out.
        orphan: whether the recording is gone or has released the memory.
        counted: the object whose references are counted.
    """

    __slots__ = ("addresses", "counted", "idle", "orphan", "owner")

    def __init__(self, owner: torch.Tensor, addresses: tuple[int, ...] | None = None) -> None:
        self.addresses = (owner.data_ptr(),) if addresses is None else addresses
        self.idle = 0
        self.orphan = False
        self.own(owner)

    def own(self, owner: torch.Tensor) -> None:
        """Makes ``owner`` the tensor in the memory."""
        self.owner = owner
        self.counted: object = owner if _counts_tensors() else owner.untyped_storage()._cdata

    def let_go(self) -> None:
        """Releases the memory to the remaining references to a result in it."""
        self.own(borrowed(self.owner))
        self.settle()
        self.orphan = True

    def settle(self) -> None:
        """Records the reference count while nothing is handed out."""
        self.idle = _use_count()(self.counted)

    def busy(self) -> bool:
        """Whether a result that was handed out is still referenced."""
        return _use_count()(self.counted) > self.idle


@cache
def _use_count() -> Callable[[Any], int]:
    return torch.Tensor._use_count if _counts_tensors() else torch._C._storage_Use_Count  # type: ignore[attr-defined]


@dataclass(slots=True, weakref_slot=True)
class Watch:
    """Blocks that must be idle before a replay."""

    blocks: list[ResultBlock] = field(default_factory=list)
    counted: tuple[object, ...] = ()
    limits: tuple[int, ...] = ()

    def change(self, added: Sequence[ResultBlock] = ()) -> None:
        """Adds blocks, which must have settled; drops orphans that are idle."""
        self.blocks = [
            block for block in (*self.blocks, *added) if not block.orphan or block.busy()
        ]
        self.counted = tuple(block.counted for block in self.blocks)
        self.limits = tuple(block.idle for block in self.blocks)

    def idle(self) -> bool:
        """Whether all of them are idle."""
        extension = loaded_extension()
        if extension is not None:
            return not extension.exceeds(_use_count(), self.counted, self.limits)
        return not any(block.busy() for block in self.blocks)


def has_own_settings() -> bool:
    """Whether the user has settings of the allocator."""
    named = any(os.environ.get(name) for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"))
    return named or getattr(torch._C, "_accelerator_getAllocatorSettings", str)() not in (
        "",
        NOT_GROWING,
    )


def has_pools() -> bool:
    """Whether the allocator has pools for recordings: the user's own and CUDA's have none, nor has
    torch's without its cache.
    """
    backend = getattr(torch._C, "_cuda_getAllocatorBackend", lambda: "native")()
    return backend == "native" and not os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING")


@contextmanager
def growing_memory() -> Iterator[None]:
    """Uses expandable segments, which lose far less memory between blocks, unless the user has set
    up the allocator.
    """
    change = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    change = change or getattr(torch._C, "_cuda_cudaCachingAllocator_set_allocator_settings", None)
    if change is None or has_own_settings():
        yield
        return
    before = getattr(torch._C, "_accelerator_getAllocatorSettings", str)()
    change("expandable_segments:True")
    try:
        yield
    finally:
        change(NOT_GROWING)
        if before:
            change(before)


class Pool:
    """The memory pool of one stream: its handle, the stream that captures, and its recordings."""

    def __init__(self, device: int) -> None:
        self.device = device
        self.handle = torch.cuda.graph_pool_handle()
        self.stream = torch.cuda.Stream(device)
        self._extents: list[tuple[list[int], list[int], weakref.ref[Watch]]] = []
        self._free: list[ResultBlock] = []

    def is_empty(self) -> bool:
        """Whether it has no recordings."""
        return all(reference() is None for *_, reference in self._extents)

    def renew(self) -> None:
        """Starts over with new memory."""
        self.handle = torch.cuda.graph_pool_handle()
        self._extents, self._free = [], []

    def free(self, token: ResultBlock) -> None:
        """Frees the memory that ``token`` represents."""
        self._free.append(token)
        self._change()

    def waits(self, token: ResultBlock | None) -> bool:
        """Whether values in freed memory are still to be read, other than those of ``token``."""
        self._free = [block for block in self._free if not block.orphan or block.busy()]
        return any(block.busy() for block in self._free if block is not token)

    def enter(self, own: Sequence[ResultBlock], token: ResultBlock | None = None) -> Watch:
        """Adds a recording; returns the blocks that must be idle when it replays.

        Args:
            own: the blocks of its results.
            token: represents the saved values that it reads.
        """
        self._extents = [entry for entry in self._extents if entry[2]() is not None]
        for starts, ends, reference in self._extents:
            if (watch := reference()) is not None:
                watch.change(
                    [
                        block
                        for block in own
                        if any(_within(a, starts, ends) for a in block.addresses)
                    ]
                )
        watch = Watch()
        watch.change([*own, *(block for block in self._free if block is not token)])
        self._extents.append((*self._segments(), weakref.ref(watch)))
        return watch

    def leave(self, own: Sequence[ResultBlock]) -> None:
        """Removes the recording with these results."""
        for block in own:
            block.orphan = True
        self._change()

    def _change(self) -> None:
        for _, _, reference in self._extents:
            if (watch := reference()) is not None:
                watch.change()

    def _segments(self) -> tuple[list[int], list[int]]:
        """Starts and ends of the pool's segments, in order."""
        found = [
            entry
            for entry in torch.cuda.memory_snapshot()
            if tuple(entry.get("segment_pool_id", ())) == self.handle
        ]
        spans = sorted(
            (entry["address"], entry["address"] + entry["total_size"]) for entry in found
        )
        return [start for start, _ in spans], [end for _, end in spans]


def _within(address: int, starts: Sequence[int], ends: Sequence[int]) -> bool:
    place = bisect_right(starts, address) - 1
    return place >= 0 and address < ends[place]


_pools: dict[tuple[int, int], Pool] = {}


def shared_pool(device: int, stream: int) -> Pool:
    """The pool of all recordings that replay on this stream."""
    if (device, stream) not in _pools:
        _pools[device, stream] = Pool(device)
    return _pools[device, stream]
