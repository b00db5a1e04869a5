"""Captures a host program into a CUDA graph; captures it a second time if planning its memory takes
less than the allocator did.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import torch

from .block_placement import SMALL, Placer, blocks_of, place
from .fills import fills_as_kernels
from .pool import Pool, growing_memory, has_own_settings

Run = Callable[[Callable[[], None] | None], list[object]]
"""Runs the host program and calls a function before each of its calls."""
Captured = tuple[torch.cuda.CUDAGraph, list[object]]
WORTH = 1 / 32
"""Share of the memory that a second capture must save to be worth it."""
MOST_EVENTS = 1 << 20


def capture(pool: Pool, run: Run, again: bool) -> Captured:
    """Captures ``run``; returns the graph and the results. ``again``: whether ``run`` may be called
    more than once.
    """
    with _no_collection():
        return _planned(pool, run, again)


def _planned(pool: Pool, run: Run, again: bool) -> Captured:
    empty = pool.is_empty()
    if empty:
        # a pool whose graphs are gone accepts no new one while its memory is still referenced
        pool.renew()
    if (
        not again
        or not empty
        or has_own_settings()
        or getattr(torch._C, "_cuda_isHistoryEnabled", bool)()
    ):
        return _capture(pool, lambda: run(None))
    trace = _Trace(pool)
    with trace.kept():
        graph, values = _capture(pool, lambda: run(trace.mark))
    first = torch.cuda.memory_reserved(pool.device)
    placed, total = place(blocks_of(trace.events, trace.marks))
    if not trace.complete or total > (1 - WORTH) * trace.held - SMALL:
        return graph, values
    for placer in (
        Placer(placed, total, _bytes, lambda: torch.cuda.memory_reserved(pool.device)),
        None,
    ):
        del values
        graph.reset()
        pool.renew()
        graph, values = _capture(
            pool, lambda placer=placer: _place(run, placer), grows=placer is None
        )
        if placer is None or (placer.follows and torch.cuda.memory_reserved(pool.device) <= first):
            break
    return graph, values


def _place(run: Run, placer: Placer | None) -> list[object]:
    if placer is None:
        return run(None)
    calls = iter(range(1 << 30))
    placer.start()
    values = run(lambda: placer.before(next(calls)))
    placer.fillers = []
    return values


def _bytes(count: int) -> object:
    return torch.empty(count, dtype=torch.uint8, device="cuda")


def _capture(pool: Pool, run: Callable[[], list[object]], grows: bool = True) -> Captured:
    give_back()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    mode = torch.cuda.graph(
        graph, pool=pool.handle, stream=pool.stream, capture_error_mode="thread_local"
    )
    try:
        with (
            _undone(pool), growing_memory() if grows else nullcontext(), torch.no_grad(), mode,
        ):  # fmt: skip
            values = run()
    finally:
        _clear_workspaces()
    fills_as_kernels(graph.raw_cuda_graph(), pool.device)
    graph.instantiate()
    return graph, list(values)


@contextmanager
def _undone(pool: Pool) -> Iterator[None]:
    """Undoes what a capture changes if it fails: torch then leaves the capture's stream current,
    the allocator with its pool, and the random generator in a capture.
    """
    stream = torch.cuda.current_stream(pool.device)
    try:
        yield
    except BaseException:
        torch.cuda.set_stream(stream)
        with suppress(RuntimeError):  # the capture ended in spite of the error
            torch._C._cuda_endAllocateToPool(pool.device, pool.handle)
            torch._C._cuda_releasePool(pool.device, pool.handle)
        _capture_nothing(pool)
        raise


def _capture_nothing(pool: Pool) -> None:
    """A capture that ends, and with it that of the random generator."""
    nothing = torch.cuda.CUDAGraph()
    with warnings.catch_warnings(), suppress(RuntimeError):
        warnings.simplefilter("ignore")  # that the graph is empty
        with torch.cuda.graph(nothing, stream=pool.stream, capture_error_mode="thread_local"):
            pass


@contextmanager
def _no_collection() -> Iterator[None]:
    """Disables garbage collection: unreachable recordings must not be destroyed during a capture,
    nor their pool freed before it.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def give_back() -> None:
    """Frees unused memory, including library workspaces: they belong to a stream, and a capture
    allocates its own from the pool.
    """
    torch.cuda.synchronize()
    _clear_workspaces()
    torch.cuda.empty_cache()


def _clear_workspaces() -> None:
    with suppress(AttributeError):
        torch._C._cuda_clearCublasWorkspaces()  # type: ignore[attr-defined]


class _Trace:
    """The allocator requests of a capture: ``events`` (allocated, address, size), ``marks`` (the
    number of events before each call), and ``held``, the bytes reserved for large blocks at the
    end.
    """

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.events: list[tuple[bool, int, int]] = []
        self.marks: list[int] = []
        self.held, self.complete = 0, False

    def _count(self) -> int:
        counts = torch.cuda.memory_stats_as_nested_dict(self.pool.device)["allocation"]["all"]
        return counts["allocated"] + counts["freed"]

    def mark(self) -> None:
        """Marks the beginning of a call."""
        self.marks.append(self._count())

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Records the trace of the code inside."""
        record: Any = torch.cuda.memory._record_memory_history
        record("all", context=None, max_entries=MOST_EVENTS)
        before = self._count()
        try:
            yield
            after = self._count()
            found: Any = torch.cuda.memory._snapshot(self.pool.device)
        finally:
            record(None)
        entries = [
            e
            for e in found["device_traces"][self.pool.device]
            if e["action"] in ("alloc", "free_completed")
        ]
        self.events = [(e["action"] == "alloc", e["addr"], e["size"]) for e in entries]
        self.marks = [mark - before for mark in self.marks]
        self.complete = len(entries) == after - before
        own = (
            s for s in found["segments"] if tuple(s["segment_pool_id"]) == tuple(self.pool.handle)
        )
        self.held = sum(s["total_size"] for s in own if s["segment_type"] == "large")
