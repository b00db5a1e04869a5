"""Whole host programs as CUDA graphs: recorded from an ordinary call, replayed while their conditions hold.

A model on a fast GPU is bound by the host, which needs 5 to 20 us per library call; replaying a graph takes about 5 us whatever
is in it. What a recording may rely on is checked at every call:

- sizes, stream and the addresses of its inputs are those of the recording; an input whose address keeps changing is copied
  into memory of the recording's own first;
- nobody holds a tensor of an earlier replay that this one would write to: results are never overwritten. Small results that a
  caller was seen to keep are copied out from then on; for larger ones a second recording takes turns.

Where a condition fails, another recording is made (a bounded number) or the host program runs as it is. Programs with
data-dependent sizes, operators that may do more than compute, or tensors off the device are never recorded.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import torch
from loopir import ExternCall, HostProgram

from inductor_triton.extension import loaded_extension
from inductor_triton.launch import error_flag
from inductor_triton.pool import Memory, Pool, Watch, handed_out, shared_pool
from inductor_triton.spec import launch_spec, sequence_of

RECORDINGS = 4
"""Per host program and sizes; each further one needs twice as many unrecorded calls before it."""
SITUATIONS = 4
LARGEST_COPY = 32 << 20
"""Bytes of inputs, and of results, that a replay may copy by default; more is seldom worth it."""
SMALL = 1 << 20
"""Bytes of an input that is copied as soon as it moved after a recording: cheaper than waiting whether it settles."""
MOST_COPIES = 16
WARM_CALLS = 2
MANY_MOVES = 3
IDLE_CALLS = 16
"""Unrecorded calls after which a recording that was not used is dropped when another is made."""
DEVICE_SHARE = 0.5
"""Of the device's memory, what all recordings may keep together."""

counters: Counter[str] = Counter()
"""``recorded``, ``replayed``, ``ran`` (without a recording), ``held`` (a replay would have overwritten results), ``refused`` (a
recording failed), ``over_budget``, ``bytes`` (recordings keep), ``unrecordable`` (programs)."""

Metadata = dict[str, object]
_capturing = threading.RLock()


@dataclass(slots=True)
class Result:
    """How a result of a replay becomes a tensor: of the recording's memory, from an input, or a constant value.

    An input as a result is the argument or a view of it; a result in the memory of a donated one (``donated``) is not.
    ``copied``: callers keep it, so it is copied out.
    """

    value: object = None
    source: int | None = None
    donated: bool = False
    memory: Memory | None = None
    metadata: Metadata = field(default_factory=dict)
    copied: bool = False

    def make(self, arguments: Sequence[object], storages: dict[int, torch.UntypedStorage]) -> object:
        """The result of a replay with ``arguments``; ``storages`` are those already made of memories with several results."""
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
        return tensor.as_strided(self.metadata["size"], self.metadata["stride"], self.metadata["storage_offset"])  # type: ignore[arg-type]

    def _from_memory(self, memory: Memory, storages: dict[int, torch.UntypedStorage]) -> torch.Tensor:
        if self.copied:
            return memory.owner.clone()
        if memory.direct:
            return handed_out(memory.owner)
        storage = storages.get(id(memory))
        if storage is None:
            storage = storages[id(memory)] = handed_out(memory.owner).untyped_storage()
        return _tensor(self.metadata, storage)

    def copyable(self) -> bool:
        """Whether a clone is like the result: it is alone in memory that it fills."""
        owner = self.memory.owner if self.memory is not None and self.memory.direct else None
        return owner is not None and torch.empty_like(owner, device="meta").stride() == owner.stride()


