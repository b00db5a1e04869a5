"""The README's examples run, and its numbers are true."""

from pathlib import Path

from primops import DEFAULT, OPSET


def test_examples_run(run_readme, capsys):
    run_readme()
    assert "erf(" in capsys.readouterr().out


def test_numbers_are_true():
    assert f"{len(OPSET)} *prims*" in (Path(__file__).parents[1] / "README.md").read_text()
    assert len(DEFAULT) > 700
