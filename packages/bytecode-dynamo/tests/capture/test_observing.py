"""What observers are told of captures."""

from __future__ import annotations

from collections.abc import Iterator

import bytecode_dynamo
import pytest
import torch
from bytecode_dynamo import FrameReport, GuardKind, observers, optimize, phrase


class Notes:
    def __init__(self) -> None:
        self.begun: list[FrameReport] = []
        self.ended: list[FrameReport] = []
        self.seconds: list[float] = []

    def capture_begins(self, report: FrameReport) -> None:
        self.begun.append(report)

    def capture_ends(self, report: FrameReport) -> None:
        self.ended.append(report)
        if report.measure is not None:
            self.seconds.append(report.measure(None))


@pytest.fixture
def notes() -> Iterator[Notes]:
    found = Notes()
    observers.append(found)
    yield found
    observers.remove(found)


def branches(x, flag):
    y = x + 1
    if flag:
        return y.relu()
    print(end="")
    return y.cos()


LINE = branches.__code__.co_firstlineno


def test_a_report_has_lines_guards_and_who_asked(notes) -> None:
    optimize()(branches)(torch.ones(3), True)
    (report,) = notes.ended
    assert notes.begun == [report]
    assert (report.outcome, report.stop, report.number) == ("captured", None, 0)
    assert sorted(line - LINE for line in report.lines) == [0, 1, 2, 3]
    asked = {
        (record.source.shown, phrase(record)): report.asked[position].line - LINE
        for position, record in enumerate(report.guards)
        if position in report.asked
    }
    assert asked["flag", "equals True"] == 2
    assert asked["x", "is a float32 tensor of shape [3] on cpu"] == 1
    assert 0 < notes.seconds[0] < 1e-3
    assert report.measure is None  # it would keep the arguments alive


def test_a_break_and_its_resume_function_are_two_reports(notes) -> None:
    optimize()(branches)(torch.ones(3), False)
    first, second = notes.ended
    assert first.code is second.code is branches.__code__
    assert first.outcome == "broke"
    assert first.stop is not None
    assert first.stop.id == "BD003"
    assert (second.outcome, second.resumed) == ("captured", LINE + 4)


def test_a_recompile_says_what_changed(notes) -> None:
    compiled = optimize()(branches)
    compiled(torch.ones(3), True)
    compiled(torch.ones(3, dtype=torch.float64), True)
    again = notes.ended[-1]
    assert (again.number, again.recompiled) == (1, "x.dtype was torch.float32, now torch.float64")


def test_the_limit_is_reported_once(notes, monkeypatch) -> None:
    monkeypatch.setattr(bytecode_dynamo.config, "recompile_limit", 1)
    compiled = optimize()(branches)
    compiled(torch.ones(3), True)
    with pytest.warns(UserWarning, match="was compiled 1 times"):
        compiled(torch.ones(3, dtype=torch.float64), True)
    compiled(torch.ones(3, dtype=torch.float64), True)
    assert [report.outcome for report in notes.ended] == ["captured", "skipped"]
    assert "was compiled 1 times" in str(notes.ended[-1].error)


def test_a_break_that_is_an_error_is_a_failed_capture(notes) -> None:
    with pytest.raises(bytecode_dynamo.Unsupported):
        optimize(fullgraph=True)(branches)(torch.ones(3), False)
    (report,) = notes.ended
    assert report.outcome == "failed"
    assert report.stop is not None
    assert report.stop.id == "BD003"


def test_every_kind_of_guard_has_a_phrase(notes) -> None:
    from bytecode_dynamo.guards.phrase import _PHRASES

    assert set(_PHRASES) == set(GuardKind)
