"""What STRATA_LOG chooses, and what records say as text and as JSON."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
import torch
import torchstrata
from torchstrata.logs import ARTIFACTS, LAYERS, TREE, configure_logging, logs_stages, set_logs


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torchstrata.reset()
    yield
    set_logs("")


def enabled(level: int = logging.DEBUG) -> set[str]:
    return {
        name for name, one in ARTIFACTS.items() if logging.getLogger(one.logger).isEnabledFor(level)
    }


def names_of(level: str) -> set[str]:
    levels = ("info",) if level == "info" else ("info", "debug")
    return {name for name, one in ARTIFACTS.items() if not one.needs_stages and one.level in levels}


def shown(selection: str) -> set[str]:
    """The artifacts whose records are logged."""
    set_logs(selection)
    return {
        name
        for name, one in ARTIFACTS.items()
        if logging.getLogger(one.logger).isEnabledFor(getattr(logging, one.level.upper()))
    }


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ("", set()),
        ("warning", set()),
        ("info", names_of("info")),
        ("debug", names_of("debug")),
        ("guards", {"guards"}),
        ("GUARDS, recompiles", {"guards", "recompiles"}),
        ("info,-cache", names_of("info") - {"cache"}),
        ("dynamo", {"graph_breaks", "recompiles", "reruns"}),
        ("+dynamo", {"graph_breaks", "recompiles", "reruns", "guards", "failures"}),
        ("+dynamo,-guards", {"graph_breaks", "recompiles", "reruns", "failures"}),
        ("info,-bytecode_dynamo", {"cache", "progress"}),
        ("kernels,fusion", {"kernels", "fusion"}),
        ("+loopir", set()),
    ],
)
def test_selection(selection: str, expected: set[str]) -> None:
    assert shown(selection) == expected


def test_records_reach_one_root() -> None:
    for logger in (*LAYERS.values(), *(one.logger for one in ARTIFACTS.values())):
        log: logging.Logger | None = logging.getLogger(logger)
        while log is not None and log is not TREE:
            log = log.parent
        assert log is TREE, logger


def test_level_of_the_root_holds_for_packages(caplog) -> None:
    with caplog.at_level(logging.INFO, "torchstrata"):
        compiled = torchstrata.compile(lambda x: x + 1, backend="eager")
        compiled(torch.ones(2))
        compiled(torch.ones(3))
    assert [one.name for one in caplog.records] == ["bytecode_dynamo.recompiles"]


@pytest.mark.parametrize("name", ["guard", "kernel", "infos", "+", "loud", "+info"])
def test_unknown_name(name: str) -> None:
    with pytest.raises(torchstrata.UsageError, match="nothing that is logged is called"):
        set_logs(name)


def test_suggestion_and_environment(monkeypatch) -> None:
    monkeypatch.setenv("STRATA_LOG", "recompile")
    with pytest.raises(torchstrata.UsageError, match="STRATA_LOG.*did you mean 'recompiles'"):
        configure_logging()
    monkeypatch.setenv("STRATA_LOG", "info")
    monkeypatch.setenv("STRATA_LOG_FORMAT", "xml")
    with pytest.raises(torchstrata.UsageError, match="'text' or 'json'"):
        configure_logging()
    monkeypatch.setenv("STRATA_LOG_FORMAT", "JSON")
    configure_logging()
    assert enabled(logging.INFO) == names_of("info") | {"guards", "failures"}


def run(capsys, *sizes: int) -> list[str]:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        torchstrata.graph_break("here")
        y = torch.relu(x * 2)
        return y, y.sum(-1)

    compiled = torchstrata.compile(scaled)
    for size in sizes:
        compiled(torch.ones(size, 5))
    return capsys.readouterr().err.splitlines()


def test_text_names_the_logger(capsys) -> None:
    set_logs("graph_breaks,recompiles")
    lines = run(capsys, 3, 4)
    assert lines[0].startswith("bytecode_dynamo.graph_breaks: graph break: BD009")
    assert any(line.startswith("bytecode_dynamo.recompiles: recompiled ") for line in lines)


def test_json_lines(capsys) -> None:
    set_logs("graph_breaks,recompiles,guards,fusion,loops", "json")
    records = [json.loads(line) for line in run(capsys, 3, 4)]
    by_artifact = {record["artifact"]: record for record in records}
    assert set(by_artifact) == {"graph_breaks", "recompiles", "guards", "fusion", "loops"}
    stopped = next(record for record in records if record["artifact"] == "graph_breaks")
    assert (stopped["id"], stopped["stack"][-1]["filename"]) == ("BD009", __file__)
    assert "was 3, now 4" in by_artifact["recompiles"]["reason"]
    assert by_artifact["guards"]["guards"][0].startswith("# bytecode_dynamo.guards")
    assert isinstance(by_artifact["fusion"]["accepted"], bool)
    assert by_artifact["loops"]["stage"].endswith("40-loops.txt")
    assert all(record["level"] in ("info", "debug") for record in records)


def test_texts_are_logged_from_the_cache_too(capsys) -> None:
    first = run(capsys, 6)
    torchstrata.reset()
    set_logs("kernels")
    assert logs_stages()
    assert not first
    assert any("50-kernels.txt" in line for line in run(capsys, 6))


def test_nothing_is_written_without_a_selection(capsys) -> None:
    assert not logs_stages()
    assert run(capsys, 3, 4) == []
