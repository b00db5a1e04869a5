"""Installs each package by itself into the running environment, imports it, and runs the examples of its README.

Everything that a package brings is removed again, so each sees its own declared dependencies and what the environment held
before. Fails when a package can't be imported with its dependencies only, when a sibling that it doesn't declare is present,
when it loads what it replaces, or when an example of its README fails with the package's ``testing`` extra.

usage: python tools/check_alone.py [PACKAGE...]     (in an environment that holds torch and pip)
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = sorted(path.parent.name for path in ROOT.glob("packages/*/pyproject.toml"))
IMPORT = """
import importlib, importlib.util, sys
module, *siblings = sys.argv[1:]
present = [name for name in siblings if importlib.util.find_spec(name)]
assert not present, f"{module}: undeclared siblings are installed: {', '.join(present)}"
importlib.import_module(module)
loaded = [name for name in ("torch._dynamo", "torch._inductor") if name in sys.modules]
assert not loaded, f"{module}: importing it loads {', '.join(loaded)}"
"""


def python(*arguments: str) -> str:
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def needed(name: str) -> list[str]:
    """The package and the siblings that it declares, transitively."""
    declared = tomllib.loads((ROOT / "packages" / name / "pyproject.toml").read_text())["project"]["dependencies"]
    siblings = [sibling for sibling in PACKAGES if sibling in declared]
    return list(dict.fromkeys([name, *(found for sibling in siblings for found in needed(sibling))]))


def installed() -> set[str]:
    return {line.partition(" @ ")[0].partition("==")[0] for line in python("-m", "pip", "freeze", "--all").splitlines()}


def check(name: str, wheels: dict[str, str]) -> None:
    """One package; the environment is afterwards as it was."""
    before = installed()
    install = ("-m", "pip", "install", "--quiet", "--no-compile", "-c", "constraints.txt")
    local = needed(name)
    try:
        python(*install, *(wheels[part] for part in local))
        python("-c", IMPORT, *(part.replace("-", "_") for part in (name, *sorted(set(PACKAGES) - set(local)))))
        python(*install, f"{wheels[name]}[testing]")
        python("tools/readme_examples.py", f"packages/{name}/README.md")
    finally:
        python("-m", "pip", "uninstall", "--quiet", "--yes", *(installed() - before))
    print(f"{name}: installs, imports and runs its examples alone", flush=True)


def main(names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        python("-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder, *(f"packages/{name}" for name in PACKAGES))
        wheels = {path.name.partition("-")[0].replace("_", "-"): str(path) for path in Path(folder).glob("*.whl")}
        for name in names or PACKAGES:
            check(name, wheels)


if __name__ == "__main__":
    main(sys.argv[1:])
