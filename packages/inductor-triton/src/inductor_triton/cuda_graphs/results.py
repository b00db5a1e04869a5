"""Makes tensors of a recording's results, and private values, which stay in its memory until
backward reads them (contract B7).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .pool import Pool, ResultBlock, handed_out, hold

Metadata = dict[str, object]


@dataclass(slots=True)
class Result:
    """How a result of a replay is made: from a block, from an input, or a constant.

    Attributes:
        value: the constant.
        source: position of the input that the result is, or is a view of.
        donated: whether the result reuses the memory of a donated input without being its view.
        block: the block of the recording's memory that contains it.
        metadata: layout of a result that does not fill its memory.
        copied: whether it is copied out because callers keep it.
    """

    value: object = None
    source: int | None = None
    donated: bool = False
    block: ResultBlock | None = None
    metadata: Metadata = field(default_factory=dict)
    copied: bool = False

    def make(
        self, arguments: Sequence[object], storages: dict[int, torch.UntypedStorage]
    ) -> object:
        """The result of a replay with ``arguments``. ``storages`` has those made for blocks with
        several results.
        """
        if self.block is not None:
            return self._from_block(self.block, storages)
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

    def _from_block(
        self, block: ResultBlock, storages: dict[int, torch.UntypedStorage]
    ) -> torch.Tensor:
        if self.copied:
            return block.owner.clone()
        if not self.metadata:
            return handed_out(block.owner)
        storage = storages.get(id(block))
        if storage is None:
            storage = storages[id(block)] = handed_out(block.owner).untyped_storage()
        return _tensor(self.metadata, storage)

    def copyable(self) -> bool:
        """Whether a clone has the same layout: the result fills its memory alone."""
        owner = self.block.owner if self.block is not None and not self.metadata else None
        return (
            owner is not None and torch.empty_like(owner, device="meta").stride() == owner.stride()
        )


class Results:
    """All results of a recording.

    Args:
        every: the results.
        num_private: how many of them, the last ones, are handed out as :class:`PrivateValues`.
        others: blocks of other recordings.

    Attributes:
        blocks: the recording's own blocks.
        token: represents the memory of all private values.
        home: the recording's pool and graph, which keep the memory alive.
        released: see :meth:`release`.
        spent: whether the private values were used up: another backward needs a new forward
            recording.
    """

    def __init__(
        self, every: Sequence[Result], num_private: int = 0, others: Iterable[ResultBlock] = ()
    ) -> None:
        self.every = every
        public = len(every) - num_private
        self._public, self._private = every[:public], every[public:]
        known = {id(block) for block in others}
        found = {id(r.block): r.block for r in every if r.block is not None}
        self.blocks = [block for number, block in found.items() if number not in known]
        self.token: ResultBlock | None = None
        if num_private and all(result.block is not None for result in self._private):
            addresses = tuple(
                r.block.owner.data_ptr() for r in self._private if r.block is not None
            )
            self.token = ResultBlock(torch.empty(1, device="cpu"), addresses)
            self.blocks.append(self.token)
        self._owners: list[torch.Tensor] | None = None
        self.home: tuple[Pool, object] | None = None
        self.released = self.spent = False
        self.settle()

    def release(self) -> list[torch.Tensor]:
        """The private values; frees their memory for what is recorded next.

        A recording that reuses it must not replay while the token is referenced. Later requests for
        the values get copies.
        """
        values, seen = self.private_tensors(), {id(result.block) for result in self._public}
        freed = {
            id(r.block): r.block
            for r in self._private
            if r.block is not None and id(r.block) not in seen
        }
        for block in freed.values():
            block.let_go()
        self.blocks = [block for block in self.blocks if id(block) not in freed]
        self.released = True
        return values

    def settle(self) -> None:
        """Finds the fastest way to hand out the results; call it again after ``copied`` has
        changed.
        """
        plain = all(r.block is not None and not r.metadata and not r.copied for r in self._public)
        self._owners = (
            [r.block.owner for r in self._public if r.block is not None] if plain else None
        )

    def make(self, arguments: Sequence[object]) -> list[object]:
        """The results of a replay with ``arguments``."""
        storages: dict[int, torch.UntypedStorage] = {}
        made: list[object]
        if self._owners is None:
            made = [result.make(arguments, storages) for result in self._public]
        else:
            made = [handed_out(owner) for owner in self._owners]
        if self._private and self.token:
            made.append(PrivateValues(self))
        elif self._private:
            values: list[Any] = [result.make(arguments, storages) for result in self._private]
            made.append(PrivateValues(None, values))
        return made

    def private_tensors(self) -> list[torch.Tensor]:
        """The private values as tensors."""
        storages: dict[int, torch.UntypedStorage] = {}
        made: list[torch.Tensor] = [result.make((), storages) for result in self._private]  # type: ignore[misc]
        return list(map(_copy, made)) if self.released else made

    def private_blocks(self, tensors: Iterable[torch.Tensor]) -> dict[int, ResultBlock]:
        """The blocks of the tensors that :meth:`private_tensors` returned, by storage."""
        pairs = zip(tensors, self._private, strict=True)
        return {
            tensor.untyped_storage()._cdata: result.block
            for tensor, result in pairs
            if result.block is not None
        }

    def held(self) -> set[int]:
        """Positions of the public results that are still referenced."""
        return {
            i
            for i, result in enumerate(self._public)
            if result.block is not None and result.block.busy()
        }

    def waits(self) -> bool:
        """Whether the private values are still to be read."""
        unread = any(result.block is not None and result.block.busy() for result in self._private)
        return unread or (self.token is not None and self.token.busy())


class PrivateValues:
    """Values that only backward reads: ``values``, or those of a replay, which become tensors only
    on demand.
    """

    __slots__ = ("_hold", "_seen", "_values", "results")

    def __init__(self, results: Results | None, values: list[torch.Tensor] | None = None) -> None:
        self.results, self._values, self._seen = results, values, False
        self._hold = (
            hold(results.token.owner) if results is not None and results.token is not None else None
        )

    def tensors(self) -> list[torch.Tensor]:
        """The values, for a caller that may keep them."""
        self._seen = True
        return self._open()

    def take(self) -> list[torch.Tensor]:
        """The values, for a caller that overwrites them; copies if ``tensors`` has already returned
        them.
        """
        values = self._open()
        if self._seen:
            return list(map(_copy, values))
        self._values = None
        return values

    def _open(self) -> list[torch.Tensor]:
        if self._values is None:
            assert self.results is not None
            # no replay reads them any more
            self._values, self.results = self.results.private_tensors(), None
        return self._values


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides."""
    place = tensor.storage_offset(), tensor.shape, tensor.stride()
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(
        tensor.untyped_storage().clone(), *place
    )  # type: ignore[call-overload]


def results_of(
    values: Sequence[object],
    outputs: Sequence[str | None],
    inputs: Mapping[str, tuple[int, torch.Tensor]],
    sources: Mapping[int, int],
    given: Mapping[int, ResultBlock],
) -> list[Result]:
    """How each replay makes ``values``.

    Args:
        values: the results of the recorded call.
        outputs: the buffers of the results.
        inputs: position and tensor of each input, by buffer.
        sources: positions of the inputs by storage.
        given: blocks of another recording by storage.
    """
    storages = Counter(
        value.untyped_storage()._cdata for value in values if isinstance(value, torch.Tensor)
    )
    shared: dict[int, ResultBlock] = {}
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
            results.append(Result(block=given[storage], metadata=_metadata(value)))
        elif storages[storage] == 1 and _is_reproduced(value):
            results.append(Result(block=ResultBlock(value)))
        else:
            block = shared.setdefault(storage, ResultBlock(_as_bytes(value)))
            results.append(Result(block=block, metadata=_metadata(value)))
    return results


def _is_reproduced(tensor: torch.Tensor) -> bool:
    """Whether ``handed_out`` reproduces the layout of ``tensor``."""
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
