"""How results of a recording become tensors, and saved values that stay in it until backward reads
them (contract B7).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .pool import Memory, Pool, handed_out, hold

Metadata = dict[str, object]


@dataclass(slots=True)
class Result:
    """How a result of a replay becomes a tensor: of a recording's memory, from an input, or a
    constant value.

    An input as a result is the argument or a view of it; a result in the memory of a donated one
    (``donated``) is not. ``copied``: callers keep it, so it is copied out.
    """

    value: object = None
    source: int | None = None
    donated: bool = False
    memory: Memory | None = None
    metadata: Metadata = field(default_factory=dict)
    copied: bool = False

    def make(
        self, arguments: Sequence[object], storages: dict[int, torch.UntypedStorage]
    ) -> object:
        """The result of a replay with ``arguments``; ``storages`` are those already made of
        memories with several results.
        """
        if self.memory is not None:
            return self._from_memory(self.memory, storages)
        if self.source is None:
            return self.value
        tensor = arguments[self.source]
        if self.donated:
            return _tensor(self.metadata, tensor.untyped_storage())  # type: ignore[attr-defined]
        if not self.metadata:
            return tensor
        assert isinstance(tensor, torch.Tensor)
        layout: Any = self.metadata
        return tensor.as_strided(layout["size"], layout["stride"], layout["storage_offset"])

    def _from_memory(
        self, memory: Memory, storages: dict[int, torch.UntypedStorage]
    ) -> torch.Tensor:
        if self.copied:
            return memory.owner.clone()
        if not self.metadata:
            return handed_out(memory.owner)
        storage = storages.get(id(memory))
        if storage is None:
            storage = storages[id(memory)] = handed_out(memory.owner).untyped_storage()
        return _tensor(self.metadata, storage)

    def copyable(self) -> bool:
        """Whether a clone is like the result: it is alone in memory that it fills."""
        owner = self.memory.owner if self.memory is not None and not self.metadata else None
        return (
            owner is not None and torch.empty_like(owner, device="meta").stride() == owner.stride()
        )


class Results:
    """All results of a recording. ``kept``: how many of them, the last ones, are handed out as one
    :class:`Kept`; ``memories`` are those of this recording alone, not ``others``; ``home``: its
    pool and graph, which keep the memory. ``released``: see
    :meth:`release`; ``spent``: a recording that would read the kept values again needs new ones.
    """

    def __init__(
        self, every: Sequence[Result], kept: int = 0, others: Iterable[Memory] = ()
    ) -> None:
        self.every = every
        self._seen, self._kept = every[: len(every) - kept], every[len(every) - kept :]
        known = {id(memory) for memory in others}
        found = {id(r.memory): r.memory for r in every if r.memory is not None}
        self.memories = [memory for number, memory in found.items() if number not in known]
        self.token: Memory | None = None
        if kept and all(result.memory is not None for result in self._kept):
            addresses = tuple(r.memory.owner.data_ptr() for r in self._kept if r.memory is not None)
            self.token = Memory(torch.empty(1), addresses)
            self.memories.append(self.token)
        self._owners: list[torch.Tensor] | None = None
        self.home: tuple[Pool, object] | None = None
        self.released = self.spent = False
        self.settle()

    def release(self) -> list[torch.Tensor]:
        """The kept values, which from now on nobody else holds: their memory is free for what is
        recorded next as it lets go of them. What replays over it later must wait for the token;
        whoever else asks for the values is given copies.
        """
        values, seen = self.make_kept(), {id(result.memory) for result in self._seen}
        freed = {
            id(r.memory): r.memory
            for r in self._kept
            if r.memory is not None and id(r.memory) not in seen
        }
        for memory in freed.values():
            memory.let_go()
        self.memories = [memory for memory in self.memories if id(memory) not in freed]
        self.released = True
        return values

    def settle(self) -> None:
        """Prepares handing out; repeated when a result is to be copied out from now on."""
        plain = all(r.memory is not None and not r.metadata and not r.copied for r in self._seen)
        self._owners = (
            [r.memory.owner for r in self._seen if r.memory is not None] if plain else None
        )

    def make(self, arguments: Sequence[object]) -> list[object]:
        """The results of a replay with ``arguments``."""
        storages: dict[int, torch.UntypedStorage] = {}
        made: list[object]
        if self._owners is None:
            made = [result.make(arguments, storages) for result in self._seen]
        else:
            made = [handed_out(owner) for owner in self._owners]
        if self._kept:
            made.append(
                Kept(self)
                if self.token
                else Kept(None, [result.make(arguments, storages) for result in self._kept])  # type: ignore[arg-type]
            )
        return made

    def make_kept(self) -> list[torch.Tensor]:
        """The kept ones as tensors."""
        storages: dict[int, torch.UntypedStorage] = {}
        made: list[torch.Tensor] = [result.make((), storages) for result in self._kept]  # type: ignore[misc]
        return list(map(_copy, made)) if self.released else made

    def kept_memory(self, tensors: Iterable[torch.Tensor]) -> dict[int, Memory]:
        """The memories of what :meth:`make_kept` made, by the storage that it has."""
        pairs = zip(tensors, self._kept, strict=True)
        return {
            tensor.untyped_storage()._cdata: result.memory
            for tensor, result in pairs
            if result.memory is not None
        }

    def held(self) -> set[int]:
        """The positions of results that somebody holds, except what is kept."""
        return {
            i
            for i, result in enumerate(self._seen)
            if result.memory is not None and result.memory.busy()
        }

    def waits(self) -> bool:
        """Whether backward, or somebody else, has yet to read what is kept."""
        kept = any(result.memory is not None and result.memory.busy() for result in self._kept)
        return kept or (self.token is not None and self.token.busy())


class Kept:
    """Values that only backward reads: ``values``, or those of a replay, of which tensors are made
    only if need be.
    """

    __slots__ = ("_hold", "_seen", "_values", "results")

    def __init__(self, results: Results | None, values: list[torch.Tensor] | None = None) -> None:
        self.results, self._values, self._seen = results, values, False
        self._hold = (
            hold(results.token.owner) if results is not None and results.token is not None else None
        )

    def tensors(self) -> list[torch.Tensor]:
        """The values, which the caller may keep."""
        self._seen = True
        return self._open()

    def take(self) -> list[torch.Tensor]:
        """The values for who overwrites them, at the end: copies where somebody has seen them."""
        values = self._open()
        if self._seen:
            return list(map(_copy, values))
        self._values = None
        return values

    def _open(self) -> list[torch.Tensor]:
        if self._values is None:
            assert self.results is not None
            # no replay reads them any more
            self._values, self.results = self.results.make_kept(), None
        return self._values


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, whatever they are."""
    place = tensor.storage_offset(), tensor.shape, tensor.stride()
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(
        tensor.untyped_storage().clone(), *place
    )  # type: ignore[call-overload]


