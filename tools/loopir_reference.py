"""Writes docs/loopir.md, the reference of the loop IR, from the vocabulary in ``loopir.ir.ops``.

usage: python tools/loopir_reference.py [--check]      --check: fail when the file is not what would be written
"""

from __future__ import annotations

import sys
from pathlib import Path

from loopir import OPS, REDUCTIONS, OpSpec
from loopir.ir.text import method_name

TARGET = Path(__file__).parents[1] / "docs" / "loopir.md"

HEAD = """\
# The loop IR

A kernel is a loop nest with bodies of flat SSA (clauses C4 in [contracts](contracts.md)). It prints as a subset of Python:

<!-- read by loopir.parse_kernel -->

```text
@kernel(device='cpu', vector='r0')
def mean(in0: In('float32', 64*s0), out0: Out('float32', s0), s0: Size(hint=8)):
    for x0 in range(s0):
        for r0 in reduce(64):
            v0 = load(in0, [64*x0 + r0], 'float32')
            v1 = reduce('sum', v0, 'float32')
        v2 = constant(0.015625, 'float32')
        v3 = mul(v1, v2)
        store(out0, [x0], v3)
```

`range` loops run in any order and in parallel; what stands in a `reduce` loop runs once per point of both. Index expressions
are integer expressions over loop symbols, sizes and `indirect` symbols; `//` and `%` round as in Python.
`loopir.evaluate_kernel` is the meaning of every operation; `loopir.testing.check_code_generator` compares a code generator
with it.
"""

GROUPS = {
    "Memory and indices": ("load", "store", "index_expr", "indirect"),
    "Constants and conversion": ("constant", "cast", "bitcast"),
    "Random numbers": ("uniform",),
    "Over the reduction": ("reduce", "scan"),
}


def row(spec: OpSpec) -> str:
    """A line of a table."""
    effect = {"store": "writes memory", "indirect": "may raise IndexError"}.get(spec.name, "none")
    meaning = spec.meaning.replace("|", "\\|").replace("REDUCTIONS", "below")
    return (
        f"| `{method_name(spec.name)}` | {spec.arity} | {spec.domain.value} | {spec.rule.value} | "
        f"{effect} | {meaning} |"
    )


def table(names: list[str]) -> list[str]:
    """A table of operations."""
    head = [
        "| operation | operands | on | result | effect | meaning |",
        "|---|---|---|---|---|---|",
    ]
    return [*head, *(row(OPS[name]) for name in names), ""]


def text() -> str:
    """The whole page."""
    named = {name for names in GROUPS.values() for name in names}
    plain = [name for name in OPS if name not in named]
    lines = [HEAD, f"## The {len(OPS)} operations", ""]
    for title, names in GROUPS.items():
        lines += [f"### {title}", "", *table(list(names))]
    lines += ["### Elementwise", "", *table(plain)]
    lines += ["## Kinds of reduction", "", "| kind | result |", "|---|---|"]
    lines += [f"| `{kind}` | {meaning} |" for kind, meaning in REDUCTIONS.items()]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Writes the page, or compares it."""
    if "--check" in sys.argv[1:]:
        if TARGET.read_text() != text():
            print(f"{TARGET.name} is not what tools/loopir_reference.py writes; run it")
            return 1
        return 0
    TARGET.write_text(text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
