"""The README's examples run."""


def test_examples_run(run_readme):
    run_readme()
