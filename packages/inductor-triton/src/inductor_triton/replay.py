"""Whole host programs as CUDA graphs: recorded from an ordinary call, replayed while their conditions hold.

A model on a fast GPU is bound by the host, which needs 5 to 20 us per launch or library call; replaying a graph takes about
5 us whatever is in it. What a recording may rely on is checked at every call:

- sizes, stream and the addresses of its inputs are those of the recording; an input whose address keeps changing is copied
  into memory of the recording's own first;
- no tensor of an earlier replay is alive, since a replay writes to the same memory: results are never overwritten. A caller
  who keeps results gets a recording whose few and small results are copied out after each replay.

Where a condition fails, another recording is made (a bounded number) or the host program runs as it is. Programs with
data-dependent sizes, operators that may do more than compute, or tensors off the device are never recorded.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import torch
from loopir import ExternCall, HostProgram

from inductor_triton.launch import error_flag

RECORDINGS = 4
"""Per host program and sizes. Each keeps memory for its results and intermediates."""
SITUATIONS = 4
HELD = 2
"""Recordings whose results are held, after which the next one hands out copies."""
LARGEST_COPY = 32 << 20
"""Bytes of inputs, and of results, that a replay may copy; more is not worth it."""
MOST_COPIES = 16
WARM_CALLS = 2
SMALLEST_PROGRAM = 2
"""Launches and library calls below which a replay saves nothing."""

counters: Counter[str] = Counter()
"""``recorded``, ``replayed``, ``ran`` (without a recording), ``refused`` (a recording failed), ``bytes`` (recordings keep)."""

Metadata = dict[str, object]


@dataclass(slots=True)
class Result:
    """How a result of a replay becomes a tensor: of the recording's memory, from an input, or a constant value.

    An input as a result is the argument or a view of it; a result in the memory of a donated one (``donated``) is not.
    """

    value: object = None
    source: int | None = None
    donated: bool = False
    storage: torch.UntypedStorage | None = None
    holders: int = 0
    metadata: Metadata = field(default_factory=dict)

    def make(self, arguments: Sequence[object]) -> object:
        """The result of a replay with ``arguments``."""
        if self.storage is not None:
            return _tensor(self.metadata, self.storage)
        if self.source is None:
            return self.value
        tensor = arguments[self.source]
        if self.donated:
            return _tensor(self.metadata, tensor.untyped_storage())  # type: ignore[attr-defined]
        if not self.metadata:
            return tensor
        assert isinstance(tensor, torch.Tensor)
        return tensor.as_strided(self.metadata["size"], self.metadata["stride"], self.metadata["storage_offset"])  # type: ignore[arg-type]

    def busy(self) -> bool:
        """Whether somebody still holds this result of an earlier replay."""
        return self.storage is not None and torch._C._storage_Use_Count(self.storage._cdata) > self.holders


@dataclass(slots=True)
class Recording:
    """A CUDA graph with what its replay relies on. ``fixed`` are addresses by input position; ``copied`` own input tensors."""

    graph: torch.cuda.CUDAGraph
    fixed: tuple[tuple[int, int], ...]
    copied: tuple[tuple[int, torch.Tensor], ...]
    results: list[Result]
    hands_out_copies: bool = False

    def reads(self, addresses: Sequence[int]) -> bool:
        """Whether the inputs are where the recording expects them."""
        return all(addresses[i] == address for i, address in self.fixed)

    def free(self) -> bool:
        """Whether nobody holds a result of an earlier replay."""
        return self.hands_out_copies or not any(result.busy() for result in self.results)

    def copies_are_cheap(self) -> bool:
        """Whether results may be copied: few, small, and each alone in memory that it fills, so that a clone is like it."""
        own = [result for result in self.results if result.storage is not None]
        size = sum(result.storage.nbytes() for result in own if result.storage is not None)
        alone = len({id(result.storage) for result in own}) == len(own) and not any(result.donated for result in self.results)
        return alone and all(map(_fills_storage, own)) and len(own) <= MOST_COPIES and size <= LARGEST_COPY

    def replay(self, arguments: Sequence[object]) -> list[object]:
        """The results for ``arguments``."""
        for position, tensor in self.copied:
            tensor.copy_(arguments[position])  # type: ignore[arg-type]
        self.graph.replay()
        results = [result.make(arguments) for result in self.results]
        if self.hands_out_copies:
            own = zip(results, self.results)
            return [
                value.clone() if isinstance(value, torch.Tensor) and made.storage is not None else value for value, made in own
            ]
        return results


@dataclass(slots=True)
class Situation:
    """What is known of the calls with the same sizes on the same stream."""

    addresses: list[int]
    calls: int = 0
    made: int = 0
    moving: set[int] = field(default_factory=set)
    recordings: list[Recording] = field(default_factory=list)


class Replay:
    """A host program that is recorded and replayed where that is safe; called like it."""

    def __init__(self, program: HostProgram, device: torch.device) -> None:
        self._run = program.function
        self._index = device.index or 0
        self._situations: dict[tuple[object, ...], Situation] = {}
        self._names = {entry: i for i, entry in enumerate(program.program.inputs) if isinstance(entry, str)}
        self._outputs = [getattr(output, "buffer", None) for output in program.program.outputs]
        self._tensors = [i for i, entry in enumerate(program.program.inputs) if isinstance(entry, str)]
        self._numbers = [i for i, entry in enumerate(program.program.inputs) if i not in set(self._tensors)]
        self._enabled = True
        self._lock = threading.Lock()

    def __call__(self, *arguments: object) -> list[object]:
        stream = torch._C._cuda_getCurrentRawStream(self._index)
        if not self._enabled or torch._C._cuda_isCurrentStreamCapturing():
            return self._plain(arguments)
        key = (stream, *[arguments[i] for i in self._numbers])
        addresses = [arguments[i].data_ptr() for i in self._tensors]  # type: ignore[attr-defined]
        with self._lock:
            situation = self._situations.get(key) or self._meet(key, addresses)
            if situation is None:
                return self._plain(arguments)
            for recording in situation.recordings:
                if recording.reads(addresses) and recording.free():
                    error_flag().check("a replayed graph")
                    counters["replayed"] += 1
                    return recording.replay(arguments)
            return self._learn(situation, arguments, addresses)

    def _meet(self, key: tuple[object, ...], addresses: list[int]) -> Situation | None:
        """A new situation, if there is room or one without recordings to forget."""
        if len(self._situations) >= SITUATIONS:
            idle = next((other for other, known in self._situations.items() if not known.recordings), None)
            if idle is None:
                return None
            del self._situations[idle]
        situation = self._situations[key] = Situation(addresses)
        return situation

    def _plain(self, arguments: Sequence[object]) -> list[object]:
        counters["ran"] += 1
        return self._run(*arguments)

    def _learn(self, situation: Situation, arguments: Sequence[object], addresses: list[int]) -> list[object]:
        """Runs the program, or records it once the calls look alike."""
        situation.calls += 1
        situation.moving |= {i for i, (old, new) in enumerate(zip(situation.addresses, addresses)) if old != new}
        situation.addresses = addresses
        if situation.calls <= WARM_CALLS or situation.made >= RECORDINGS or self._bytes(situation, arguments) > LARGEST_COPY:
            return self._plain(arguments)
        situation.recordings = [known for known in situation.recordings if known.reads(addresses)]
        try:
            recording = self._record(situation, arguments, addresses)
        except RuntimeError:
            # What can't be captured is only known by trying; nothing ran, so running is safe.
            self._enabled = False
            counters["refused"] += 1
            return self._plain(arguments)
        held = sum(not known.free() for known in situation.recordings)
        recording.hands_out_copies = held >= HELD and recording.copies_are_cheap()
        situation.recordings.append(recording)
        situation.made += 1
        counters["recorded"] += 1
        return recording.replay(arguments)

    def _bytes(self, situation: Situation, arguments: Sequence[object]) -> int:
        moving = [arguments[self._tensors[i]] for i in situation.moving]
        return sum(tensor.numel() * tensor.element_size() for tensor in moving)  # type: ignore[attr-defined]

    def _record(self, situation: Situation, arguments: Sequence[object], addresses: list[int]) -> Recording:
        inputs = list(arguments)
        copied = []
        for number in sorted(situation.moving):
            position = self._tensors[number]
            tensor = inputs[position]
            assert isinstance(tensor, torch.Tensor)
            inputs[position] = own = torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
            )
            copied.append((position, own))
        before = torch.cuda.memory_reserved(self._index)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self._index)
        with torch.no_grad(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
            values = self._run(*inputs)
        counters["bytes"] += torch.cuda.memory_reserved(self._index) - before
        fixed = tuple((i, address) for i, address in enumerate(addresses) if i not in situation.moving)
        results = self._results(situation, values, inputs)
        del values, inputs
        for result in results:
            if result.storage is not None:
                result.holders = torch._C._storage_Use_Count(result.storage._cdata)
        return Recording(graph, fixed, tuple(copied), results)

    def _results(self, situation: Situation, values: Sequence[object], inputs: Sequence[object]) -> list[Result]:
        moving = {self._tensors[number] for number in situation.moving}
        sources = {inputs[i].untyped_storage()._cdata: i for i in self._tensors if i not in moving}  # type: ignore[attr-defined]
        storages: dict[int, torch.UntypedStorage] = {}
        results = []
        for value, name in zip(values, self._outputs, strict=True):
            if not isinstance(value, torch.Tensor):
                results.append(Result(value))
                continue
            storage, metadata = value.untyped_storage(), _metadata(value)
            if name in self._names:
                same = value is inputs[self._names[name]]
                results.append(Result(source=self._names[name], metadata={} if same else metadata))
            elif storage._cdata in sources:
                results.append(Result(source=sources[storage._cdata], donated=True, metadata=metadata))
            else:
                results.append(Result(storage=storages.setdefault(storage._cdata, storage), metadata=metadata))
        return results


def _tensor(metadata: Metadata, storage: torch.UntypedStorage) -> torch.Tensor:
    return torch._C._construct_CUDA_Tensor_From_Storage_And_Metadata(metadata, storage)  # pyright: ignore


def _fills_storage(result: Result) -> bool:
    size, dtype = result.metadata["size"], result.metadata["dtype"]
    return prod(size) * dtype.itemsize == result.metadata["nbytes"]  # type: ignore[arg-type, attr-defined]


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


def recordable(host: HostProgram) -> torch.device | None:
    """The device of a program that may be recorded, or None."""
    program = host.program
    devices = {buffer.device for buffer in program.buffers.values()}
    pure = all(name.startswith(("aten.", "prims.")) for name in host.extern_ops)
    known = all(not step.node.binds for step in program.steps if isinstance(step, ExternCall))
    big = host.launch_count + host.extern_count >= SMALLEST_PROGRAM
    device = devices.pop() if len(devices) == 1 else None
    return device if device is not None and device.type == "cuda" and pure and known and big else None


def accelerate(host: HostProgram) -> HostProgram:
    """Puts a :class:`Replay` in the place of the host function of a program for one CUDA device."""
    device = recordable(host)
    if device is not None:
        host.function = Replay(host, device)
    return host
