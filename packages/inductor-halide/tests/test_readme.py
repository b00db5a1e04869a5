"""The README's example runs."""

import pytest

pytest.importorskip("halide")


def test_example_runs(run_readme, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("STRATA_CACHE_DIR", str(tmp_path / "cache"))
    run_readme()
    assert "reduce('sum'" in capsys.readouterr().out
