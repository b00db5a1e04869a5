"""The README's examples run."""


def test_examples_run(run_readme, capsys):
    run_readme()
    shown = capsys.readouterr().out
    assert (
        "aten.mm" in shown
        and "patterns silu: 1 matches" in shown
        and "rewritten_by='silu') = ops.aten.silu.default(x0)" in shown
    )
