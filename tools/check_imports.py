"""Fails when a package imports what the project replaces (CONTRIBUTING, "What we take from torch"),
in any spelling.

Finds import statements anywhere in a file (also in functions), attribute chains such as
``torch._dynamo.reset``, and strings that name a banned module
(``importlib.import_module("torch._dynamo")``, ``sys.modules[...]``, ``__import__``); docstrings and
messages with other words around the name are not module names and pass.

Fails, too, when modules of a package import each other in a cycle. Imports under TYPE_CHECKING,
inside functions and through importlib count. A package's root ``__init__`` doesn't, nor that of a
room which hands out its names lazily (``lazy_names``): it loads a module when a name is used.

usage: python tools/check_imports.py [DIRECTORY...=packages]
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import networkx

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


def modules_of(root: Path) -> dict[str, Path]:
    """The modules of a package by dotted name; ``root`` is the folder with its ``__init__``."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(module: str, path: Path) -> Iterator[str]:
    """Dotted names that a module imports, of modules or of what they define."""
    folder = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = folder[: len(folder) - node.level + 1] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{origin}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and (dotted(node.func) or "").endswith("import_module"):
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant):
                yield str(first.value)


def is_lazy(path: Path) -> bool:
    """Whether a module is the ``__init__`` of a package that hands out its names lazily."""
    calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
    return path.name == "__init__.py" and any(dotted(call.func) == "lazy_names" for call in calls)


def cycles(root: Path) -> list[str]:
    """The cycles of imports among the modules of a package."""
    modules = modules_of(root)
    graph = networkx.DiGraph()
    lazy = {root.name, *(module for module, path in modules.items() if is_lazy(path))}
    for module, path in modules.items():
        for name in imported(module, path):
            while name not in modules and "." in name:
                name = name.rpartition(".")[0]
            if name in modules and name not in (module, root.name) and module not in lazy:
                graph.add_edge(module, name)
    found = networkx.strongly_connected_components(graph)
    return [f"cycle: {', '.join(sorted(cycle))}" for cycle in found if len(cycle) > 1]


def main(directories: list[str]) -> int:
    roots = [Path(directory) for directory in directories or ["packages"]]
    packages = sorted(path.parent for root in roots for path in root.glob("*/src/*/__init__.py"))
    files = [path for package in packages for path in sorted(package.rglob("*.py"))]
    found = [message for path in files for message in violations(path)]
    found += [message for package in packages for message in cycles(package)]
    print("\n".join(found) or f"{len(files)} files, no banned import, no cycle")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
