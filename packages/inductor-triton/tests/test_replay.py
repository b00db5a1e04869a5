"""What a recording decides, with graphs that run on the CPU: when to record, replay, copy, and when results are in the way."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from inductor_triton import pool as pool_module
from inductor_triton import replay as replay_module
from inductor_triton.extension import load_extension
from inductor_triton.replay import LARGEST_COPY, Replay, counters
from loopir import ArtifactStore


class FakeGraph:
    """Replays by running what was captured again and writing into the same results."""

    current: FakeGraph | None = None

    def __init__(self) -> None:
        self.captured: list[Callable[[], None]] = []

    def replay(self) -> None:
        for again in self.captured:
            again()


@contextmanager
def capture(graph: FakeGraph, **options: object):
    FakeGraph.current = graph
    try:
        yield
    finally:
        FakeGraph.current = None


@pytest.fixture(autouse=True)
def fake_cuda(monkeypatch):
    """The CUDA calls of recordings, on the CPU. Everything lies in one segment, which every recording writes to."""
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 0, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: False, raising=False)
    segment = {"segment_pool_id": (0, 1), "address": 0, "total_size": 1 << 62}
    fake = SimpleNamespace(
        CUDAGraph=FakeGraph,
        graph=capture,
        device=lambda index: nullcontext(),
        synchronize=lambda: None,
        empty_cache=lambda: None,
        memory_reserved=lambda index: 0,
        memory_snapshot=lambda: [segment],
        graph_pool_handle=lambda: (0, 1),
        Stream=lambda index: None,
        get_device_properties=lambda index: SimpleNamespace(total_memory=1 << 40),
    )
    monkeypatch.setattr(torch, "cuda", fake)
    monkeypatch.setattr(pool_module, "_pools", {})
    counters.clear()


def replayed(function: Callable[..., list[torch.Tensor]], inputs: int = 1) -> Replay:
    """``function`` of ``inputs`` tensors, recorded; counters are those of the module."""

    def run(*arguments: torch.Tensor) -> list[torch.Tensor]:
        results = function(*arguments)
        graph = FakeGraph.current
        if graph is not None:
            memory = [result.detach() for result in results]  # the recording may let go of a result, the graph writes anyway

            def again() -> None:
                for old, new in zip(memory, function(*arguments)):
                    old.copy_(new)

            graph.captured.append(again)
            for result in results:
                result.fill_(-1)  # capturing computes nothing
        return results

    names = tuple(f"x{i}" for i in range(inputs))
    outputs = [SimpleNamespace(buffer=f"y{i}") for i in range(len(function(*[torch.zeros(4)] * inputs)))]
    host: Any = SimpleNamespace(function=run, program=SimpleNamespace(inputs=names, outputs=outputs), sources=())
    return Replay(host, torch.device("cuda", 0))


def double(x: torch.Tensor) -> list[torch.Tensor]:
    return [x * 2]


@pytest.mark.parametrize("extension", [True, False], ids=["C", "Python"])
def test_recorded_at_the_third_call(extension, tmp_path, monkeypatch):
    made = load_extension(ArtifactStore(tmp_path)) if extension else None
    monkeypatch.setattr(replay_module, "loaded_extension", lambda: made)
    monkeypatch.setattr(pool_module, "loaded_extension", lambda: made)
    call, x = replayed(double), torch.ones(4)
    for number in range(6):
        x.fill_(number)
        assert torch.equal(call(x)[0], x * 2)
    assert (counters["ran"], counters["recorded"], counters["replayed"]) == (2, 1, 3)


def test_an_input_that_moves_is_copied():
    call, kept = replayed(lambda x, w: [x * w], 2), []
    w = torch.full((4,), 3.0)
    for number in range(8):
        kept.append(torch.full((4,), float(number)))
        assert torch.equal(call(kept[-1], w)[0], kept[-1] * 3)
    assert (counters["recorded"], counters["replayed"]) == (1, 5)


def test_an_input_that_moved_once_is_not():
    call, inputs = replayed(double), [torch.ones(4) for _ in range(2)]
    for number in range(10):
        x = inputs[number >= 2]
        assert torch.equal(call(x)[0], x * 2)
    (situation,) = call._situations.values()
    assert not situation.moving
    assert counters["recorded"] == 1


def test_large_inputs_that_settle_late_are_not_copied():
    call, count = replayed(double), LARGEST_COPY // 4 + 1
    inputs = [torch.ones(count) for _ in range(4)]
    for number in range(10):
        x = inputs[min(number, 3)]
        assert torch.equal(call(x)[0], x * 2)
    (situation,) = call._situations.values()
    assert not situation.moving
    assert counters["recorded"] == 1


def test_small_results_that_are_kept_are_copied_out():
    call, kept, x = replayed(double), [], torch.ones(4)
    for number in range(8):
        x.fill_(number)
        kept.append(call(x)[0])
    for number, out in enumerate(kept):
        assert torch.equal(out, torch.full((4,), 2.0 * number))
    assert (counters["recorded"], counters["held"], counters["replayed"]) == (2, 2, 3)


def test_large_results_that_are_kept_take_turns():
    x = torch.ones(LARGEST_COPY // 4 + 1)
    call, out = replayed(double), None
    for number in range(9):
        x.fill_(number)
        before, out = out, call(x)[0]
        assert out[0] == 2 * number
        assert before is None or before[0] == 2 * (number - 1)
    assert (counters["recorded"], counters["ran"]) == (3, 2)  # two results are alive when the third is made


def test_results_of_later_recordings_are_in_the_way():
    first, second, x = replayed(double), replayed(lambda x: [x + 1, x[:2] * 3]), torch.ones(4)
    for number in range(6):
        x.fill_(number)
        made = first(x)[0]
        kept = second(made)
        del made
        held = first(x)[0]
        assert torch.equal(kept[0], x * 2 + 1)
        assert torch.equal(held, x * 2)
        del held, kept
    assert counters["held"] > 0


def test_a_result_may_be_donated_and_is_alone(tmp_path):
    load_extension(ArtifactStore(tmp_path))
    call, x = replayed(double), torch.ones(4)
    fresh = torch.empty(4)
    alone = torch._C._storage_Use_Count(fresh.untyped_storage()._cdata)
    for _ in range(5):
        out = call(x)[0]
        assert torch._C._storage_Use_Count(out.untyped_storage()._cdata) == alone
        out.fill_(9)


def test_results_outlive_the_program():
    call, x = replayed(double), torch.ones(4)
    for _ in range(4):
        out = call(x)[0]
    del call
    junk = [torch.full((4,), 7.0) for _ in range(100)]
    assert torch.equal(out, x * 2)
    del junk


def test_a_recording_that_fails_is_not_tried_again(monkeypatch):
    call, x = replayed(double), torch.ones(4)

    def fail(*args: object, **options: object) -> None:
        raise RuntimeError("capture")

    monkeypatch.setattr(torch.cuda, "graph", fail)
    for _ in range(6):
        assert torch.equal(call(x)[0], x * 2)
    assert (counters["refused"], counters["ran"]) == (1, 6)


def test_memory_is_bounded():
    call, x = replayed(double), torch.ones(4)
    counters["bytes"] = 1 << 40
    for _ in range(4):
        call(x)
    assert (counters["recorded"], counters["over_budget"]) == (0, 2)


def test_small_inputs_that_move_later_are_copied_and_recordings_go_on():
    """Neither needs the moves of a large input, nor ends after a number of recordings."""
    call = replayed(lambda x: [x + 1])
    inputs = [torch.full((4,), float(i)) for i in range(40)]
    for _ in range(4):
        call(inputs[0])
    assert counters["recorded"] == 1
    for x in inputs[1:]:
        torch.testing.assert_close(call(x)[0], x + 1)
    assert (counters["recorded"], counters["ran"]) == (2, 2)


def test_further_recordings_become_rare(monkeypatch):
    monkeypatch.setattr(replay_module, "SMALL", 0)
    call = replayed(lambda x: [x + 1], inputs=1)
    call._limit = 0
    pairs = [torch.ones(4) for _ in range(300)]
    for x in pairs:
        for _ in range(3):
            torch.testing.assert_close(call(x)[0], x + 1)
    assert 4 < counters["recorded"] < 12
