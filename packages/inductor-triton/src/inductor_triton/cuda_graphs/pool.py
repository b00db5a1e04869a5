"""Memory of recorded graphs: who shares it, and who still holds what was handed out of it.

Recordings that replay on one stream run one after the other, so their intermediates share one pool.
Results stay allocated, so no later recording lies over them; but a result of a later recording may
lie where an earlier one keeps intermediates. That one may not replay while somebody holds such a
result. What a forward recording saves is free from when its backward is recorded on: later
recordings may lie there, and may not replay while somebody waits for such a backward.
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
    """A tensor over the memory of ``owner`` with a storage of its own, as if nobody else held it;
    it keeps the memory alive.
    """
    return _from_dlpack(_to_dlpack(owner))


def borrowed(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor over the same memory that does not keep it."""
    storage = tensor.untyped_storage()
    own = torch._C._construct_storage_from_data_pointer(
        storage.data_ptr(), tensor.device, storage.nbytes()
    )  # type: ignore[attr-defined]
    place = tensor.storage_offset(), tensor.shape, tensor.stride()
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(own, *place)  # type: ignore[call-overload]


def hold(owner: torch.Tensor) -> object:
    """Counts as a holder of ``owner`` while it lives, without a tensor."""
    return _to_dlpack(owner)


@cache
def _counts_tensors() -> bool:
    """Whether what is handed out holds the owner itself (else a view of it, which holds the owner's
    storage).
    """
    owner = torch.empty(2)
    before = owner._use_count()  # type: ignore[attr-defined]
    out = handed_out(owner)
    return owner._use_count() > before and out is not None  # type: ignore[attr-defined]


class Memory:
    """Memory of one result, of several in one storage (``owner`` is bytes then), or of all that
    ``addresses`` name, for which ``owner`` stands.
    """

    __slots__ = ("addresses", "idle", "orphan", "owner", "thing")

    def __init__(self, owner: torch.Tensor, addresses: tuple[int, ...] | None = None) -> None:
        self.addresses = (owner.data_ptr(),) if addresses is None else addresses
        self.idle = 0
        self.orphan = False
        self.own(owner)

    def own(self, owner: torch.Tensor) -> None:
        """Takes ``owner`` for the memory."""
        self.owner = owner
        self.thing: object = owner if _counts_tensors() else owner.untyped_storage()._cdata

    def let_go(self) -> None:
        """Leaves the memory to who was handed it; nobody watches it any more."""
        self.own(borrowed(self.owner))
        self.settle()
        self.orphan = True

    def settle(self) -> None:
        """Remembers the number of holders when nothing is handed out."""
        self.idle = _use_count()(self.thing)

    def busy(self) -> bool:
        """Whether somebody holds what was handed out."""
        return _use_count()(self.thing) > self.idle


@cache
def _use_count() -> Callable[[Any], int]:
    return torch.Tensor._use_count if _counts_tensors() else torch._C._storage_Use_Count  # type: ignore[attr-defined]


@dataclass(slots=True, weakref_slot=True)
class Watch:
    """Memories that must be idle."""

    memories: list[Memory] = field(default_factory=list)
    things: tuple[object, ...] = ()
    limits: tuple[int, ...] = ()

    def change(self, added: Sequence[Memory] = ()) -> None:
        """Watches these as well; they must have settled. Memory of recordings that are gone is let
        go once it is idle.
        """
        self.memories = [
            memory for memory in (*self.memories, *added) if not memory.orphan or memory.busy()
        ]
        self.things = tuple(memory.thing for memory in self.memories)
        self.limits = tuple(memory.idle for memory in self.memories)

    def idle(self) -> bool:
        """Whether nobody holds any of them."""
        extension = loaded_extension()
        if extension is not None:
            return not extension.exceeds(_use_count(), self.things, self.limits)
        return not any(memory.busy() for memory in self.memories)


def has_own_settings() -> bool:
    """Whether the user has settings of the allocator."""
    named = any(os.environ.get(name) for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"))
    return named or getattr(torch._C, "_accelerator_getAllocatorSettings", str)() not in (
        "",
        NOT_GROWING,
    )


@contextmanager
def growing_memory() -> Iterator[None]:
    """Lets the allocator take memory as one range that grows, in which far less is lost between
    blocks; unless the user has settings of the allocator.
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
    """The pool of one stream of a device: its handle, the stream that captures, and the recordings
    made in it.
    """

    def __init__(self, device: int) -> None:
        self.device = device
        self.handle = torch.cuda.graph_pool_handle()
        self.stream = torch.cuda.Stream(device)
        self._extents: list[tuple[list[int], list[int], weakref.ref[Watch]]] = []
        self._free: list[Memory] = []

    def is_empty(self) -> bool:
        """Whether there is no recording in it."""
        return all(reference() is None for *_, reference in self._extents)

    def renew(self) -> None:
        """Starts anew, in other memory."""
        self.handle = torch.cuda.graph_pool_handle()
        self._extents, self._free = [], []

    def free(self, token: Memory) -> None:
        """What ``token`` stands for is no longer held for it."""
        self._free.append(token)
        self._change()

    def waits(self, token: Memory | None) -> bool:
        """Whether somebody but who holds ``token`` waits for values in memory that is free."""
        self._free = [memory for memory in self._free if not memory.orphan or memory.busy()]
        return any(memory.busy() for memory in self._free if memory is not token)

    def enter(self, own: Sequence[Memory], token: Memory | None = None) -> Watch:
        """A recording with results ``own``, which reads what ``token`` stands for, was made;
        returns what must be idle when it replays.
        """
        self._extents = [entry for entry in self._extents if entry[2]() is not None]
        for starts, ends, reference in self._extents:
            if (watch := reference()) is not None:
                watch.change(
                    [
                        memory
                        for memory in own
                        if any(_within(a, starts, ends) for a in memory.addresses)
                    ]
                )
        watch = Watch()
        watch.change([*own, *(memory for memory in self._free if memory is not token)])
        self._extents.append((*self._segments(), weakref.ref(watch)))
        return watch

    def leave(self, own: Sequence[Memory]) -> None:
        """The recording with these results is gone."""
        for memory in own:
            memory.orphan = True
        self._change()

    def _change(self) -> None:
        for _, _, reference in self._extents:
            if (watch := reference()) is not None:
                watch.change()

    def _segments(self) -> tuple[list[int], list[int]]:
        """Where the pool's memory is, in order."""
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
