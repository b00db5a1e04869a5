"""Compilations in threads and forked processes: order, failures, dead and hanging workers."""

from __future__ import annotations

import os
import time
from functools import partial

import pytest
from inductor_triton.launching.workers import MANY, THREADS, run_all

MAIN = os.getpid()
COUNT = MANY + 2


def work(number: int) -> tuple[int, bool]:
    return number, os.getpid() == MAIN


def fail(number: int) -> tuple[int, bool]:
    raise ValueError(f"task {number}")


def die(number: int) -> tuple[int, bool]:
    if os.getpid() != MAIN:
        os._exit(3)
    return number, True


def hang(number: int) -> tuple[int, bool]:
    if os.getpid() != MAIN:
        time.sleep(60)
    return number, True


@pytest.mark.parametrize(
    ("count", "cores", "here"),
    [(1, 16, True), (3, 1, True), (3, 8, True), (COUNT, THREADS + 1, False)],
)
def test_results_are_in_order(count, cores, here):
    assert run_all([partial(work, n) for n in range(count)], cores) == [
        (n, here) for n in range(count)
    ]


@pytest.mark.parametrize("cores", [1, 4, THREADS + 1])
def test_a_failure_is_raised(cores):
    with pytest.raises(ValueError, match="task 5"):
        run_all([partial(fail if n == 5 else work, n) for n in range(COUNT)], cores)


@pytest.mark.parametrize("bad", [die, hang])
def test_what_a_worker_does_not_finish_is_done_here(bad):
    results = run_all(
        [partial(bad if n == 2 else work, n) for n in range(COUNT)], THREADS + 1, patience=0.5
    )
    assert [number for number, _ in results] == list(range(COUNT))
    assert results[2] == (2, True)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
