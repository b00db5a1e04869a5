"""Whole host programs as CUDA graphs: recorded from an ordinary call, replayed while their
conditions hold.

A model on a fast GPU is bound by the host, which needs 5 to 20 us per library call; replaying a
graph takes about 5 us whatever is in it. What a recording may rely on is checked at every call:

- sizes, stream and the addresses of its inputs are those of the recording; an input whose address
  keeps changing is copied into memory of the recording's own first;
- nobody holds a tensor of an earlier replay that this one would write to: results are never
  overwritten. Small results that a caller was seen to keep are copied out from then on; for larger
  ones a second recording takes turns.

Where a condition fails, another recording is made (a bounded number) or the host program runs as it
is. Programs with data-dependent sizes, operators that may do more than compute, or tensors off the
device are never recorded.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from loopir import ExternCall, HostProgram

from inductor_triton.launching.launch import error_flag
from inductor_triton.spec import launch_spec, sequence_of

from .block_placement import with_hook
from .graph_capture import capture, give_back
from .pool import Memory, Pool, shared_pool
from .recording import Recording, Situation, places_of, size_of
from .results import Kept, Results, results_of

SITUATIONS = 4
LARGEST_COPY = 32 << 20
"""Bytes of inputs, and of results, that a replay may copy by default; more is seldom worth it."""
SMALL = 1 << 20
"""Bytes of an input that is copied as soon as it moved after a recording: cheaper than waiting
whether it settles.
"""
DEVICE_SHARE = 0.5
"""Of the device's memory, what all recordings may keep together."""

counters: Counter[str] = Counter()
"""``recorded``, ``replayed``, ``ran`` (without a recording), ``held`` (a replay would have
overwritten results), ``refused`` (a recording failed), ``over_budget``, ``bytes`` (recordings
keep), ``unrecordable`` (programs), ``spent`` (forward recordings whose saved values another
backward had to itself).
"""

_capturing = threading.RLock()


@dataclass(frozen=True, slots=True)
class Offer:
    """What a graph may do beyond computing (contracts B6, B7): write results back (``writes``:
    input and result), where nobody else reads those of ``unread``; keep its last results as one;
    take the inputs from ``first`` to ``end`` as one.
    """

    writes: tuple[tuple[int, int], ...] = ()
    unread: frozenset[int] = frozenset()
    kept_results: int = 0
    kept_inputs: tuple[int, int] = (0, 0)

    @staticmethod
    def of(meta: Mapping[str, Any]) -> Offer:
        """What a graph's ``meta`` says."""
        return Offer(**{key: meta[key] for key in Offer.__slots__ if key in meta})


