"""Fails on a source file over 800 lines or a function over 120; lists what is over the aim (500 and
60).

usage: python tools/check_sizes.py [DIRECTORY...=packages]
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

FILE_AIM, FILE_LIMIT = 500, 800
FUNCTION_AIM, FUNCTION_LIMIT = 60, 120
SUFFIXES = (".py", ".c", ".h")


def findings(path: Path) -> list[tuple[bool, str]]:
    """(is an error, message) for one file."""
    text = path.read_text()
    found = []
    lines = text.count("\n")
    if lines > FILE_AIM:
        found.append(
            (lines > FILE_LIMIT, f"{path}: {lines} lines (aim {FILE_AIM}, limit {FILE_LIMIT})")
        )
    if path.suffix != ".py":
        return found
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.end_lineno is not None:
            length = node.end_lineno - node.lineno + 1
            if length > FUNCTION_AIM:
                found.append(
                    (
                        length > FUNCTION_LIMIT,
                        f"{path}:{node.lineno}: {node.name} has {length} lines (aim "
                        f"{FUNCTION_AIM})",
                    )
                )
    return found


def main(directories: list[str]) -> int:
    sources = (
        path
        for directory in directories or ["packages"]
        for path in sorted(Path(directory).glob("*/src/**/*"))
    )
    files = [path for path in sources if path.suffix in SUFFIXES]
    found = [item for path in files for item in findings(path)]
    for error, message in found:
        print(("error: " if error else "note: ") + message)
    total = sum(path.read_text().count("\n") for path in files)
    print(f"{len(files)} files, {total} lines")
    return int(any(error for error, _ in found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
