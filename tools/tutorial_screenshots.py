"""Writes the pictures of docs/tutorial.md: the report of its program, in headless Chromium.

usage: python -m tools.tutorial_screenshots      needs selenium, chromium and chromedriver
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from selenium import webdriver

from tools.run_page import ROOT, read_blocks

DOCS = ROOT / "docs"
PROGRAM, LINE = "scaled.py", "return self.head"
PARTS = {"overview": "#overview", "functions": "#functions article:has(.line.broke)"}
SCROLL = """
const part = document.querySelector(arguments[0]);
const top = part.getBoundingClientRect().top + scrollY - 60;
scrollTo({top, behavior: "instant"});
"""
OPEN = """
const article = document.getElementById("graph-1");
return openGraph(article, 0).then(() => {
  const button = [...article.querySelectorAll(".row button")].find(b => b.textContent === "forward");
  if (button) button.click();
});
"""
CHOOSE = """
const lines = [...document.querySelectorAll("#graph-1 .column:first-child .l.linked")];
const line = lines.find(element => element.textContent.includes(arguments[0]));
line.dispatchEvent(new MouseEvent("mouseover", {bubbles: true}));
line.dispatchEvent(new MouseEvent("click", {bubbles: true}));
"""


def write_report(folder: Path) -> Path:
    """The report of the tutorial's program with a graph break."""
    blocks = read_blocks(DOCS / "tutorial.md")
    (folder / PROGRAM).write_text(next(block.text for block in blocks if block.title == PROGRAM))
    settings = os.environ | {"STRATA_CACHE_DIR": str(folder / "cache"), "STRATA_VERIFY": "0"}
    traced = settings | {"STRATA_TRACE": "trace"}
    report = ("-m", "torchstrata", "report", "trace", "-o", "report.html")
    for command, environment in (((PROGRAM,), traced), (report, settings)):
        subprocess.run([sys.executable, *command], cwd=folder, env=environment, check=True)
    return folder / "report.html"


@contextlib.contextmanager
def opened(report: Path, size: str) -> Iterator[Any]:
    """The report in a browser of its own: a picture of a part moves what later ones show."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or "chromium-browser"
    for argument in ("--headless=new", "--no-sandbox", f"--window-size={size}"):
        options.add_argument(argument)
    page = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        page.get(report.as_uri())
        wait(page)
        yield page
    finally:
        page.quit()


def wait(page: Any) -> None:
    page.execute_async_script("setTimeout(arguments[0], 500)")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        report = write_report(Path(folder))
        for name, selector in PARTS.items():
            with opened(report, "1400,900") as page:
                page.execute_script(SCROLL, selector)
                wait(page)
                part = page.find_element("css selector", selector)
                part.screenshot(str(DOCS / f"tutorial_{name}.png"))
        with opened(report, "1500,900") as page:
            page.execute_script(OPEN)
            wait(page)
            page.execute_script(CHOOSE, LINE)
            wait(page)
            page.execute_script(SCROLL, "#graph-1")
            wait(page)
            page.save_screenshot(str(DOCS / "tutorial_stages.png"))


if __name__ == "__main__":
    main()