class Replay:
    """A host program that is recorded and replayed where that is safe; called like it."""

    def __init__(
        self,
        program: HostProgram,
        device: torch.device,
        copy_limit: int = LARGEST_COPY,
        offer: Offer | None = None,
    ) -> None:
        self._takes_list = getattr(program, "takes_list", False)
        self._hooks = hasattr(program, "written")
        self._function: Any = program.written if self._takes_list else program.function
        self._limit = copy_limit
        self._index = device.index or 0
        self._situations: dict[tuple[object, ...], Situation] = {}
        self._offer = offer or Offer()
        self._kept = 0
        self._start: int | None = None
        self._entries: list[object] = list(program.program.inputs)
        self._outputs = [getattr(output, "buffer", None) for output in program.program.outputs]
        parts = [part for source in program.sources for part in sequence_of(source).parts]
        self._checks = any(launch_spec(part).errors for part in parts)
        self._enabled = True
        self._lock = threading.Lock()
        self.writes_back = bool(self._offer.writes)
        self._copies = [pair for pair in self._offer.writes if pair[0] not in program.writes_back]
        self._sort_inputs()

    def _sort_inputs(self) -> None:
        self._tensors = tuple(i for i, entry in enumerate(self._entries) if isinstance(entry, str))
        self._numbers = [
            i for i, entry in enumerate(self._entries) if not isinstance(entry, str | type(None))
        ]

    def keeping(self) -> Replay:
        """From now on the last results, which only backward reads, are one :class:`Kept`."""
        self._kept = self._offer.kept_results
        return self

    def taking(self) -> Replay:
        """From now on these inputs are one: a :class:`Kept`, or a list."""
        self._start, end = self._offer.kept_inputs
        self._entries[self._start : end] = [None]
        self._sort_inputs()
        return self

    def __call__(self, *arguments: object) -> list[object]:
        stream = torch._C._cuda_getCurrentRawStream(self._index)
        if not self._enabled or torch._C._cuda_isCurrentStreamCapturing():
            return self._plain(arguments)
        key = (stream, *[arguments[i] for i in self._numbers])
        given = (
            getattr(arguments[self._start], "results", None) if self._start is not None else None
        )
        with self._lock:
            situation = self._situations.get(key) or self._meet(key, arguments)
            if situation is None:
                return self._plain(arguments)
            blocked = None
            for recording in situation.recordings:
                if not recording.fits(arguments, given):
                    continue
                if recording.watch.idle():
                    if self._checks:
                        error_flag().check("a replayed graph")
                    counters["replayed"] += 1
                    recording.used = situation.calls
                    return recording.replay(arguments)
                blocked = recording
            return self._learn(situation, arguments, blocked, given)

    def _meet(self, key: tuple[object, ...], arguments: Sequence[object]) -> Situation | None:
        """A new situation, if there is room or one without recordings to forget."""
        if len(self._situations) >= SITUATIONS:
            idle = next(
                (other for other, known in self._situations.items() if not known.recordings), None
            )
            if idle is None:
                return None
            del self._situations[idle]
        pool, addresses = shared_pool(self._index, key[0]), places_of(arguments, self._tensors)  # type: ignore[arg-type]
        situation = self._situations[key] = Situation(
            pool, addresses, [0] * len(self._tensors), self._tensors
        )
        return situation

    def _plain(self, arguments: Sequence[object]) -> list[object]:
        counters["ran"] += 1
        values = self._run(arguments)
        return [*values[: -self._kept], Kept(None, values[-self._kept :])] if self._kept else values  # type: ignore[arg-type]

    def _run(
        self, arguments: Sequence[object], hook: Callable[[], None] | None = None
    ) -> list[object]:
        """Runs the program, ``hook`` before each of its calls, and writes back."""
        given = [*arguments]
        if self._start is not None:
            taken = given[self._start]
            given[self._start : self._start + 1] = (  # type: ignore[misc]
                taken.take() if isinstance(taken, Kept) else taken
            )
            if isinstance(taken, list):
                taken.clear()
            del taken
        function = self._function if hook is None else with_hook(self._function, hook)
        results = function(given) if self._takes_list else function(*given)
        groups: dict[object, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        for target, position in self._copies:
            tensor, value = arguments[target].data, results[position]  # type: ignore[attr-defined]
            assert isinstance(value, torch.Tensor)
            # of integers, torch copies each by itself
            if tensor.dtype == value.dtype == torch.int64:
                tensor, value = tensor.view(torch.float64), value.view(torch.float64)
            targets, values = groups.setdefault((tensor.dtype, value.dtype), ([], []))
            targets.append(tensor)
            values.append(value)
        for targets, values in groups.values():
            torch._foreach_copy_(targets, values)
        return results

    def _learn(
        self,
        situation: Situation,
        arguments: Sequence[object],
        blocked: Recording | None,
        given: Results | None,
    ) -> list[object]:
        """Runs the program, or records it once the calls look alike."""
        alike = situation.notice(
            places_of(arguments, self._tensors),
            lambda i: size_of(arguments[self._tensors[i]]) <= SMALL,
        )
        if blocked is not None and self._release(situation, blocked):
            return self._plain(arguments)
        moving = [self._tensors[i] for i in sorted(situation.moving)]
        size = sum(size_of(arguments[i]) for i in moving)
        if size > self._limit:
            # addresses settle once what makes these inputs is recorded itself
            situation.forget_moves()
        waits = self._start is not None and given is None  # for forward to be recorded
        if (
            not alike
            or waits
            or situation.calls < situation.due
            or size > self._limit
            or not self._affordable()
        ):
            return self._plain(arguments)
        if given is not None and given.released:
            # another backward was recorded over it: forward is recorded again, and this one after
            # it
            given.spent = True
            counters["spent"] += 1
            situation.count()
            return self._plain(arguments)
        fixed = tuple(i for i in self._tensors if i not in set(moving))
        situation.keep(fixed)
        try:
            with _capturing, torch.cuda.device(self._index):
                recording = self._record(situation, arguments, moving, given)
        except RuntimeError:
            # What can't be captured is only known by trying; nothing ran, so running is safe.
            self._enabled = False
            counters["refused"] += 1
            if given is not None:
                given.spent = given.released
            return self._plain(arguments)
        situation.recordings.append(recording)
        situation.count()
        counters["recorded"] += 1
        return recording.replay(arguments)

    def _release(self, situation: Situation, blocked: Recording) -> bool:
        """What to do about a recording that would overwrite results; says whether waiting may be
        enough.
        """
        counters["held"] += 1
        held, waits = blocked.results.held(), blocked.results.waits()
        known, situation.copied = situation.copied, situation.copied | held
        if held and not waits and blocked.copy(situation.copied, self._limit):
            if not held <= known:
                return True
            # kept for good: the next recording copies from the start
            situation.recordings.remove(blocked)
            return False
        situation.copied = known
        # results of other recordings must lie apart from what this program writes
        situation.pool = None
        if not held and not waits:
            situation.recordings.remove(blocked)
        return False

    def _affordable(self) -> bool:
        allowed = DEVICE_SHARE * torch.cuda.get_device_properties(self._index).total_memory
        if counters["bytes"] <= allowed:
            return True
        counters["over_budget"] += 1
        return False

    def _record(
        self,
        situation: Situation,
        arguments: Sequence[object],
        moving: Sequence[int],
        given: Results | None,
    ) -> Recording:
        inputs, copied = _own_copies(arguments, moving)
        token = given.token if given is not None else None
        pool = situation.pool or Pool(self._index)
        if pool.waits(token):
            pool = Pool(self._index)
        memories: dict[int, Memory] = {}
        held: list[torch.Tensor] = []
        if given is not None and given.home is not None and token is not None:
            assert self._start is not None
            if given.home[0] is pool:
                inputs[self._start] = given.release()
                pool.free(token)
            else:
                held = given.make_kept()  # until the results are told apart by their storages
                inputs[self._start], memories = [*held], given.kept_memory(held)
        give_back()
        before = torch.cuda.memory_reserved(self._index)
        graph, values = capture(
            pool,
            lambda hook, inputs=inputs: self._run(inputs, hook),
            again=given is None and self._hooks,
        )
        counters["bytes"] += torch.cuda.memory_reserved(self._index) - before
        for position in self._offer.unread:
            values[position] = None
        sources = {
            inputs[i].untyped_storage()._cdata: i  # type: ignore[attr-defined]
            for i in self._tensors
            if i not in set(moving)
        }
        names = {self._entries[i]: (i, inputs[i]) for i in self._tensors}
        made = results_of(values, self._outputs, names, sources, memories)  # type: ignore[arg-type]
        results = Results(made, self._kept, memories.values())
        results.home = pool, graph
        del values, inputs, held
        for memory in results.memories:
            memory.settle()
        watch = pool.enter(results.memories, token)
        fixed = places_of(arguments, situation.fixed)
        written = frozenset(target for target, _ in self._offer.writes) & {*moving}
        source = weakref.ref(given) if given is not None else None
        recording = Recording(
            graph, situation.fixed, fixed, tuple(copied), written, results, watch, pool, source,
            situation.calls,
        )  # fmt: skip
        recording.copy(situation.copied, self._limit)
        return recording


def _own_copies(
    arguments: Sequence[object], moving: Sequence[int]
) -> tuple[list[object], list[tuple[int, torch.Tensor]]]:
    """The arguments with memory of our own for those that move; and that memory by position."""
    inputs, copied = list(arguments), []
    for position in moving:
        tensor = inputs[position]
        assert isinstance(tensor, torch.Tensor)
        inputs[position] = own = torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
        )
        copied.append((position, own))
    return inputs, copied


