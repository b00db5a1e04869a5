"""The ablation table: which switches it has, and what its figures mean."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torchstrata

from benchmarks import ablation, speedups
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


def test_the_page_has_a_table_for_each_device_and_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {"device": device, "mode": mode, "dtype": "fp32", **row}
        for device, mode in (("cpu", "inference"), ("cpu", "training"), ("cuda", "training"))
        for row in table({"a": {ALL: 2.0, "fusion": 1.0}})
    ]
    (tmp_path / "ablation.json").write_text(json.dumps({"rows": rows}))
    monkeypatch.setattr(speedups, "RESULTS", tmp_path)
    text = "\n".join(speedups.ablation())
    assert re.findall("^### (.*)$", text, re.MULTILINE) == [
        "Inference on cpu in fp32", "Training on cpu in fp32", "Training on cuda in fp32",
    ]  # fmt: skip
    assert text.count("| without fusion | 1.0 | 50.0 % | 1 |") == 3


def test_a_training_step_is_measured_without_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ablation, "WARM_STEPS", 1)
    found = ablation.measure_model("cpu", "stencil", "fp32", "training", ["min-cut"], 1)
    assert [*found] == [ALL, "min-cut"]
    assert all(value > 0 for value in found.values())
    assert "bert" in ablation.models_of("cuda")