@dataclass(slots=True, eq=False)
class Recording:
    """A CUDA graph with what its replay relies on. ``copied`` are own tensors by input position."""

    graph: torch.cuda.CUDAGraph
    fixed: bytes
    copied: tuple[tuple[int, torch.Tensor], ...]
    results: list[Result]
    memories: list[Memory]
    watch: Watch
    pool: Pool
    used: int = 0

    def __del__(self) -> None:
        self.pool.leave(self.memories)

    def replay(self, arguments: Sequence[object]) -> list[object]:
        """The results for ``arguments``."""
        for position, tensor in self.copied:
            tensor.copy_(arguments[position])  # type: ignore[arg-type]
        self.graph.replay()
        storages: dict[int, torch.UntypedStorage] = {}
        return [result.make(arguments, storages) for result in self.results]

    def held(self) -> set[int]:
        """The positions of results that somebody holds."""
        return {i for i, result in enumerate(self.results) if result.memory is not None and result.memory.busy()}

    def copy(self, positions: set[int], limit: int) -> bool:
        """Has these results copied out from now on, where they are few and small; says whether it does."""
        wanted = [self.results[i] for i in positions]
        size = sum(_nbytes(r.memory.owner) for r in wanted if r.memory is not None)
        if len(wanted) > MOST_COPIES or size > limit or not all(result.copyable() for result in wanted):
            return False
        for result in wanted:
            result.copied = True
        return bool(wanted)


@dataclass(slots=True)
class Situation:
    """What is known of the calls with the same sizes on the same stream. ``pool`` is None once its recordings stay apart;
    ``moves`` counts for each tensor how often its address changed, ``moved`` are those that changed last; ``copied`` are the
    results that callers keep."""

    pool: Pool | None
    addresses: bytes
    moves: list[int]
    fixed: tuple[int, ...]
    calls: int = 0
    made: int = 0
    due: int = 0
    moved: frozenset[int] = frozenset()
    moving: frozenset[int] = frozenset()
    copied: set[int] = field(default_factory=set)
    recordings: list[Recording] = field(default_factory=list)

    def notice(self, addresses: bytes, small: Callable[[int], bool]) -> bool:
        """Compares with the call before; says whether the calls look alike: what moved now moves at each call. ``small``:
        whether a tensor is."""
        self.calls += 1
        before, count = self.addresses, len(self.moves)
        moved = (
            [i for i in range(count) if before[8 * i : 8 * i + 8] != addresses[8 * i : 8 * i + 8]]
            if before != addresses
            else []
        )
        for i in moved:
            self.moves[i] += 1
        always = {i for i in moved if i in self.moved or self.moves[i] >= MANY_MOVES or (self.made and small(i))}
        self.addresses, self.moved = addresses, frozenset(moved)
        self.moving |= always
        return self.calls > WARM_CALLS and self.moving.issuperset(moved)

    def count(self) -> None:
        """A recording was made."""
        self.made += 1
        self.due = self.calls + (IDLE_CALLS << (self.made - RECORDINGS) if self.made >= RECORDINGS else 0)

    def forget_moves(self) -> None:
        """Starts watching the addresses anew."""
        self.moves, self.moving = [0] * len(self.moves), frozenset()


