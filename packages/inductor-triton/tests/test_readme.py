"""The README's example runs."""

import pytest


def test_example_runs(run_readme, tmp_path, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setenv("STRATA_CACHE_DIR", str(tmp_path / "cache"))
    run_readme()
