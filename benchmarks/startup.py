"""What imports cost beyond torch, each in fresh processes that alternate with one that imports
torch alone.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from functools import partial
from typing import Any

ROUNDS = 5
PROGRAM = """
import json, sys, time
started = time.perf_counter()
import torch
after_torch = time.perf_counter()
before = len(sys.modules)
exec(sys.argv[1])
added = time.perf_counter() - after_torch
print(json.dumps([after_torch - started, added, len(sys.modules) - before, "sympy" in sys.modules]))
"""


def _run(statement: str) -> list[Any]:
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, statement]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _added(statement: str) -> dict[str, Any]:
    """Milliseconds and modules that a statement adds to ``import torch``: medians."""
    _run(statement)  # writes the bytecode
    rounds = [(_run("pass"), _run(statement)) for _ in range(ROUNDS)]
    alone, measured = ([row[i] for row in rounds] for i in (0, 1))
    return {
        "torch alone ms": round(1000 * statistics.median(row[0] for row in alone)),
        "adds ms": round(1000 * statistics.median(row[1] for row in measured), 1),
        "modules": measured[0][2],
        "sympy": measured[0][3],
    }


def _case(name: str, statement: str) -> Any:
    case: Any = partial(_added, statement)
    case.__name__ = name
    return case


CASES = [
    _case("stack", "import torchstrata"),
    _case("stack_compile", "import torchstrata; torchstrata.compile"),
    _case("capture", "import bytecode_dynamo"),
    _case("capture_optimize", "import bytecode_dynamo; bytecode_dynamo.optimize"),
    _case(
        "loading_programs",
        "import torchstrata, inductor_cpp.generator, aotgrad.compiling.compiled_cache, "
        "loopir.cache.program_cache",
    ),
    _case("torch_dynamo", "import torch._dynamo"),
    _case("torch_inductor", "import torch._inductor.compile_fx"),
]
