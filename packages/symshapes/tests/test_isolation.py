"""Running many ops never loads the incumbent compiler."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
from symshapes import FakeTensorMode
from symshapes.testing import fake_inputs, with_gradients
from test_training_ops import CASES

for name, (function, make) in CASES.items():
    mode = FakeTensorMode()
    inputs = fake_inputs(mode, make, 4)
    with mode:
        with_gradients(function)(*inputs)
loaded = [m for m in sys.modules if m.split(".")[:2] in (["torch", "_dynamo"], ["torch", "_inductor"])]
assert not loaded, loaded
"""


def test_ops_do_not_load_the_incumbent() -> None:
    tests = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(tests=tests)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_import_is_light() -> None:
    code = (
        "import sys, torch; before = set(sys.modules); import symshapes; "
        "print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "torch._refs" not in done.stdout and "torch._subclasses.fake_tensor" not in done.stdout