class Replay:
    """A host program that is recorded and replayed where that is safe; called like it."""

    def __init__(self, program: HostProgram, device: torch.device, copy_limit: int = LARGEST_COPY) -> None:
        self._run = program.function
        self._limit = copy_limit
        self._index = device.index or 0
        self._situations: dict[tuple[object, ...], Situation] = {}
        self._names = {entry: i for i, entry in enumerate(program.program.inputs) if isinstance(entry, str)}
        self._outputs = [getattr(output, "buffer", None) for output in program.program.outputs]
        self._tensors = tuple(i for i, entry in enumerate(program.program.inputs) if isinstance(entry, str))
        self._numbers = [i for i, entry in enumerate(program.program.inputs) if not isinstance(entry, str)]
        parts = [part for source in program.sources for part in sequence_of(source).parts]
        self._checks = any(launch_spec(part).errors for part in parts)
        self._enabled = True
        self._lock = threading.Lock()

    def __call__(self, *arguments: object) -> list[object]:
        stream = torch._C._cuda_getCurrentRawStream(self._index)
        if not self._enabled or torch._C._cuda_isCurrentStreamCapturing():
            return self._plain(arguments)
        key = (stream, *[arguments[i] for i in self._numbers])
        with self._lock:
            situation = self._situations.get(key) or self._meet(key, arguments)
            if situation is None:
                return self._plain(arguments)
            blocked = None
            if situation.recordings:
                addresses = _addresses(arguments, situation.fixed)
                for recording in situation.recordings:
                    if recording.fixed != addresses:
                        continue
                    if recording.watch.idle():
                        if self._checks:
                            error_flag().check("a replayed graph")
                        counters["replayed"] += 1
                        recording.used = situation.calls
                        return recording.replay(arguments)
                    blocked = recording
            return self._learn(situation, arguments, blocked)

    def _meet(self, key: tuple[object, ...], arguments: Sequence[object]) -> Situation | None:
        """A new situation, if there is room or one without recordings to forget."""
        if len(self._situations) >= SITUATIONS:
            idle = next((other for other, known in self._situations.items() if not known.recordings), None)
            if idle is None:
                return None
            del self._situations[idle]
        pool, addresses = shared_pool(self._index, key[0]), _addresses(arguments, self._tensors)  # type: ignore[arg-type]
        situation = self._situations[key] = Situation(pool, addresses, [0] * len(self._tensors), self._tensors)
        return situation

    def _plain(self, arguments: Sequence[object]) -> list[object]:
        counters["ran"] += 1
        return self._run(*arguments)

    def _learn(self, situation: Situation, arguments: Sequence[object], blocked: Recording | None) -> list[object]:
        """Runs the program, or records it once the calls look alike."""
        alike = situation.notice(_addresses(arguments, self._tensors), lambda i: _nbytes(arguments[self._tensors[i]]) <= SMALL)
        if blocked is not None and self._release(situation, blocked):
            return self._plain(arguments)
        moving = [self._tensors[i] for i in sorted(situation.moving)]
        size = sum(_nbytes(arguments[i]) for i in moving)
        if size > self._limit:
            situation.forget_moves()  # addresses settle once what makes these inputs is recorded itself
        if not alike or situation.calls < situation.due or size > self._limit or not self._affordable():
            return self._plain(arguments)
        fixed = tuple(i for i in self._tensors if i not in set(moving))
        kept = situation.recordings if fixed == situation.fixed else []
        situation.fixed, situation.recordings = fixed, [r for r in kept if situation.calls - r.used < IDLE_CALLS]
        try:
            with _capturing, torch.cuda.device(self._index):
                recording = self._record(situation, arguments, moving)
        except RuntimeError:
            # What can't be captured is only known by trying; nothing ran, so running is safe.
            self._enabled = False
            counters["refused"] += 1
            return self._plain(arguments)
        situation.recordings.append(recording)
        situation.count()
        counters["recorded"] += 1
        return recording.replay(arguments)

    def _release(self, situation: Situation, blocked: Recording) -> bool:
        """What to do about a recording that would overwrite results; says whether waiting may be enough."""
        counters["held"] += 1
        held = blocked.held()
        known, situation.copied = situation.copied, situation.copied | held
        if held and blocked.copy(situation.copied, self._limit):
            if not held <= known:
                return True
            situation.recordings.remove(blocked)  # kept for good: the next recording copies from the start
            return False
        situation.copied = known
        situation.pool = None  # results of other recordings must lie apart from what this program writes
        if not held:
            situation.recordings.remove(blocked)
        return False

    def _affordable(self) -> bool:
        allowed = DEVICE_SHARE * torch.cuda.get_device_properties(self._index).total_memory
        if counters["bytes"] <= allowed:
            return True
        counters["over_budget"] += 1
        return False

    def _record(self, situation: Situation, arguments: Sequence[object], moving: Sequence[int]) -> Recording:
        inputs = list(arguments)
        copied = []
        for position in moving:
            tensor = inputs[position]
            assert isinstance(tensor, torch.Tensor)
            inputs[position] = own = torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
            )
            copied.append((position, own))
        pool = situation.pool or Pool(self._index)
        torch.cuda.synchronize()
        # Workspaces of libraries belong to the stream: they come from the pool, and go back to it.
        _clear_workspaces()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved(self._index)
        graph = torch.cuda.CUDAGraph()
        mode = torch.cuda.graph(graph, pool=pool.handle, stream=pool.stream, capture_error_mode="thread_local")
        try:
            with torch.no_grad(), mode:
                values = self._run(*inputs)
        finally:
            _clear_workspaces()
        counters["bytes"] += torch.cuda.memory_reserved(self._index) - before
        results = self._results(values, inputs, set(moving))
        del values, inputs
        memories = list({id(result.memory): result.memory for result in results if result.memory is not None}.values())
        for memory in memories:
            memory.settle()
        watch = pool.enter(memories)
        fixed = _addresses(arguments, situation.fixed)
        recording = Recording(graph, fixed, tuple(copied), results, memories, watch, pool, situation.calls)
        recording.copy(situation.copied, self._limit)
        return recording

    def _results(self, values: Sequence[object], inputs: Sequence[object], moving: set[int]) -> list[Result]:
        sources = {inputs[i].untyped_storage()._cdata: i for i in self._tensors if i not in moving}  # type: ignore[attr-defined]
        storages = Counter(value.untyped_storage()._cdata for value in values if isinstance(value, torch.Tensor))
        shared: dict[int, Memory] = {}
        results = []
        for value, name in zip(values, self._outputs, strict=True):
            if not isinstance(value, torch.Tensor):
                results.append(Result(value))
                continue
            storage = value.untyped_storage()._cdata
            if name in self._names:
                same = value is inputs[self._names[name]]
                results.append(Result(source=self._names[name], metadata={} if same else _metadata(value)))
            elif storage in sources:
                results.append(Result(source=sources[storage], donated=True, metadata=_metadata(value)))
            elif storages[storage] == 1 and _is_reproduced(value):
                results.append(Result(memory=Memory(value, True)))
            else:
                memory = shared.setdefault(storage, Memory(_as_bytes(value), False))
                results.append(Result(memory=memory, metadata=_metadata(value)))
        return results


