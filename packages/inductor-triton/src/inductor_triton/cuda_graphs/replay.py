"""Host programs as CUDA graphs: recorded from an ordinary call, replayed while their conditions
hold.

A model on a fast GPU is bound by the host, which needs 5 to 20 us per library call. Replaying a
graph takes about 5 us, whatever it contains. Every call checks the conditions of a recording:

- Sizes, stream and the addresses of its inputs are those of the recording. An input whose address
  keeps changing is first copied into the recording's own memory.
- No tensor of an earlier replay that this one would overwrite is still referenced. Small results
  that a caller kept once are copied out from then on; for larger ones a second recording takes
  turns.

If a condition fails, another recording is made (a bounded number), or the host program runs as it
is. Programs with data-dependent sizes, with operators that may do more than compute, or with
tensors on other devices are never recorded.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from loopir import HostProgram

from inductor_triton.launching.launch import error_flag
from inductor_triton.launching.launch_plan import reports_errors

from .block_placement import with_hook
from .graph_capture import capture, give_back
from .pool import Pool, ResultBlock, has_pools, shared_pool
from .recording import CallPattern, Recording, places_of, size_of
from .results import PrivateValues, Results, results_of

FEW_PATTERNS, MOST_PATTERNS, MOST_OBSERVED, IDLE_CALLS = 4, 32, 256, 256
"""Sizes (and streams) of which a program has recordings: so many in any case, and at most; how many
are observed; and after how many calls a recorded one makes room for another.
"""
PROGRAM_SHARE = 1 / 32
"""Share of the device's memory that a program with more than a few sizes may occupy."""
LARGEST_COPY = 32 << 20
"""Bytes of inputs, and of results, that a replay may copy by default."""
COPY_PER_CALL, MOST_COPIED, PATIENCE = 4 << 20, 1 << 30, 4
"""Bytes of inputs that are worth copying to save the host a library call, which takes it 5 us or
more while the device copies 10 MB; the most of all; and how many calls with larger inputs at new
addresses come before: addresses settle once the programs that make these inputs are recorded.
"""
SMALL = 1 << 20
"""Bytes of an input that is copied as soon as it moves after a recording: that is cheaper than
waiting until its address stops changing.
"""
DEVICE_SHARE = 0.5
"""Share of the device's memory that all recordings together may occupy by default."""

counters: Counter[str] = Counter()
"""``recorded``, ``replayed``, ``ran`` (without a recording), ``held`` (a replay would have
overwritten results), ``refused`` (a recording failed), ``over_budget``, ``bytes`` (of recordings),
``unrecordable`` (programs), ``spent`` (forward recordings whose private values were used up).
"""

RECORDED = ("aten.", "prims.", "inductor_triton.", "bytecode_dynamo.attention")
"""The names of operators of which it is known that they can be recorded: torch's and ours."""
NO_MEMORY = (
    "the device has too little memory to record a program as a CUDA graph; its kernels are "
    "launched one by one. Less memory for recordings: the option cuda_graph_memory; none: "
    "cuda_graphs=False"
)
_capturing = threading.RLock()


class RecordingWarning(UserWarning):
    """A program is not recorded, although it could be."""


@dataclass(frozen=True, slots=True)
class GraphEffects:
    """What a graph may do besides computing its results (contracts B6, B7).

    Attributes:
        writes: pairs of an input and the result that is written back to it.
        unread: the results that only this write-back reads.
        private_results: how many results, the last ones, only backward reads.
        private_inputs: first and end of the inputs that are such results.
    """

    writes: tuple[tuple[int, int], ...] = ()
    unread: frozenset[int] = frozenset()
    private_results: int = 0
    private_inputs: tuple[int, int] = (0, 0)

    @staticmethod
    def of(meta: Mapping[str, Any]) -> GraphEffects:
        """The effects that a graph's ``meta`` describes."""
        return GraphEffects(**{key: meta[key] for key in GraphEffects.__slots__ if key in meta})


