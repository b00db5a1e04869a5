"""Counts code lines in packages/*/src and fails above the ceiling or on a file or function too long.

Code lines hold a token; blank lines, comments and docstrings don't count. Test kits (``testing``)
are counted apart. The ceiling is in tools/size_ceiling.json: lower it after every clean-up, and
raise it only for a new capability, by as little as that needs.

usage: python tools/check_sizes.py [--lower]     --lower: write today's totals as the ceiling
"""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CEILING = Path(__file__).with_name("size_ceiling.json")
FILE_LIMIT, FUNCTION_LIMIT = 500, 60  # physical lines
C_SUFFIXES = (".c", ".h", ".cpp")
KINDS = ("Python", "C and C++", "test kits")
C_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def docstring_lines(tree: ast.Module) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | Function) and ast.get_docstring(node):
            first = node.body[0]
            lines.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return lines


def python_lines(text: str) -> int:
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstring_lines(ast.parse(text)))


def c_lines(text: str) -> int:
    return sum(bool(line.strip()) for line in C_COMMENT.sub("", text).splitlines())


def long_functions(path: Path, text: str) -> Iterator[str]:
    """A message for each function over the limit."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, Function):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LIMIT:
                yield f"{path}:{node.lineno}: {node.name} has {lines} lines"


def count(sources: list[Path]) -> Counter[tuple[str, str]]:
    """Code lines by package and kind."""
    lines: Counter[tuple[str, str]] = Counter()
    for path in sources:
        text = path.read_text()
        package = path.relative_to(ROOT / "packages").parts[0]
        if path.suffix in C_SUFFIXES:
            lines[package, "C and C++"] += c_lines(text)
        else:
            lines[package, "test kits" if "testing" in path.parts else "Python"] += python_lines(
                text
            )
    return lines


def too_long(sources: list[Path]) -> int:
    """Prints files and functions over the limit; returns how many there are."""
    found: list[str] = []
    for path in sources:
        text, shown = path.read_text(), path.relative_to(ROOT)
        physical = text.count("\n")
        found += [f"{shown}: {physical} lines"] * (physical > FILE_LIMIT)
        found += long_functions(shown, text) if path.suffix == ".py" else ()
    for message in found:
        print(f"error: {message}")
    return len(found)


def main(arguments: list[str]) -> int:
    sources = [
        path
        for path in sorted(ROOT.glob("packages/*/src/**/*"))
        if path.suffix in (".py", *C_SUFFIXES)
    ]
    failures = too_long(sources)
    lines = count(sources)
    print(f"{'code lines':<18}" + "".join(f"{kind:>11}" for kind in KINDS))
    for package in sorted({package for package, _ in lines}):
        print(f"{package:<18}" + "".join(f"{lines[package, kind]:>11}" for kind in KINDS))
    totals = {kind: sum(lines[key] for key in lines if key[1] == kind) for kind in KINDS}
    print(f"{'total':<18}" + "".join(f"{totals[kind]:>11}" for kind in KINDS))
    if "--lower" in arguments:
        CEILING.write_text(json.dumps(totals, indent=2) + "\n")
    for kind, ceiling in json.loads(CEILING.read_text()).items():
        if totals[kind] > ceiling:
            print(f"error: {totals[kind]} code lines of {kind}; the ceiling is {ceiling}")
            failures += 1
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
