"""What a recording decides, with graphs that run on the CPU: when to record, replay, copy, and when
results are in the way.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from inductor_triton.cuda_graphs import pool as pool_module
from inductor_triton.cuda_graphs import recording as recording_module
from inductor_triton.cuda_graphs import replay as replay_module
from inductor_triton.cuda_graphs.replay import (
    LARGEST_COPY,
    RecordingWarning,
    Replay,
    counters,
)
from inductor_triton.launching.extension import load_extension
from loopir import ArtifactStore


@pytest.fixture(name="replayed")
def _replayed(capturable):
    """Makes a recorded function of ``inputs`` tensors; counters are those of the module."""
    return partial(replay_of, capturable)


def replay_of(
    capturable: Any,
    function: Callable[..., list[torch.Tensor]],
    inputs: int = 1,
    calls: int = 1,
    copy_limit: int = LARGEST_COPY,
) -> Replay:
    results = function(*[torch.zeros(4)] * inputs)
    facts = SimpleNamespace(
        inputs=[("tensor", f"x{i}") for i in range(inputs)],
        outputs=[f"y{i}" for i in range(len(results))],
    )
    text = SimpleNamespace(launchers={})
    host: Any = SimpleNamespace(
        function=capturable(function), facts=facts, text=text, extern_ops=("aten.mm",) * calls
    )
    return Replay(host, torch.device("cuda", 0), copy_limit)


def double(x: torch.Tensor) -> list[torch.Tensor]:
    return [x * 2]


@pytest.mark.parametrize("extension", [True, False], ids=["C", "Python"])
def test_recorded_at_the_third_call(replayed, extension, tmp_path, monkeypatch):
    made = load_extension(ArtifactStore(tmp_path)) if extension else None
    monkeypatch.setattr(recording_module, "loaded_extension", lambda: made)
    monkeypatch.setattr(pool_module, "loaded_extension", lambda: made)
    call, x = replayed(double), torch.ones(4)
    for number in range(6):
        x.fill_(number)
        assert torch.equal(call(x)[0], x * 2)
    assert (counters["ran"], counters["recorded"], counters["replayed"]) == (2, 1, 3)


def sized(capturable) -> Replay:
    """Doubles a tensor whose size is the first argument."""
    call, inner = replay_of(capturable, double), capturable(double)
    call._function = lambda size, x: inner(x)
    call._entries.insert(0, ("size", "s0"))
    call._sort_inputs()
    return call


def test_sizes_have_recordings_of_their_own(capturable, monkeypatch):
    monkeypatch.setattr(replay_module, "MOST_PATTERNS", 6)
    call, inputs = sized(capturable), [torch.ones(size) for size in range(1, 11)]
    for number in range(60):
        x = inputs[number % 10].fill_(number)
        assert torch.equal(call(len(x), x)[0], x * 2)
    assert counters["recorded"] == 6
    assert len(call._patterns) == 10


def test_sizes_that_were_not_seen_for_long_make_room(capturable, monkeypatch):
    monkeypatch.setattr(replay_module, "MOST_PATTERNS", 6)
    monkeypatch.setattr(replay_module, "IDLE_CALLS", 20)
    call, inputs = sized(capturable), [torch.ones(size) for size in range(1, 11)]
    for number in range(100):
        x = inputs[number % 5 + 5 * (number >= 40)].fill_(number)
        assert torch.equal(call(len(x), x)[0], x * 2)
    assert counters["recorded"] == 10
    recorded = [key for key, pattern in call._patterns.items() if pattern.recordings]
    assert len(recorded) == 6


def test_large_programs_are_recorded_for_few_sizes(capturable, monkeypatch):
    monkeypatch.setattr(replay_module, "PROGRAM_SHARE", -1)
    call, inputs = sized(capturable), [torch.ones(size) for size in range(1, 11)]
    for number in range(60):
        x = inputs[number % 10]
        call(len(x), x)
    assert counters["recorded"] == replay_module.FEW_PATTERNS


def test_an_input_that_moves_is_copied(replayed):
    call, kept = replayed(lambda x, w: [x * w], 2), []
    w = torch.full((4,), 3.0)
    for number in range(8):
        kept.append(torch.full((4,), float(number)))
        assert torch.equal(call(kept[-1], w)[0], kept[-1] * 3)
    assert (counters["recorded"], counters["replayed"]) == (1, 5)


@pytest.mark.parametrize(
    "layout", [((5, 4), (0, 1)), ((4, 3, 2), (0, 1, 0)), ((4, 3), (1, 1)), ((1, 4), (0, 1))]
)
def test_moving_inputs_whose_elements_share_memory(replayed, layout):
    call, kept = replayed(double), []
    for number in range(8):
        kept.append(torch.arange(8.0).add(number)[1:].as_strided(*layout))
        assert torch.equal(call(kept[-1])[0], kept[-1] * 2)
    assert (counters["recorded"], counters["replayed"]) == (1, 5)


def test_an_input_that_moved_once_is_not(replayed):
    call, inputs = replayed(double), [torch.ones(4) for _ in range(2)]
    for number in range(10):
        x = inputs[number >= 2]
        assert torch.equal(call(x)[0], x * 2)
    (pattern,) = call._patterns.values()
    assert not pattern.moving
    assert counters["recorded"] == 1


def test_large_inputs_that_settle_late_are_not_copied(replayed):
    call, count = replayed(double), LARGEST_COPY // 4 + 1
    inputs = [torch.ones(count) for _ in range(4)]
    for number in range(10):
        x = inputs[min(number, 3)]
        assert torch.equal(call(x)[0], x * 2)
    (pattern,) = call._patterns.values()
    assert not pattern.moving
    assert counters["recorded"] == 1


@pytest.mark.parametrize(("calls", "limit"), [(9, LARGEST_COPY), (1, LARGEST_COPY), (9, 1024)])
def test_large_inputs_that_never_settle_are_copied_where_that_is_worth_it(replayed, calls, limit):
    call, count = replayed(double, 1, calls, limit), LARGEST_COPY // 4 + 1
    inputs = [torch.ones(count) for _ in range(3)]
    for number in range(12):
        x = inputs[number % 3]
        x.fill_(number)
        out = call(x)[0]
        assert out[0] == out[-1] == 2 * number
        del out
    is_worth_it = calls == 9 and limit == LARGEST_COPY
    assert counters["recorded"] == is_worth_it
    assert (counters["replayed"] > 3) == is_worth_it


def test_small_results_that_are_kept_are_copied_out(replayed):
    call, kept, x = replayed(double), [], torch.ones(4)
    for number in range(8):
        x.fill_(number)
        kept.append(call(x)[0])
    for number, out in enumerate(kept):
        assert torch.equal(out, torch.full((4,), 2.0 * number))
    assert (counters["recorded"], counters["held"], counters["replayed"]) == (2, 2, 3)


def test_large_results_that_are_kept_take_turns(replayed):
    x = torch.ones(LARGEST_COPY // 4 + 1)
    call, out = replayed(double), None
    for number in range(9):
        x.fill_(number)
        before, out = out, call(x)[0]
        assert out[0] == 2 * number
        assert before is None or before[0] == 2 * (number - 1)
    # two results are alive when the third is made
    assert (counters["recorded"], counters["ran"]) == (3, 2)


def test_results_of_later_recordings_are_in_the_way(replayed):
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


def test_a_result_may_be_donated_and_is_alone(replayed, tmp_path):
    load_extension(ArtifactStore(tmp_path))
    call, x = replayed(double), torch.ones(4)
    fresh = torch.empty(4)
    alone = torch._C._storage_Use_Count(fresh.untyped_storage()._cdata)
    for _ in range(5):
        out = call(x)[0]
        assert torch._C._storage_Use_Count(out.untyped_storage()._cdata) == alone
        out.fill_(9)


def test_results_outlive_the_program(replayed):
    call, x = replayed(double), torch.ones(4)
    for _ in range(4):
        out = call(x)[0]
    del call
    junk = [torch.full((4,), 7.0) for _ in range(100)]
    assert torch.equal(out, x * 2)
    del junk


def test_a_recording_that_fails_is_not_tried_again(replayed, monkeypatch):
    call, x = replayed(double), torch.ones(4)

    def fail(*args: object, **options: object) -> None:
        raise RuntimeError("capture")

    monkeypatch.setattr(torch.cuda, "graph", fail)
    for _ in range(6):
        assert torch.equal(call(x)[0], x * 2)
    assert (counters["refused"], counters["ran"]) == (1, 6)


def test_too_little_memory_for_a_recording_is_told_once(replayed, monkeypatch):
    call, x = replayed(double), torch.ones(4)

    def fail(*args: object, **options: object) -> None:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(torch.cuda, "graph", fail)
    with pytest.warns(RecordingWarning, match="cuda_graph_memory") as caught:
        for _ in range(6):
            assert torch.equal(call(x)[0], x * 2)
    assert len(caught) == 1


def test_memory_is_bounded(replayed):
    call, x = replayed(double), torch.ones(4)
    counters["bytes"] = 1 << 40
    for _ in range(4):
        call(x)
    assert (counters["recorded"], counters["over_budget"]) == (0, 2)


def test_small_inputs_that_move_later_are_copied_and_recordings_go_on(replayed):
    """Neither needs the moves of a large input, nor ends after a number of recordings."""
    call = replayed(lambda x: [x + 1])
    inputs = [torch.full((4,), float(i)) for i in range(40)]
    for _ in range(4):
        call(inputs[0])
    assert counters["recorded"] == 1
    for x in inputs[1:]:
        torch.testing.assert_close(call(x)[0], x + 1)
    assert (counters["recorded"], counters["ran"]) == (2, 2)


def test_further_recordings_become_rare(replayed, monkeypatch):
    monkeypatch.setattr(replay_module, "SMALL", 0)
    call = replayed(lambda x: [x + 1], inputs=1)
    call._limit = 0
    pairs = [torch.ones(4) for _ in range(300)]
    for x in pairs:
        for _ in range(3):
            torch.testing.assert_close(call(x)[0], x + 1)
    assert 4 < counters["recorded"] < 12
