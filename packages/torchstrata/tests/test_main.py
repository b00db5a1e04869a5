"""The command line, and what the environment says."""

from __future__ import annotations

import logging
import os

import loopir
import pytest
import torchstrata
from torchstrata.__main__ import main
from torchstrata.config import configure_logging


def test_doctor_names_what_it_found(capsys) -> None:
    assert main(["doctor"]) == 0
    assert {"compiler", "isa", "torch", "cache"} <= {
        line.split()[0] for line in capsys.readouterr().out.splitlines()
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [("STRATA_CXX", "/nowhere/c++"), ("STRATA_CPU_ISA", "avx9"), ("STRATA_CACHE_DIR", "/proc/no")],
)
def test_doctor_shows_the_problem(monkeypatch, capsys, name, value) -> None:
    monkeypatch.setenv(name, value)
    assert main(["doctor"]) == 1
    assert value in capsys.readouterr().out


def test_doctor_shows_variables_that_nothing_reads(monkeypatch, capsys) -> None:
    for name in [name for name in os.environ if name.startswith("STRATA_")]:  # of the test sessions
        monkeypatch.delenv(name)
    monkeypatch.setenv("STRATA_DUPM", "here")
    main(["doctor"])
    assert "STRATA_DUPM: nothing reads this" in capsys.readouterr().out


def test_explain_without_a_dump_says_how_to_make_one(tmp_path) -> None:
    with pytest.raises(SystemExit, match="STRATA_DUMP="):
        main(["explain", str(tmp_path)])


def test_a_cache_travels(tmp_path, capsys) -> None:
    store = loopir.ArtifactStore(tmp_path / "first")
    keys = [store.key("graph", text) for text in ("a", "b")]
    for key in keys:
        store.put(key, ".program", b"1234")
    first, second = (["cache", "--dir", str(tmp_path / name)] for name in ("first", "second"))
    bundle = str(tmp_path / "bundle.zip")
    assert main([*first, "export", bundle]) == main([*second, "import", bundle]) == 0
    capsys.readouterr()
    assert main([*second, "stats"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        ".program         2             8 bytes",
        "total            2             8 bytes",
    ]
    assert main([*second, "explain", *keys]) == 0
    assert capsys.readouterr().out == "part 1: 'a' became 'b'\n"
    assert main([*second, "prune", "--limit", "5"]) == 0
    assert capsys.readouterr().out == "1 artifacts removed\n"
    assert main([*second, "import", str(tmp_path / "none.zip")]) == 1
    assert "can't read the bundle" in capsys.readouterr().out


def test_a_limit_that_is_no_size(capsys) -> None:
    with pytest.raises(SystemExit):
        main(["cache", "prune", "--limit", "many"])
    assert "'many' is not a size like 500M or 2G" in capsys.readouterr().err


def test_level_of_messages(monkeypatch) -> None:
    logger = logging.getLogger("bytecode_dynamo")
    before, level = list(logger.handlers), logger.level
    monkeypatch.setenv("STRATA_LOG", "loud")
    with pytest.raises(torchstrata.UsageError, match="one of debug, info"):
        configure_logging()
    monkeypatch.setenv("STRATA_LOG", "INFO")
    try:
        configure_logging()
        assert logger.isEnabledFor(logging.INFO)
    finally:
        logger.handlers[:] = before
        logger.setLevel(level)