def _addresses(arguments: Sequence[object], positions: tuple[int, ...]) -> bytes:
    """The data pointers of the tensors among ``arguments`` at ``positions``, 8 bytes each."""
    extension = loaded_extension()
    if extension is not None:
        return extension.addresses(arguments, positions)
    return b"".join(arguments[i].data_ptr().to_bytes(8, "little") for i in positions)  # type: ignore[attr-defined]


def _nbytes(tensor: object) -> int:
    return tensor.numel() * tensor.element_size()  # type: ignore[attr-defined]


def _clear_workspaces() -> None:
    with suppress(AttributeError):
        torch._C._cuda_clearCublasWorkspaces()  # type: ignore[attr-defined]


def _is_reproduced(tensor: torch.Tensor) -> bool:
    """Whether what is handed out of ``tensor`` is like it."""
    out = handed_out(tensor)
    whole = tensor.storage_offset() == 0 and out.untyped_storage().nbytes() == tensor.untyped_storage().nbytes()
    return whole and (out.dtype, out.shape, out.stride()) == (tensor.dtype, tensor.shape, tensor.stride())


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


def recordable(host: HostProgram) -> torch.device | None:
    """The device of a program that may be recorded and calls a library, or None: launches alone are a graph already."""
    program = host.program
    devices = {buffer.device for buffer in program.buffers.values()}
    pure = all(name.startswith(("aten.", "prims.")) for name in host.extern_ops)
    known = all(not step.node.binds for step in program.steps if isinstance(step, ExternCall))
    device = devices.pop() if len(devices) == 1 else None
    return device if device is not None and device.type == "cuda" and pure and known and host.extern_count else None


def accelerate(host: HostProgram, copy_limit: int = LARGEST_COPY) -> HostProgram:
    """Puts a :class:`Replay` in the place of the host function of a program for one CUDA device; ``copy_limit``: bytes of
    inputs, and of results, that a replay may copy."""
    device = recordable(host)
    on_cuda = any(buffer.device.type == "cuda" for buffer in host.program.buffers.values())
    counters["unrecordable"] += device is None and on_cuda and host.extern_count > 0
    if device is not None:
        host.function = Replay(host, device, copy_limit)
    return host
