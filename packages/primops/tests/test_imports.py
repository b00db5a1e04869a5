"""What importing and using the package loads."""

from __future__ import annotations

import subprocess
import sys

USE = """
import sys, time, torch
start = time.process_time()
import primops
elapsed = time.process_time() - start
from primops.testing import trace
x = torch.randn(2, 3)
primops.evaluate(primops.decompose(trace(lambda x: torch.softmax(x, 1), x)), [x])
compilers = ("dynamo", "inductor", "functorch", "decomp", "refs", "prims", "subclasses")
banned = [name for name in sys.modules if name.startswith((*(f"torch._{part}" for part in compilers), "hypothesis"))]
print(elapsed, sorted(set(banned) - set(sys.argv[1:])))
"""


def loaded_by_torch() -> list[str]:
    text = "import sys, torch; print(' '.join(sys.modules))"
    return subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=True
    ).stdout.split()


def test_import_is_quick_and_loads_no_other_compiler():
    run = subprocess.run(
        [sys.executable, "-c", USE, *loaded_by_torch()], capture_output=True, text=True, check=True
    )
    elapsed, _, banned = run.stdout.strip().partition(" ")
    assert banned == "[]"
    assert float(elapsed) < 0.3  # CPU time; benchmarks/primops.py measures with bytecode cached
