"""The command line, and what the environment says."""

from __future__ import annotations

import logging
import os

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
