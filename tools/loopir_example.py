"""Writes docs/loopir_example.md: one kernel followed from the user's line to the loop body.

usage: python tools/loopir_example.py [--check]      --check: fail when the file is not what would be written
"""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from typing import Any

import aotgrad
import bytecode_dynamo
import loopir
import primops.text
import torch

TARGET = Path(__file__).parents[1] / "docs" / "loopir_example.md"
SOURCE = """\
import torch
import torch.nn.functional as F


def attend(x, mask, values):
    scores = x * 0.125 + mask
    weights = F.softmax(scores, dim=-1)
    return weights @ values, weights.amax()
"""

PAGE = """\
# From the user's line to the loop body

<!-- written by tools/loopir_example.py -->

Written by `python tools/loopir_example.py`. The file `model.py`:

```python
{source}```

What capture, autograd and decomposition make of it (`30-prims.py` of a dump). Every node says where it comes from:

```
{prims}
```

The kernels (`40-loops.txt`). A comment per graph node names the user's line; `v4 = add(v2, v3)` is `x * 0.125 + mask` of
line 5, and since it is cheaper to compute again than to store, it stands in each of the three loops of the softmax:

```
{kernels}
```

The schedule: the steps, then each pair of nodes that was considered, with the reason:

```
{schedule}```
"""


def page() -> str:
    """The page's text."""
    linecache.cache["model.py"] = (len(SOURCE), None, SOURCE.splitlines(True), "model.py")
    space: dict[str, Any] = {}
    exec(compile(SOURCE, "model.py", "exec"), space)
    shown: dict[str, str] = {}

    def keep(graph: torch.fx.GraphModule, _: object) -> Any:
        prims = primops.decompose(graph)
        program = loopir.schedule(loopir.lower(prims))
        shown["prims"] = primops.text.format_graph(prims).strip()
        shown["kernels"] = "\n".join(map(loopir.format_any, program.kernels)).strip()
        shown["schedule"] = loopir.format_schedule(program)
        return lambda *args: graph(*args)

    backend = aotgrad.aot_backend(keep, keep, inference_compiler=keep)
    with torch.no_grad():
        bytecode_dynamo.optimize(backend)(space["attend"])(
            torch.randn(8, 64), torch.zeros(64), torch.randn(64, 16)
        )
    return PAGE.format(source=SOURCE, **shown)


def main() -> int:
    """Writes the page, or compares it."""
    if "--check" in sys.argv[1:]:
        return int(TARGET.read_text() != page())
    TARGET.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
