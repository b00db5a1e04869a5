"""The pages that are generated, or name files, follow the code."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tools.check_alone import PACKAGES, needed
from tools.readme_examples import run_examples

ROOT = Path(__file__).parents[2]
FOLDERS = ("packages", "integration_tests", "tools", "benchmarks")


@pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="nodes print differently")
def test_walkthrough_is_current():
    path = ROOT / "tools" / "walkthrough.py"
    spec = importlib.util.spec_from_file_location("walkthrough", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.page() == module.TARGET.read_text()


def test_back_end_page_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run_examples(ROOT / "docs" / "write_a_back_end.md", tmp_path)
    assert "refused" in capsys.readouterr().out


def test_ship_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "ship.md"
    run_examples(page, tmp_path)
    printed = capsys.readouterr().out.strip()
    assert printed and f"prints `{printed}`" in page.read_text()


PAGES = sorted(path.stem for path in (ROOT / "docs/alone").glob("*.md") if path.stem != "index")
RUN = """
import sys
from pathlib import Path
from tools.readme_examples import run_examples
run_examples(Path(sys.argv[1]), Path(sys.argv[2]))
print(*{name.partition(".")[0] for name in sys.modules})
"""


@pytest.mark.parametrize("page", PAGES)
def test_page_of_a_layer_runs_without_the_others(page: str, tmp_path: Path):
    needs = {"inductor_halide": "halide", "inductor_triton": "triton"}
    if page in needs:
        pytest.importorskip(needs[page])
    environment = os.environ | {"STRATA_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", RUN, f"docs/alone/{page}.md", str(tmp_path)],
        capture_output=True, text=True, cwd=ROOT, env=environment,
    )  # fmt: skip
    assert not done.returncode, done.stderr
    declared = {name.replace("-", "_") for name in needed(page.replace("_", "-"), "testing")}
    siblings = {name.replace("-", "_") for name in PACKAGES} - declared
    assert not siblings & set(done.stdout.splitlines()[-1].split())


def test_every_package_has_a_page():
    assert set(PAGES) == {name.replace("-", "_") for name in PACKAGES} - {"torchstrata"}


def test_a_page_that_prints_something_else_is_found(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1)\nprint(2)\n```\n\n```text\n...\n2\n```\n")
    run_examples(page, tmp_path)
    page.write_text(page.read_text().replace("...\n2", "1"))
    with pytest.raises(AssertionError, match="says\n1\n\nbut prints"):
        run_examples(page, tmp_path)


def test_architecture_names_existing_files():
    named = re.findall(r"`([\w./-]+(?:\.py|\.c|/))`", (ROOT / "docs/architecture.md").read_text())
    files = {
        str(path.relative_to(ROOT)) for folder in FOLDERS for path in (ROOT / folder).rglob("*")
    }
    assert len(named) > 40
    assert [
        name
        for name in named
        if not any(f"/{file}".endswith(f"/{name.rstrip('/')}") for file in files)
    ] == []