def results_of(
    values: Sequence[object],
    outputs: Sequence[str | None],
    inputs: Mapping[str, tuple[int, torch.Tensor]],
    sources: Mapping[int, int],
    given: Mapping[int, Memory],
) -> list[Result]:
    """How ``values`` come about again. ``outputs``: their buffers; ``inputs``: positions and
    tensors by buffer; ``sources``: positions of inputs by storage; ``given``: memory of another
    recording by storage.
    """
    storages = Counter(
        value.untyped_storage()._cdata for value in values if isinstance(value, torch.Tensor)
    )
    shared: dict[int, Memory] = {}
    results = []
    for value, name in zip(values, outputs, strict=True):
        if not isinstance(value, torch.Tensor):
            results.append(Result(value))
            continue
        storage = value.untyped_storage()._cdata
        if name is not None and name in inputs:
            position, tensor = inputs[name]
            results.append(
                Result(source=position, metadata={} if value is tensor else _metadata(value))
            )
        elif storage in sources:
            results.append(Result(source=sources[storage], donated=True, metadata=_metadata(value)))
        elif storage in given:
            results.append(Result(memory=given[storage], metadata=_metadata(value)))
        elif storages[storage] == 1 and _is_reproduced(value):
            results.append(Result(memory=Memory(value)))
        else:
            memory = shared.setdefault(storage, Memory(_as_bytes(value)))
            results.append(Result(memory=memory, metadata=_metadata(value)))
    return results


def _is_reproduced(tensor: torch.Tensor) -> bool:
    """Whether what is handed out of ``tensor`` is like it."""
    out = handed_out(tensor)
    whole = (
        tensor.storage_offset() == 0
        and out.untyped_storage().nbytes() == tensor.untyped_storage().nbytes()
    )
    return whole and (out.dtype, out.shape, out.stride()) == (
        tensor.dtype,
        tensor.shape,
        tensor.stride(),
    )


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The storage of ``tensor`` as a tensor of bytes."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())  # type: ignore[call-overload]


def _tensor(metadata: Metadata, storage: torch.UntypedStorage) -> torch.Tensor:
    return torch._C._construct_CUDA_Tensor_From_Storage_And_Metadata(metadata, storage)  # pyright: ignore


def _metadata(tensor: torch.Tensor) -> Metadata:
    return {
        "size": tuple(tensor.shape),
        "stride": tensor.stride(),
        "storage_offset": tensor.storage_offset(),
        "dtype": tensor.dtype,
        "device": tensor.device,
        "nbytes": tensor.untyped_storage().nbytes(),
        "data_ptr": tensor.untyped_storage().data_ptr(),
    }
