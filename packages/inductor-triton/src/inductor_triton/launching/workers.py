"""Runs many compilations in parallel: in threads for a few, in forked processes for more, since
Triton holds the GIL for a third of its time.

Child processes never touch CUDA and die with their parent. If one dies or hangs, this process does
its work again.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")
Task = Callable[[], T]

MANY = 6
MOST_WORKERS = 16
THREADS = 4
PATIENCE = 120.0
SET_DEATH_SIGNAL = 1
_tasks: list[Task[Any]] = []


def available_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_all(
    tasks: Sequence[Task[T]], cores: int | None = None, patience: float = PATIENCE
) -> list[T]:
    """The tasks' results, in order; results must be picklable. Raises the first exception of a
    task. ``patience``: the most seconds that a task may take in another process.
    """
    cores = available_cores() if cores is None else cores
    if len(tasks) < 2 or cores < 2:
        return [task() for task in tasks]
    if len(tasks) > MANY and cores > THREADS and "fork" in multiprocessing.get_all_start_methods():
        return _run_forked(tasks, min(cores, MOST_WORKERS, len(tasks)), patience)
    with ThreadPoolExecutor(min(cores, THREADS, len(tasks))) as pool:
        return list(pool.map(lambda task: task(), tasks))


def _run_forked(tasks: Sequence[Task[T]], workers: int, patience: float) -> list[T]:
    _tasks[:] = tasks  # forked children inherit them, so they need not be picklable
    pool = ProcessPoolExecutor(
        workers, multiprocessing.get_context("fork"), _die_with_parent, (os.getpid(),)
    )
    try:
        with warnings.catch_warnings():
            # ignore the warning about forking a process with threads: ours only compile
            warnings.simplefilter("ignore", DeprecationWarning)
            futures = [pool.submit(_run_task, number) for number in range(len(tasks))]
        return [_result(future, task, patience) for future, task in zip(futures, tasks)]
    finally:
        _tasks.clear()
        _stop(pool)


def _result(future: Future[tuple[bool, Any]], task: Task[Any], patience: float) -> Any:
    try:
        done, value = future.result(patience)
    except (BrokenProcessPool, TimeoutError, OSError):
        done, value = False, None
    return value if done else task()


def _run_task(number: int) -> tuple[bool, Any]:
    """The result of a task. The parent repeats a failed task, so that it can raise the complete
    exception.
    """
    try:
        return True, _tasks[number]()
    except Exception:
        return False, None


def _die_with_parent(parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # line info takes a sixth of a kernel's compile time
    os.environ.setdefault("TRITON_DISABLE_LINE_INFO", "1")
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _stop(pool: ProcessPoolExecutor) -> None:
    processes = list((getattr(pool, "_processes", None) or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.kill()
    for process in processes:
        process.join(1.0)
