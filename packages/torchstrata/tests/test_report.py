"""Reports of a trace: the model, the page, the text for terminals."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import torch
import torchstrata
from torchstrata.__main__ import main
from torchstrata.report import (
    Report,
    chrome_trace,
    line_text,
    read_report,
    render_page,
    summary_text,
)
from torchstrata.report.changes import change_of
from torchstrata.report.regions import regions

from .traces import EVENTS, FILE, SESSION, write_trace


@pytest.fixture
def report(tmp_path) -> Report:
    return read_report(write_trace(tmp_path / "trace"))


def test_lines_have_what_happened_to_them(report) -> None:
    (function,) = report.functions
    assert function.status == {
        2: "captured", 3: "broke", 4: "captured", 5: "never", 6: "captured",
    }  # fmt: skip
    assert function.coverage == (3, 5)
    assert function.source[2] == "    y = x.exp()"
    assert [frame.graphs for frame in function.frames] == [[0], [], [], []]
    assert [frame.stop.id for frame in report.breaks] == ["BD003", "BD003"]


def test_recompiles_have_old_and_new_value_and_advice(report) -> None:
    size, number = (frame.change for frame in report.recompiles)
    assert (size.what, size.old, size.new) == ("x.size(0)", "4", "5")
    assert size.asked == (FILE, 2)
    assert size.advice.startswith("torchstrata.mark_dynamic(x, 0)")
    assert (number.what, number.old, number.new, number.asked) == ("n", "1", "2", (FILE, 4))


@pytest.mark.parametrize(
    ("text", "what", "advice"),
    [
        ("flag was True, now False", "flag", "each value has its own graph"),
        ("x.dtype was torch.float32, now torch.float64", "x.dtype", "one dtype"),
        ("type(x) was int, now float", "type(x)", "same type"),
        ("len(items) was 2, now 3", "len(items)", "stack the tensors"),
        ("the keys of d were ['a'], now ['b'] are new", "keys of d", "same keys"),
        ("x.dim() was 1, now 2", "x.dim()", "reshape"),
        ("torch.is_grad_enabled() was True, now False", "torch.is_grad_enabled()", "one setting"),
        ("the compiled code is gone: deleted", "the compiled code is gone: deleted", "keep"),
    ],
)
def test_advice_fits_what_changed(text, what, advice) -> None:
    change = change_of(text, [])
    assert change is not None
    assert change.what == what
    assert advice in change.advice


def test_conditions_on_sizes_name_the_line_that_asked() -> None:
    text = (
        "x.size(0) > 5 was True, now False: x.size(0) is 3; the condition is from "
        'File "/a.py", line 7, in f'
    )
    change = change_of(text, [])
    assert change is not None
    assert (change.what, change.new) == ("x.size(0) > 5", "False (x.size(0) is 3)")
    assert change.asked == ("/a.py", 7)


def test_every_line_of_a_stage_has_the_line_that_it_comes_from(report) -> None:
    (graph,) = report.graphs
    assert graph.places == [(FILE, 2), (FILE, 6)]
    assert graph.code == {0: "y = x.exp()", 1: "return y @ y"}
    (captured,) = graph.texts
    assert captured.places == (-1, -1, 0, 1, -1)
    (program,) = graph.programs
    assert program.prims.places == (-1, -1, 0, 1, -1)
    (kernel,) = program.kernels
    assert kernel.places == (0,)
    assert kernel.source == "void kernel0(float *in0) {}"
    assert [decision.places for decision in program.decisions] == [(0, 1)]


def test_calls_have_estimates_and_shares_of_the_limit(report) -> None:
    kernel, product = report.graphs[0].programs[0].calls
    assert kernel.estimate == 128 / 1e6
    assert (kernel.count, kernel.least) == (3, 1e-4)
    assert kernel.mean == pytest.approx(2e-4)  # the first time prepares libraries
    assert kernel.share == pytest.approx(1.28)
    assert product.estimate == 192 / 1e6
    assert (product.title, product.places) == ("aten.mm.default", (1,))


def test_buffers_in_the_picture_do_not_overlap(report) -> None:
    buffers = {buffer.name: buffer for buffer in report.graphs[0].programs[0].buffers}
    assert buffers["l_x"].offset is None
    assert buffers["buf2"].offset == buffers["buf3"].offset == 0
    assert {buffers["buf0"].offset, buffers["buf1"].offset} == {256, 320}


def test_the_timeline_has_frames_graphs_and_stages(report) -> None:
    spans = [(span.name, span.level, span.at) for span in report.spans if span.graph == 0]
    assert spans == [
        ("graph 0", 1, 0.1), ("autograd", 2, 0.1), ("inference prims", 2, 0.2),
        ("inference host", 2, 0.25),
    ]  # fmt: skip
    events = json.loads(chrome_trace(report))["traceEvents"]
    assert {"name": "f from line 3", "ph": "X", "ts": 1e6, "dur": 5e5}.items() <= events[4].items()


def test_half_a_line_at_the_end_is_left_out(tmp_path) -> None:
    directory = write_trace(tmp_path / "trace")
    with open(directory / "1-000" / "events.jsonl", "a") as file:
        file.write('{"event": "fra')
    assert len(read_report(str(directory)).frames) == 4


def test_another_version_is_refused(tmp_path) -> None:
    directory = write_trace(tmp_path / "trace", [{**SESSION, "format": 0}, *EVENTS[1:]])
    with pytest.raises(torchstrata.UsageError, match="another version"):
        read_report(directory)


def test_summary(report, golden) -> None:
    golden(summary_text(report))


def test_one_graph(report, golden) -> None:
    golden(summary_text(report, 0))


def test_life_of_a_line(report, golden) -> None:
    golden(line_text(report, 0, "", 2))


def test_a_line_or_graph_that_is_not_there_says_which_are(report) -> None:
    with pytest.raises(torchstrata.UsageError, match=r"program\.py:2, program\.py:6"):
        line_text(report, None, "", 3)
    with pytest.raises(torchstrata.UsageError, match="there are: 0"):
        summary_text(report, 7)


def embedded(page: str, name: str) -> Any:
    found = re.search(f'<script type="application/json" id="{name}">(.*?)</script>', page)
    assert found is not None
    return json.loads(found[1])


def test_the_page_is_self_contained(report) -> None:
    page = render_page(report)
    assert not re.findall(r'(?:src|href)="(?!#|data:)', page)
    assert "http" not in re.sub(r"http://www\.w3\.org/2000/svg", "", page)
    graph = embedded(page, "data-graph-0")
    assert graph["places"] == [[FILE, 2, "y = x.exp()"], [FILE, 6, "return y @ y"]]
    (region,) = graph["regions"]
    assert (region["title"], region["places"]) == ("f", [-1, 0, -1, -1, -1, 1])
    guards = embedded(page, "data-guards")
    assert guards["rows"][0] == ["x", "is a float32 tensor of shape [4, 4] on cpu", [0, 2]]
    frames = guards["frames"]
    assert frames["0"] == frames["2"] == {"rows": [0], "nanoseconds": [25]}
    assert "BD003" in page
    assert "mark_dynamic(x, 0)" in page


def test_the_page_is_a_frame_in_a_notebook(report) -> None:
    shown = render_page(report)._repr_html_()
    assert shown.startswith('<iframe srcdoc="&lt;!doctype html&gt;')
    assert shown.count('"') == 4


def test_text_of_a_program_is_no_html(tmp_path) -> None:
    evil = "</script><img src=x onerror=alert(1)>"
    facts = {**EVENTS[7], "name": evil}
    page = render_page(read_report(write_trace(tmp_path, [*EVENTS[:7], facts, *EVENTS[8:]])))
    assert evil not in page


def test_regions_are_the_functions_around_lines() -> None:
    source = ["import a", "", "class C:", "    def f(self):", "        x = 1", "        return x"]
    (region,) = regions("m.py", source, [5])
    assert (region.title, region.first, len(region.lines)) == ("C.f", 4, 3)
    long = ["def f():", *["    x = 1"] * 400]
    found = regions("m.py", long, [10, 12, 300])
    assert [(r.first, r.first + len(r.lines) - 1) for r in found] == [(6, 16), (296, 304)]


def test_commands(tmp_path, capsys) -> None:
    directory, page = write_trace(tmp_path / "trace"), tmp_path / "page.html"
    chrome = tmp_path / "chrome.json"
    arguments = ["report", str(directory), "-o", str(page), "--chrome", str(chrome)]
    assert main(arguments) == 0
    assert page.read_text().startswith("<!doctype html>")
    assert json.loads(chrome.read_text())["traceEvents"]
    assert "1 graphs" in capsys.readouterr().out
    assert main(["explain", str(directory), "--graph", "0", "--line", "2"]) == 0
    assert "prims.exp(l_x)" in capsys.readouterr().out
    assert main(["report", str(tmp_path / "nowhere")]) == 1
    assert "STRATA_TRACE=" in capsys.readouterr().err


def test_the_last_process_that_compiled_is_read(tmp_path, capsys) -> None:
    directory = write_trace(tmp_path / "trace")
    (directory / "2-000").mkdir()
    (directory / "2-000" / "events.jsonl").write_text(json.dumps(SESSION) + "\n")
    assert main(["explain", str(directory)]) == 0
    out, err = capsys.readouterr()
    assert "4 frames" in out
    assert err == "1-000 of several processes; others: 2-000\n"
    assert main(["explain", str(directory / "2-000")]) == 0
    assert "0 frames" in capsys.readouterr().out


def test_explain_lists_a_dump(tmp_path, capsys) -> None:
    torchstrata.reset()
    torchstrata.compile(lambda x: x + 1, options={"dump": str(tmp_path)})(torch.ones(3))
    assert main(["explain", str(tmp_path)]) == 0
    assert "10-captured.py" in capsys.readouterr().out


def test_a_real_trace_has_a_page(tmp_path) -> None:
    def step(x, w):
        return torch.nn.functional.gelu(x @ w).sum()

    torchstrata.reset()
    w = torch.randn(8, 4, requires_grad=True)
    with torchstrata.trace(tmp_path / "trace"):
        torchstrata.compile(step)(torch.randn(3, 8), w).backward()
    report = read_report(tmp_path / "trace")
    (graph,) = report.graphs
    assert [program.direction for program in graph.programs] == ["forward", "backward"]
    (place,) = graph.places
    for program in graph.programs:
        assert all(kernel.places == (0,) for kernel in program.kernels)
        assert all(call.places == (0,) for call in program.calls)
    assert place == (__file__, step.__code__.co_firstlineno + 1)
    titles = [text.title for text in graph.texts]
    assert titles == ["Captured", "Joint", "Forward", "Backward"]
    assert "data-graph-0" in render_page(report)