class Replay:
    """A host program that is recorded and replayed where that is safe; called like it."""

    def __init__(
        self,
        program: HostProgram,
        device: torch.device,
        copy_limit: int = LARGEST_COPY,
        effects: GraphEffects | None = None,
        memory: float = DEVICE_SHARE,
    ) -> None:
        self._takes_list = getattr(program, "takes_list", False)
        self._hooks = hasattr(program, "written")
        self._function: Any = program.written if self._takes_list else program.function
        self._limit, self._memory = copy_limit, memory
        worth = min(COPY_PER_CALL * _library_calls(program), MOST_COPIED)
        self._most = max(copy_limit, worth) if copy_limit >= LARGEST_COPY else copy_limit
        self._index = device.index or 0
        self._patterns: dict[tuple[object, ...], CallPattern] = {}
        self._effects = effects or GraphEffects()
        self._num_private = self._calls = self._bytes = 0
        self._start: int | None = None
        self._entries = list(program.facts.inputs)
        self._outputs = list(program.facts.outputs)
        launchers = program.text.launchers.get("cuda", {})
        self._checks = any(map(reports_errors, launchers.values()))
        self._enabled = True
        self._lock = threading.Lock()
        self.writes_back = bool(self._effects.writes)
        self._copies = [pair for pair in self._effects.writes if pair[0] not in program.writes_back]
        self._sort_inputs()

    def _sort_inputs(self) -> None:
        kinds = [entry and entry[0] for entry in self._entries]
        self._tensors = tuple(i for i, kind in enumerate(kinds) if kind == "tensor")
        self._numbers = [i for i, kind in enumerate(kinds) if kind == "size"]

    def keeping(self) -> Replay:
        """Returns the private results as one :class:`PrivateValues` from now on."""
        self._num_private = self._effects.private_results
        return self

    def taking(self) -> Replay:
        """Takes the private inputs as one :class:`PrivateValues`, or a list, from now on."""
        self._start, end = self._effects.private_inputs
        self._entries[self._start : end] = [None]
        self._sort_inputs()
        return self

    def __call__(self, *arguments: object) -> list[object]:
        stream = torch._C._cuda_getCurrentRawStream(self._index)
        if not self._enabled or torch._C._cuda_isCurrentStreamCapturing():
            return self._run_unrecorded(arguments)
        key = (stream, *[arguments[i] for i in self._numbers])
        given = (
            getattr(arguments[self._start], "results", None) if self._start is not None else None
        )
        with self._lock:
            pattern = self._patterns.get(key) or self._new_pattern(key, arguments)
            self._calls += 1
            pattern.seen = self._calls
            blocked = None
            for recording in pattern.recordings:
                if not recording.fits(arguments, given):
                    continue
                if recording.watch.idle():
                    if self._checks:
                        error_flag().check("a replayed graph")
                    counters["replayed"] += 1
                    recording.used = pattern.calls
                    return recording.replay(arguments)
                blocked = recording
            return self._run_or_record(pattern, arguments, blocked, given)

    def _new_pattern(self, key: tuple[object, ...], arguments: Sequence[object]) -> CallPattern:
        """A new pattern, for which the oldest one without recordings makes room."""
        if len(self._patterns) >= MOST_OBSERVED:
            waiting = (key for key, known in self._patterns.items() if not known.recordings)
            del self._patterns[next(waiting)]
        pool, addresses = shared_pool(self._index, key[0]), places_of(arguments, self._tensors)  # type: ignore[arg-type]
        pattern = self._patterns[key] = CallPattern(
            pool, addresses, [0] * len(self._tensors), self._tensors
        )
        return pattern

    def _run_unrecorded(self, arguments: Sequence[object]) -> list[object]:
        counters["ran"] += 1
        values: list[Any] = self._run(arguments)
        if not self._num_private:
            return values
        private = PrivateValues(None, values[-self._num_private :])
        return [*values[: -self._num_private], private]

    def _run(
        self, arguments: Sequence[object], hook: Callable[[], None] | None = None
    ) -> list[object]:
        """Runs the program and writes results back. ``hook`` runs before each of its calls."""
        given = [*arguments]
        if self._start is not None:
            taken = given[self._start]
            given[self._start : self._start + 1] = (  # type: ignore[misc]
                taken.take() if isinstance(taken, PrivateValues) else taken
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
            # torch would copy integer tensors one at a time
            if tensor.dtype == value.dtype == torch.int64:
                tensor, value = tensor.view(torch.float64), value.view(torch.float64)
            targets, values = groups.setdefault((tensor.dtype, value.dtype), ([], []))
            targets.append(tensor)
            values.append(value)
        for targets, values in groups.values():
            torch._foreach_copy_(targets, values)
        return results

    def _run_or_record(
        self,
        pattern: CallPattern,
        arguments: Sequence[object],
        blocked: Recording | None,
        given: Results | None,
    ) -> list[object]:
        """Runs the program, or records it once the calls look alike."""
        alike = pattern.notice(
            places_of(arguments, self._tensors),
            lambda i: size_of(arguments[self._tensors[i]]) <= SMALL,
        )
        if blocked is not None and self._handle_blocked(pattern, blocked):
            return self._run_unrecorded(arguments)
        moving = [self._tensors[i] for i in sorted(pattern.moving)]
        size = sum(size_of(arguments[i]) for i in moving)
        limit = self._limit if pattern.waited < PATIENCE else self._most
        if size > limit:
            # addresses stop changing once the program that makes these inputs is recorded, too
            pattern.forget_moves()
        waits = self._start is not None and given is None  # until forward is recorded
        if (
            not alike
            or waits
            or pattern.calls < pattern.due
            or size > limit
            or not self._affordable(pattern)
        ):
            return self._run_unrecorded(arguments)
        if given is not None and given.released:
            # another backward reuses its memory: record forward again, then this one
            given.spent = True
            counters["spent"] += 1
            pattern.count()
            return self._run_unrecorded(arguments)
        fixed = tuple(i for i in self._tensors if i not in set(moving))
        pattern.keep(fixed)
        try:
            with _capturing, torch.cuda.device(self._index):
                recording = self._record(pattern, arguments, moving, given)
        except RuntimeError as error:
            # Only a trial shows what can't be captured; nothing ran, so running it now is safe.
            self._enabled = False
            counters["refused"] += 1
            if isinstance(error, torch.OutOfMemoryError):
                warnings.warn(NO_MEMORY, RecordingWarning, stacklevel=2)
            if given is not None:
                given.spent = given.released
            return self._run_unrecorded(arguments)
        pattern.recordings.append(recording)
        pattern.count()
        counters["recorded"] += 1
        return recording.replay(arguments)

    def _handle_blocked(self, pattern: CallPattern, blocked: Recording) -> bool:
        """Handles a recording that would overwrite results; returns whether to keep it and wait."""
        counters["held"] += 1
        held, waits = blocked.results.held(), blocked.results.waits()
        known, pattern.copied = pattern.copied, pattern.copied | held
        if held and not waits and blocked.copy(pattern.copied, self._limit):
            if not held <= known:
                return True
            # callers never release it: the next recording copies from the start
            pattern.recordings.remove(blocked)
            return False
        pattern.copied = known
        # other recordings' results must not share memory with anything that this program writes
        pattern.pool = None
        if not held and not waits:
            pattern.recordings.remove(blocked)
        return False

    def _affordable(self, pattern: CallPattern) -> bool:
        """Whether there is memory for another recording, and a place, for which the sizes that were
        not seen for longest make room.
        """
        total = torch.cuda.get_device_properties(self._index).total_memory
        if counters["bytes"] > self._memory * total:
            counters["over_budget"] += 1
            return False
        recorded = [key for key, known in self._patterns.items() if known.recordings]
        # forward's private values stay until backward is recorded, for each of the sizes
        trains = self._effects.private_results > 0 or self._effects.private_inputs[1] > 0
        is_light = self._bytes <= PROGRAM_SHARE * total and not trains
        most = MOST_PATTERNS if is_light else FEW_PATTERNS
        if pattern.recordings or len(recorded) < most:
            return True
        oldest = min(recorded, key=lambda key: self._patterns[key].seen)
        if self._calls - self._patterns[oldest].seen < IDLE_CALLS:
            return False
        del self._patterns[oldest]
        return True

    def _record(
        self,
        pattern: CallPattern,
        arguments: Sequence[object],
        moving: Sequence[int],
        given: Results | None,
    ) -> Recording:
        inputs, copied = _own_copies(arguments, moving)
        token = given.token if given is not None else None
        pool = pattern.pool or Pool(self._index)
        if pool.waits(token):
            pool = Pool(self._index)
        blocks: dict[int, ResultBlock] = {}
        held: list[torch.Tensor] = []
        if given is not None and given.home is not None and token is not None:
            assert self._start is not None
            if given.home[0] is pool:
                inputs[self._start] = given.release()
                pool.free(token)
            else:
                # keeps their storages alive and so distinct until results_of
                held = given.private_tensors()
                inputs[self._start], blocks = [*held], given.private_blocks(held)
        give_back()
        before = torch.cuda.memory_reserved(self._index)
        graph, values = capture(
            pool,
            lambda hook, inputs=inputs: self._run(inputs, hook),
            again=given is None and self._hooks,
        )
        grown = torch.cuda.memory_reserved(self._index) - before
        grown += sum(size_of(own) for _, own in copied)
        self._bytes += grown
        counters["bytes"] += grown
        for position in self._effects.unread:
            values[position] = None
        sources = {
            inputs[i].untyped_storage()._cdata: i  # type: ignore[attr-defined]
            for i in self._tensors
            if i not in set(moving)
        }
        names = {self._entries[i][1]: (i, inputs[i]) for i in self._tensors}  # type: ignore[index]
        made = results_of(values, self._outputs, names, sources, blocks)  # type: ignore[arg-type]
        results = Results(made, self._num_private, blocks.values())
        results.home = pool, graph
        del values, inputs, held
        for block in results.blocks:
            block.settle()
        watch = pool.enter(results.blocks, token)
        fixed = places_of(arguments, pattern.fixed)
        written = frozenset(target for target, _ in self._effects.writes) & {*moving}
        source = weakref.ref(given) if given is not None else None
        recording = Recording(
            graph, pattern.fixed, fixed, tuple(copied), written, results, watch, pool, source,
            pattern.calls,
        )  # fmt: skip
        recording.copy(pattern.copied, self._limit)
        return recording


def _own_copies(
    arguments: Sequence[object], moving: Sequence[int]
) -> tuple[list[object], list[tuple[int, torch.Tensor]]]:
    """The arguments with new tensors for those that move; and by position what a replay copies
    into: the new tensors, each element of an expanded one once.
    """
    inputs, copied = list(arguments), []
    for position in moving:
        tensor = inputs[position]
        assert isinstance(tensor, torch.Tensor)
        inputs[position] = own = torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
        )
        for dim, (size, stride) in enumerate(zip(own.shape, own.stride())):
            if size > 1 and stride == 0:
                own = own.narrow(dim, 0, 1)
        copied.append((position, own))
    return inputs, copied


