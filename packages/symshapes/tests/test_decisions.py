"""Decisions are counted per layer, and refused beyond a limit."""

from __future__ import annotations

from symshapes import decisions
from symshapes.decisions import counting, may


def test_everything_is_allowed_without_a_search() -> None:
    assert may("fusion", "fuse", "a and b")
    assert not decisions._searches


def test_a_limit_holds_for_its_layer() -> None:
    with counting({"fusion": 1}) as log:
        allowed = [may("fusion", "fuse", i) for i in range(3)]
        assert may("pattern", "simplify")
    assert allowed == [True, False, False]
    assert log.counts == {"fusion": 3, "pattern": 1}
    assert str(log.last("fusion")) == "fuse (0)"
    assert log.last("lowering") is None


def test_a_subject_is_only_asked_for_where_it_is_kept() -> None:
    asked: list[int] = []
    log = decisions.count_in_process({"capture": 2})
    for i in range(3):
        may("capture", "CALL", lambda i=i: asked.append(i) or f"line {i}")
    decisions.stop_counting_in_process()
    assert asked == [1]
    assert str(log.last("capture")) == "CALL (line 1)"
    assert may("capture", "CALL")
