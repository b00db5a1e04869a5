"""The lock file: choices are recorded by name, replayed bit for bit, and reported when stale."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torchstrata
from torch.nn import functional as F
from torchstrata import LockWarning, UsageError
from torchstrata.lock_text import format_lock, read_lock


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torchstrata.reset()
    yield


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(48)
        self.inner, self.outer = torch.nn.Linear(48, 96), torch.nn.Linear(96, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.outer(F.gelu(self.inner(self.norm(x))))


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(*(Layer() for _ in range(4)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layers(x)
        scores = torch.softmax(y @ y.transpose(-1, -2), -1)
        return (scores.sum(-1) * (y.t() + 1).exp().sum(0) + y.std(-1)).square().mean()


def compiled_texts(
    function: Callable[..., Any], *inputs: torch.Tensor, path: Path, **options: Any
) -> dict[str, list[str]]:
    """The kernels and host programs of a compilation, by name, and what it computes."""
    torchstrata.reset()
    dump = path.parent / f"dump{len([*path.parent.iterdir()])}"
    options = {"fallback": "error", **options}
    if path.suffix:
        options["lock"] = str(path)
    compiled = torchstrata.compile(function, options={"dump": str(dump), **options})
    result = compiled(*inputs)
    if result.requires_grad:
        result.backward()
    torch.testing.assert_close(result, function(*inputs), rtol=1e-3, atol=1e-3)
    texts: dict[str, list[str]] = {}
    for file in sorted(dump.rglob("*-[3456]0-*")):
        lines = file.read_text().splitlines()  # without the reasons of decisions
        text = "\n".join(line for line in lines if not line.startswith(("# fused", "# kept")))
        texts.setdefault(file.name, []).append(text)
    assert texts
    return texts


RULES: dict[str, dict[str, object]] = {
    "aotgrad.graphs.partition": {"_DEFAULT_PRICE": 100, "MAX_CHAIN": 0},
    "loopir.blocks.runs": {"MIN_COUNT": 99},
    "loopir.lowering.graph": {"MAX_WEIGHT": 3, "MAX_RECOMPUTED": 0},
    "loopir.lowering.reduction": {"SPLIT_WORK": 1},
    "loopir.schedule.build": {
        "MAX_RECOMPUTED": 0,
        "order_loops": lambda loops, *_: [*loops][::-1],
        "vector_axis": lambda *_: None,
    },
    "loopir.schedule.column_sums": {"LONGEST_ROW": 1},
    "loopir.schedule.fusion": {"MAX_MEMBERS": 2, "SMALL_BUNDLE": 0, "SMALL_WORK": 0},
    "loopir.schedule.peak": {"GAIN": 99.0},
    "inductor_cpp.kernels.kernel_plan": {
        "STEP": 512, "ENOUGH_UNITS": 1, "LEAST_ROWS": 2, "LEAST_TILE": 1,
        "choose_width": lambda *_: 1,
    },
    "inductor_cpp.kernels.passes.reuse": {"LONGEST_ROW": 0},
}  # fmt: skip
"""Rules of thumb that decide otherwise."""


def change(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    for module in modules:
        for name, value in RULES[module].items():
            monkeypatch.setattr(importlib.import_module(module), name, value)


def test_choices_are_replayed_byte_for_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    net, x, path = Net(), torch.randn(32, 48), tmp_path / "choices.toml"
    first = compiled_texts(net, x, path=path)
    recorded = path.read_bytes()
    change(monkeypatch, *RULES)
    without = compiled_texts(net, x, path=tmp_path)
    assert without.keys() == first.keys()
    assert without != first
    with warnings.catch_warnings():
        warnings.simplefilter("error", LockWarning)
        assert compiled_texts(net, x, path=path) == first
    assert path.read_bytes() == recorded


@pytest.mark.parametrize("module", RULES)
def test_each_rule_of_thumb_is_recorded(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    net, x, path = Net(), torch.randn(32, 48), tmp_path / "choices.toml"
    first = compiled_texts(net, x, path=path)
    change(monkeypatch, module)
    assert compiled_texts(net, x, path=path) == first


def small(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1).sum(0)


def recorded(tmp_path: Path, function: Callable[..., Any] = small) -> tuple[Path, torch.Tensor]:
    path, x = tmp_path / "choices.toml", torch.randn(40, 24)
    compiled_texts(function, x, path=path)
    return path, x


def test_the_file_is_readable_and_the_same_in_every_process(tmp_path: Path) -> None:
    path, _ = recorded(tmp_path)
    text = path.read_text()
    graphs = read_lock(text, "choices.toml")
    assert format_lock(graphs) == text
    (graph,) = graphs.values()
    assert graph["function"] == "small in test_lock_file.py"
    assert graph["target"].startswith("cpu ")
    assert {name.partition(" ")[0] for name in graph["programs"]} == {"inference"}
    script = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
import torch, torchstrata, test_lock_file
other = torch.ones(3)
torchstrata.compile(lambda x: x + 1)(other)
options = {{"lock": {str(tmp_path / "other.toml")!r}}}
torchstrata.compile(test_lock_file.small, options=options)(torch.randn(40, 24))
"""
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)
    assert (tmp_path / "other.toml").read_text() == text