def recordable(host: HostProgram) -> torch.device | None:
    """The device of a program that can be recorded and is worth recording, because it calls a
    library; otherwise None. Launches alone already run as a graph (see launch plans), and seeds
    need no launch.
    """
    facts = host.facts
    pure = all(name.startswith(RECORDED) for name in facts.extern_ops)
    device = next(iter(facts.devices)) if len(facts.devices) == 1 else None
    is_known = pure and not facts.binds_sizes
    if device is not None and device.type == "cuda" and is_known and _library_calls(host):
        return device
    return None


def _library_calls(host: HostProgram) -> int:
    return sum(name != "prims.random_seed" for name in host.extern_ops)


def accelerate(
    host: HostProgram,
    copy_limit: int = LARGEST_COPY,
    meta: Mapping[str, Any] | None = None,
    memory: float = DEVICE_SHARE,
) -> HostProgram:
    """Replaces the host function of a program for one CUDA device by a :class:`Replay`.

    Args:
        host: the program.
        copy_limit: bytes of inputs, and of results, that a replay may copy; unless it is below
            the default, more of inputs may be worth it.
        meta: the graph's ``meta``, see :class:`GraphEffects`.
        memory: the share of the device's memory that all recordings together may occupy.
    """
    device = recordable(host) if has_pools() else None
    on_cuda = any(device.type == "cuda" for device in host.facts.devices)
    counters["unrecordable"] += device is None and on_cuda and _library_calls(host) > 0
    if device is not None:
        host.function = Replay(host, device, copy_limit, GraphEffects.of(meta or {}), memory)
    return host
