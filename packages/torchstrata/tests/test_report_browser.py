"""The page of a report in headless Chromium: no errors, linked lines, tabs, search."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torchstrata
from torchstrata.report import read_report, render_page

from .traces import EVENTS, PROGRAM, write_trace

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
if CHROMIUM is None or DRIVER is None:
    pytest.skip("needs chromium and chromedriver", allow_module_level=True)
webdriver = pytest.importorskip("selenium.webdriver")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--window-size=1500,1000"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


def model(x, w, n):
    y = torch.nn.functional.gelu(x @ w)
    print(end="")
    z = y.softmax(1) * n
    return z.sum()


LINE = model.__code__.co_firstlineno + 3
"""A line whose nodes end up in a kernel."""


@pytest.fixture
def page(tmp_path, browser) -> Iterator[Any]:
    torchstrata.reset()
    w = torch.randn(8, 4, requires_grad=True)
    with (
        torchstrata.trace(tmp_path / "trace", profile=True),
        torchstrata.config.patch(cache_dir=str(tmp_path / "cache"), verify=False),
    ):
        compiled = torchstrata.compile(model)
        compiled(torch.randn(3, 8), w, 2).backward()
        compiled(torch.randn(5, 8), w, 2).backward()
    yield from opened(tmp_path, browser, tmp_path / "trace")


def opened(folder: Path, browser: Any, trace: Path) -> Iterator[Any]:
    path = folder / "report.html"
    path.write_text(render_page(read_report(trace)))
    browser.get(path.as_uri())
    yield browser
    assert [entry["message"] for entry in browser.get_log("browser")] == []


def find(page: Any, selector: str) -> list[Any]:
    return page.find_elements("css selector", selector)


def open_graph(page: Any, number: int, tab: int = 0) -> None:
    opens = "return openGraph(document.getElementById(arguments[0]), arguments[1]).then(() => 1)"
    page.execute_script(opens, f"graph-{number}", tab)


HITS = """
const columns = document.querySelectorAll("#graph-" + arguments[0] + " .column");
return Object.fromEntries([...columns].map(column => [
    column.querySelector("h4").firstChild.textContent, column.querySelectorAll(".hit").length]));
"""
HOVER = """
arguments[0].dispatchEvent(new MouseEvent("mouseover", {bubbles: true}));
"""


def test_functions_have_coverage_breaks_and_recompiles(page) -> None:
    lines = find(page, "#functions .line.captured")
    assert len(lines) >= 3
    (broken,) = find(page, "#functions .line.broke")
    assert "print" in broken.text
    assert any("BD003" in note.text for note in find(page, "#functions .note.broke"))
    changes = [row.text for row in find(page, ".changes tr")]
    assert any("x.size(0)" in row and "mark_dynamic(x, 0)" in row for row in changes)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_line_links_to_all_stages_and_back(page, direction) -> None:
    open_graph(page, 1)
    (button,) = (b for b in find(page, "#graph-1 .row button") if b.text == direction)
    page.execute_script("arguments[0].click()", button)
    code = find(page, "#graph-1 .column:first-child .l.linked")
    (line,) = (element for element in code if element.text.startswith(str(LINE)))
    page.execute_script(HOVER, line)
    hits = page.execute_script(HITS, 1)
    stages = {"Your code", "Captured", "Joint", "Prims", "Loops", "Kernels"}
    assert {name for name, count in hits.items() if count} >= stages
    kernel = find(page, "#graph-1 details.kernel")[-1]
    page.execute_script(HOVER, kernel)
    assert page.execute_script(HITS, 1)["Your code"] == len(
        kernel.get_dom_attribute("data-p").split(",")
    )


def test_every_panel_opens(page) -> None:
    for tab, selector in enumerate((".column .l", "tbody tr", "p.quiet", "svg rect", ".column .l")):
        open_graph(page, 0, tab)
        assert find(page, f"#graph-0 .panel {selector}")
    open_graph(page, 0, 1)
    cells = [cell.text for cell in find(page, "#graph-0 .panel tbody td")]
    assert any("µs" in cell or "ns" in cell or "ms" in cell for cell in cells)


def test_guards_open_with_who_asked_and_their_cost(page) -> None:
    page.execute_script("document.querySelector('button.guards').click()")
    page.execute_async_script("setTimeout(arguments[0], 200)")
    rows = [row.text for row in find(page, ".guard-list tbody tr")]
    assert any("is a float32 tensor of shape" in row and f".py:{LINE - 2}" in row for row in rows)
    assert any(row.endswith("ns") for row in rows)


def test_search_finds_nodes_and_shows_them(page) -> None:
    box = page.find_element("id", "search")
    box.send_keys("softmax")
    page.execute_async_script("setTimeout(arguments[0], 400)")
    results = find(page, "#results button")
    assert results
    node = next(result for result in results if "captured" in result.text)
    page.execute_script("arguments[0].click()", node)
    page.execute_async_script("setTimeout(arguments[0], 400)")
    assert find(page, ".column .l.pinned")


def test_the_timeline_zooms(page) -> None:
    bars = len(find(page, "#chart .bar"))
    assert bars >= 6
    page.execute_script("""
        const chart = document.getElementById("chart"), box = chart.getBoundingClientRect();
        const at = (type, x, target) => target.dispatchEvent(new MouseEvent(type, {clientX: box.left + x, clientY: box.top + 20, bubbles: true}));
        at("mousedown", 10, chart); at("mousemove", 60, window); at("mouseup", 60, window);
    """)
    zoomed = len(find(page, "#chart .bar"))
    assert 0 < zoomed < bars


@pytest.fixture
def large_page(tmp_path, browser) -> Iterator[Any]:
    program: dict[str, Any] = copy.deepcopy(PROGRAM)
    kernel, call = program["kernels"][0], program["calls"][0]
    text = [f"v{k} = load(in0, [{17 * k}*x0 + {k}], 'float32')" for k in range(120)]
    kernel["loops"] = kernel["source"] = "\n".join(text)
    program["kernels"] = [{**kernel, "name": f"kernel{k}"} for k in range(1000)]
    program["calls"] = [{**call, "name": f"kernel{k}", "kernel": k} for k in range(1000)]
    events = [event for event in EVENTS if event["event"] != "profile"]
    events[events.index(PROGRAM)] = program
    yield from opened(tmp_path, browser, write_trace(tmp_path / "trace", events))


def test_a_thousand_kernels_are_shown_when_asked(large_page, tmp_path) -> None:
    assert (tmp_path / "report.html").stat().st_size < 1e6  # compressed
    open_graph(large_page, 0)
    assert len(find(large_page, "details.kernel")) == 2000
    assert not find(large_page, "details.kernel .l")  # closed ones are not drawn
    large_page.find_element("id", "search").send_keys("kernel777 ")
    large_page.execute_async_script("setTimeout(arguments[0], 400)")
    (result,) = find(large_page, "#results button")
    large_page.execute_script("arguments[0].click()", result)
    large_page.execute_async_script("setTimeout(arguments[0], 400)")
    opened_kernels = find(large_page, "details.kernel[open]")
    assert {kernel.get_dom_attribute("data-kernel") for kernel in opened_kernels} == {"kernel777"}
    open_graph(large_page, 0, 1)
    assert "of 1000 rows" in large_page.find_element("css selector", "#graph-0 .row .quiet").text
