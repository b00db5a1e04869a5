"""The README's examples run."""

import bytecode_dynamo as bd


def test_examples_run(run_readme):
    bd.reset()  # the examples count from zero
    run_readme()