def test_golden_text(tmp_path: Path, golden: Callable[[str], None]) -> None:
    path, _ = recorded(tmp_path)
    text = re.sub(r"[0-9a-f]{12}", "DIGEST", path.read_text())
    golden(re.sub('target = "cpu .*"', 'target = "cpu"', text))


def test_a_stale_choice_is_made_anew_with_a_warning(tmp_path: Path) -> None:
    path, x = recorded(tmp_path)
    before = path.read_text()
    (plan,) = {line for line in before.splitlines() if ' = "axis=' in line and "r0" in line}
    path.write_text(before.replace(plan, plan.replace("axis=r0", "axis=r7")))
    with pytest.warns(LockWarning, match="C\\+\\+ plans: .* can't be 'axis=r7"):
        compiled_texts(small, x, path=path)
    assert path.read_text() == before
    path.write_text(before.replace('"stored values" = []', '"stored values" = ["gone_1"]'))
    with pytest.warns(LockWarning, match="stored values: gone_1 is gone"):
        compiled_texts(small, x, path=path)
    assert path.read_text() == before


def test_fusions_that_are_edited_are_followed_or_stale(tmp_path: Path) -> None:
    path, x = recorded(tmp_path)
    (kernels,) = compiled_texts(small, x, path=path)["inference-50-kernels.txt"]
    count = kernels.count('extern "C"')
    before, graphs = path.read_text(), read_lock(path.read_text(), "")
    (graph,) = graphs.values()
    (rules,) = graph["programs"].values()
    assert rules["fused"]
    rules["fused"] = []
    rules.pop("C++ plans")
    path.write_text(format_lock(graphs))
    with pytest.warns(LockWarning, match="loops: sub:buf1.1 is not in it"):
        (kernels,) = compiled_texts(small, x, path=path)["inference-50-kernels.txt"]
    assert kernels.count('extern "C"') > count
    rules["fused"] = ["sum_1:buf7.7 and nothing"]
    path.write_text(format_lock(graphs))
    with pytest.warns(LockWarning, match="fused: sum_1:buf7.7 and nothing can't be fused"):
        compiled_texts(small, x, path=path)
    assert read_lock(path.read_text(), "") == read_lock(before, "")


def test_other_graphs_and_targets_are_told_and_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, x = recorded(tmp_path)
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: "OTHER")
    with pytest.warns(LockWarning, match="are for target 'cpu .*', not 'cpu OTHER'"):
        compiled_texts(small, x, path=path)
    assert len(tomllib.loads(path.read_text())["graphs"]) == 2


def test_a_changed_function_is_told_once(tmp_path: Path) -> None:
    path, x = recorded(tmp_path)
    graphs = read_lock(path.read_text(), "")
    for graph in graphs.values():
        graph["graph"] = "0" * 12
    path.write_text(format_lock({f"{n:012}": graph for n, graph in enumerate(graphs.values())}))
    with pytest.warns(LockWarning, match="stale, of another graph of this function") as told:
        compiled_texts(small, x, path=path)
        compiled_texts(small, torch.randn(3, 5), path=path)
    assert len([each for each in told if each.category is LockWarning]) == 1


def test_new_sizes_of_a_known_function_are_no_news(tmp_path: Path) -> None:
    path, x = recorded(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error", LockWarning)
        compiled_texts(small, x, path=path)
        compiled_texts(small, torch.randn(3, 5), path=path)
    assert len(tomllib.loads(path.read_text())["graphs"]) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("format = ", "is no TOML"),
        ("format = 9", "has format 9; this version reads 1"),
        ("format = 1\ngraphs = 3", "graphs is no table"),
        ("format = 1\n[graphs.a]\ngraph = 'b'", "graph a has no text for function, target"),
    ],
)
def test_a_damaged_file_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "choices.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        torchstrata.compile(small, options={"lock": str(path)})


def test_a_file_that_cant_be_written_warns_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(torchstrata.StoreWarning, match="choices.toml .* can't be written") as told:
        options = {"lock": str(tmp_path / "file" / "choices.toml")}
        compiled = torchstrata.compile(small, options=options, dynamic=False)
        for size in (3, 4):
            compiled(torch.randn(size, 5))
    assert len([each for each in told if each.category is torchstrata.StoreWarning]) == 1


CACHED = """
import sys, torch, torchstrata
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.LayerNorm(64))
options = {"lock": sys.argv[1], "verify": False, "cache_dir": sys.argv[2]}
compiled = torchstrata.compile(model, options=options)
compiled(torch.randn(4, 64)).sum().backward()
print(torchstrata.counters["cache_hits"], torchstrata.counters["cache_misses"])
"""


def test_the_cache_keeps_what_was_compiled_with_the_same_choices(tmp_path: Path) -> None:
    path, cache = tmp_path / "choices.toml", tmp_path / "cache"

    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", CACHED, str(path), str(cache)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    first = [start(), start()]  # two processes that record at the same time
    assert [process.communicate()[0] is not None and process.returncode for process in first] == [
        0,
        0,
    ]
    text = path.read_text()
    hits, misses = start().communicate()[0].split()
    assert (int(hits) > 0, misses) == (True, "0")
    path.write_text(text.replace("width=2", "width=1"))
    hits, misses = start().communicate()[0].split()
    assert int(misses) > 0
    assert "width=2" not in path.read_text()
