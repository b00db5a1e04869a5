"""The ablation table: which switches it has, and what its figures mean."""

from __future__ import annotations

import pytest
import torchstrata

from benchmarks.ablation import ALL, SWITCHES, table, variants


def test_every_switch_is_an_option() -> None:
    for options in SWITCHES.values():
        torchstrata.Config().with_options(options)


def test_variants_leave_out_what_does_nothing() -> None:
    inference, training = (variants("cpu", mode, ()) for mode in (False, True))
    assert {"min-cut"} == training.keys() - inference.keys()
    assert {"freezing"} == inference.keys() - training.keys()
    assert "cuda graphs" in variants("cuda", False, ())
    assert [*variants("cpu", False, ["fusion"])] == [ALL, "fusion"]
    assert variants("cpu", False, ())["freezing"]["freeze"] is False


def test_loss_is_the_share_of_the_geometric_mean() -> None:
    rows = table({"a": {ALL: 2.0, "x": 1.0, "y": 2.0}, "b": {ALL: 8.0, "x": 4.0, "y": 8.0}})
    assert [(row["optimisations"], row["loss"]) for row in rows] == [
        (ALL, "0.0 %"), ("without x", "50.0 %"), ("without y", "0.0 %"),
    ]  # fmt: skip
    assert [row["speed-up over eager"] for row in rows] == pytest.approx([4.0, 2.0, 4.0])
