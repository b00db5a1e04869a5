"""Fails when a package can't be imported by itself, or when a sibling that it doesn't declare is importable or loaded.

usage: python tools/check_alone.py MODULE [SIBLING...]
"""

from __future__ import annotations

import importlib
import importlib.util
import sys


def main(module: str, siblings: list[str]) -> int:
    present = [sibling for sibling in siblings if importlib.util.find_spec(sibling)]
    if present:
        print(f"{module}: the environment holds undeclared siblings: {', '.join(present)}")
        return 1
    importlib.import_module(module)
    loaded = [name for name in ("torch._dynamo", "torch._inductor") if name in sys.modules]
    if loaded:
        print(f"{module}: importing it loads {', '.join(loaded)}")
        return 1
    print(f"{module} imports alone")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
