"""Fails when a package imports what the project replaces (CONTRIBUTING, "What we take from torch"),
in any spelling.

Finds import statements anywhere in a file (also in functions), attribute chains such as
``torch._dynamo.reset``, and strings that name a banned module
(``importlib.import_module("torch._dynamo")``, ``sys.modules[...]``, ``__import__``); docstrings and
messages with other words around the name are not module names and pass.

usage: python tools/check_imports.py [DIRECTORY...=packages]
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

BANNED = (
    "torch._dynamo",
    "torch._inductor",
    "torch._functorch",
    "torch._decomp",
    "torch._refs",
    "torch._prims",
    "torch._prims_common",
    "torch._subclasses",
    "torch._C._dynamo",
    "torch._higher_order_ops",
    "torch.fx.experimental",
    "torch.compile",
    "torch.export",
    "torch._export",
)


def banned_prefix(name: str) -> str | None:
    return next((ban for ban in BANNED if name == ban or name.startswith(ban + ".")), None)


def dotted(node: ast.AST) -> str | None:
    """``a.b.c`` of an attribute chain, None for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return None if base is None else f"{base}.{node.attr}"
    return None


def names_in(node: ast.AST) -> Iterator[str]:
    """Module names that a syntax node mentions."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Attribute):
        yield dotted(node) or ""
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value.strip()


def violations(path: Path) -> list[str]:
    found = {}
    for node in ast.walk(ast.parse(path.read_text())):
        for name in names_in(node):
            if banned_prefix(name):
                found.setdefault(
                    getattr(node, "lineno", 0), f"{path}:{getattr(node, 'lineno', 0)}: {name}"
                )
    return list(found.values())


def main(directories: list[str]) -> int:
    files = [
        path
        for directory in directories or ["packages"]
        for path in sorted(Path(directory).glob("*/src/**/*.py"))
    ]
    found = [message for path in files for message in violations(path)]
    print("\n".join(found) or f"{len(files)} files, no banned import")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
