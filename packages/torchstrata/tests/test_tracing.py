"""What a trace records."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torchstrata
from torchstrata.tracing.titles import title_of


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch) -> Iterator[None]:
    torchstrata.reset()
    with torchstrata.config.patch(cache_dir=str(tmp_path / "cache"), verify=False):
        yield


def program(x, factor, flag):
    y = x * factor
    if flag:
        y = y.relu()
    else:
        y = y.cos()
    print(end="")
    return y.sum()


LINE = program.__code__.co_firstlineno


def events(directory: Path, kind: str) -> list[dict[str, Any]]:
    (file,) = directory.glob("*/events.jsonl")
    found = map(json.loads, file.read_text().splitlines())
    return [event for event in found if event["event"] == kind]


def traced(directory: Path, *calls: tuple[Any, ...], profile: bool = False) -> None:
    with torchstrata.trace(directory, profile=profile):
        compiled = torchstrata.compile(program)
        for call in calls:
            compiled(*call)


def test_frames_have_lines_breaks_and_guards(tmp_path) -> None:
    traced(tmp_path / "trace", (torch.ones(4), 2, True))
    first, second = events(tmp_path / "trace", "frame")
    assert (first["name"], first["outcome"], first["resumed"]) == ("program", "broke", None)
    assert [line - LINE for line in first["lines"]] == [0, 1, 2, 3, 6]
    assert [line - LINE for line in first["executable"]] == [1, 2, 3, 5, 6, 7]
    assert first["break"]["id"] == "BD003"
    assert first["break"]["stack"] == [[__file__, LINE + 6, "program"]]
    assert (second["outcome"], second["resumed"]) == ("captured", LINE + 6)
    asked = {(on, text): place for on, _, text, place, _ in first["guards"]}
    assert asked["x", "is a float32 tensor of shape [4] on cpu"] == [__file__, LINE + 1]
    assert asked["flag", "equals True"] == [__file__, LINE + 2]
    assert 0 < first["check_seconds"] < 1e-3


def test_recompiles_say_what_changed(tmp_path) -> None:
    calls = (torch.ones(4), 2, True), (torch.ones(4), 2, False), (torch.ones(5), 2, False)
    traced(tmp_path / "trace", *calls)
    frames = events(tmp_path / "trace", "frame")
    again = [(f["number"], f["recompiled"]) for f in frames if f["resumed"] is None]
    assert again == [
        (0, None),
        (1, "flag was True, now False"),
        (2, "x.size(0) was 4, now 5"),
    ]


def test_programs_have_kernels_calls_buffers_and_decisions(tmp_path) -> None:
    def f(x, w):
        return torch.softmax((x @ w).relu(), 1)

    with torchstrata.trace(tmp_path / "trace") as session:
        torchstrata.compile(f)(torch.ones(4, 8), torch.ones(8, 2))
    (graph,) = events(tmp_path / "trace", "graph")
    assert (graph["frame"], graph["nodes"], graph["error"]) == (0, 3, None)
    (found,) = events(tmp_path / "trace", "program")
    product, kernel = found["calls"]
    assert (product["name"], product["kernel"]) == ("aten.mm.default", None)
    assert (product["bytes_read"], product["bytes_written"]) == (4 * 8 * 4 + 8 * 2 * 4, 32)
    assert product["operations"] == 2 * 4 * 8 * 2
    assert (kernel["kernel"], kernel["bytes_read"], kernel["bytes_written"]) == (0, 32, 32)
    (described,) = found["kernels"]
    assert described["title"] == "maximum_amax_sub_exp_and_2_more"
    assert described["loops"].startswith("@kernel(device='cpu'")
    lines = {line.rpartition("(")[2] for _, line in described["origins"]}
    assert lines == {f"test_tracing.py:{f.__code__.co_firstlineno + 1})"}
    buffers = {buffer["name"]: buffer for buffer in found["buffers"]}
    inner = buffers[kernel["reads"][0]]
    assert (inner["kind"], inner["shape"], inner["birth"], inner["death"]) == (
        "intermediate", "[4, 2]", 0, 2,
    )  # fmt: skip
    assert found["decisions"][0]["accepted"]
    assert "saves" in found["decisions"][0]["reason"]
    texts = {path.name for path in (session.directory / "graph-000").iterdir()}
    assert {"10-captured.py", "20-joint.py", "inference-30-prims.py"} <= texts
    stages = [event["stage"] for event in events(tmp_path / "trace", "stage")]
    assert stages == [
        "25-patterns.py",
        "30-prims.py",
        "40-loops.txt",
        "50-kernels.txt",
        "60-host.py",
    ]


def test_lookups_in_the_cache_have_a_reason(tmp_path) -> None:
    def f(x):
        return x.exp() + 1

    def lookup(directory: Path) -> tuple[Any, ...]:
        torchstrata.reset()
        with torchstrata.trace(directory):
            torchstrata.compile(f)(torch.ones(4))
        found = events(directory, "lookup")[0]
        assert len(events(directory, "stage")) == 5  # a hit of another trace is compiled again
        return found["what"], found["hit"], found["reason"]

    first = ("graph", False, "is the first captured graph in this cache")
    assert lookup(tmp_path / "one") == first
    assert lookup(tmp_path / "two") == ("graph", True, "is in the cache")
    with torchstrata.config.patch(numerics="eager"):
        what, hit, reason = lookup(tmp_path / "three")
    assert (what, hit) == ("graph", False)
    assert reason.startswith("differs from the nearest: settings")


def test_an_equal_graph_is_compiled_once(tmp_path) -> None:
    with torchstrata.trace(tmp_path / "trace"):
        for _ in range(2):
            torchstrata.reset()
            torchstrata.compile(lambda x: x.exp() + 1)(torch.ones(4))
    graphs = [e["same_as"] for e in events(tmp_path / "trace", "lookup") if e["what"] == "graph"]
    assert graphs == [None, 0]
    assert len(events(tmp_path / "trace", "program")) == 1


def test_a_profile_has_each_call(tmp_path) -> None:
    traced(tmp_path / "trace", *[(torch.ones(4), 2, True)] * 3, profile=True)
    first, second = events(tmp_path / "trace", "profile")
    assert [step["count"] for step in first["steps"] + second["steps"]] == [3, 3]
    assert all(0 < s["least"] <= s["total"] / 3 for s in first["steps"])
    frame = events(tmp_path / "trace", "frame")[0]
    assert all(seconds > 0 for _, kind, _, _, seconds in frame["guards"] if kind != "size")
    (end,) = events(tmp_path / "trace", "end")
    assert end["bandwidth"] > 1e8
    assert end["rate"] > 1e8


def test_kernels_have_names_in_torchs_profiler(tmp_path) -> None:
    with torchstrata.trace(tmp_path / "trace", profile=True):
        compiled = torchstrata.compile(lambda x: x.exp() + 1)
        compiled(torch.ones(4))
        with torch.profiler.profile() as profiler:
            compiled(torch.ones(4))
    names = [event.key for event in profiler.key_averages()]
    assert any(name.startswith("kernel0 exp_add: compiled =") for name in names)


def test_nothing_is_recorded_outside_of_the_block(tmp_path) -> None:
    import bytecode_dynamo

    traced(tmp_path / "trace")
    assert not bytecode_dynamo.observers
    torchstrata.compile(program)(torch.ones(4), 2, True)
    assert not events(tmp_path / "trace", "frame")


def test_a_directory_that_cannot_be_used_gives_a_warning(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(torchstrata.StoreWarning, match="STRATA_TRACE"):
        traced(tmp_path / "file" / "trace", (torch.ones(4), 2, True))


@pytest.mark.parametrize("forks", [False, True])
def test_the_environment_begins_a_trace(tmp_path, forks) -> None:
    code = f"""
import os, torch, torchstrata
compiled = torchstrata.compile(torch.exp)
if {forks} and (child := os.fork()):
    os.waitpid(child, 0)
compiled(torch.ones(3))
"""
    environment = {**os.environ, "STRATA_TRACE": str(tmp_path / "trace")}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    files = sorted((tmp_path / "trace").glob("*/events.jsonl"))
    assert len(files) == 1 + forks
    for file in files:
        kinds = [json.loads(line)["event"] for line in file.read_text().splitlines()]
        assert {"session", "frame", "graph", "program"} <= {*kinds}


def test_titles_are_the_operations() -> None:
    names = ["mul_3", "mul", "addmm_default_1", "reshape", "sum_1", "exp", "log", "sub"]
    assert title_of(names) == "mul_addmm_sum_exp_and_2_more"
    assert title_of(["reshape_2"]) == "copy"
