"""The command line, and what the environment says."""

from __future__ import annotations

import importlib
import json
import os

import loopir
import pytest
import torch
import torchstrata
from torchstrata.__main__ import main


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


def test_explain_without_a_dump_says_how_to_make_one(tmp_path, capsys) -> None:
    assert main(["explain", str(tmp_path)]) == 1
    assert "STRATA_DUMP=" in capsys.readouterr().err


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


FACTORY = """
import torch

def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
"""


def test_compile_writes_a_file_that_inspect_shows(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made_here.py").write_text(FACTORY)
    spec = tmp_path / "spec.json"
    arguments = [{"shape": [3, 4], "dynamic": [0]}]
    spec.write_text(json.dumps([{"args": arguments}, {"args": arguments, "training": True}]))
    command = ["compile", "made_here:make", "--inputs", str(spec), "-o", "made.strata"]
    assert main([*command, "--weights"]) == 0
    assert "2 signatures" in capsys.readouterr().out
    x = torch.randn(5, 4)
    with torch.no_grad():
        expected = importlib.import_module("made_here").make()(x)
        torch.testing.assert_close(torchstrata.load("made.strata")(x), expected)
    assert main(["inspect", "made.strata"]) == 0
    shown = capsys.readouterr().out
    assert "signature 0: inference; no_grad" in shown and "signature 1: backward, forward" in shown
    assert main(["inspect", "made.strata", "0/captured.txt"]) == 0
    assert capsys.readouterr().out.startswith("# bytecode_dynamo.graph 1")


@pytest.mark.parametrize(
    "target, spec, message",
    [
        ("made_here:other", "{}", "no factory 'made_here:other'"),
        ("nowhere:make", "{}", "no factory 'nowhere:make'"),
        ("made_here:make", "{", "can't read the inputs"),
        ("made_here:make", "[3]", "3 is no object with args"),
        ("made_here:make", '{"arg": []}', "arg: not args, kwargs or training"),
        ("made_here:make", '{"args": [{"shape": [3], "dtype": "real"}]}', "'real' is no dtype"),
        ("made_here:make", '{"args": [{"shape": [-3]}]}', "no tensor"),
    ],
)
def test_compile_says_what_is_wrong(tmp_path, monkeypatch, capsys, target, spec, message) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made_here.py").write_text(FACTORY)
    (tmp_path / "spec.json").write_text(spec)
    assert main(["compile", target, "--inputs", "spec.json", "-o", "made.strata"]) == 1
    assert message in capsys.readouterr().err and not (tmp_path / "made.strata").exists()