def recordable(host: HostProgram) -> torch.device | None:
    """The device of a program that may be recorded and calls a library, or None: launches alone are
    a graph already, and seeds take no launch.
    """
    program = host.program
    devices = {buffer.device for buffer in program.buffers.values()}
    pure = all(name.startswith(("aten.", "prims.")) for name in host.extern_ops)
    known = all(not step.node.binds for step in program.steps if isinstance(step, ExternCall))
    device = devices.pop() if len(devices) == 1 else None
    if device is not None and device.type == "cuda" and pure and known and _library_calls(host):
        return device
    return None


def _library_calls(host: HostProgram) -> int:
    return sum(name != "prims.random_seed" for name in host.extern_ops)


def accelerate(
    host: HostProgram, copy_limit: int = LARGEST_COPY, meta: Mapping[str, Any] | None = None
) -> HostProgram:
    """Puts a :class:`Replay` in the place of the host function of a program for one CUDA device;
    ``copy_limit``: bytes of inputs, and of results, that a replay may copy; ``meta``: that of the
    graph, which says what it may do besides.
    """
    device = recordable(host)
    on_cuda = any(buffer.device.type == "cuda" for buffer in host.program.buffers.values())
    counters["unrecordable"] += device is None and on_cuda and _library_calls(host) > 0
    if device is not None:
        host.function = Replay(host, device, copy_limit, Offer.of(meta or {}))
    return host
