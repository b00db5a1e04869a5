"""The pages that are generated, or name files, follow the code."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
import torch

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
