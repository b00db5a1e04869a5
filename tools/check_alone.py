"""Installs each package by itself, imports it, and runs the examples of its README and its page.

Each gets a fresh environment on top of the running one, which holds torch and pip only. Fails when
a package can't be imported with its declared dependencies, when a sibling that it doesn't declare
is present, when it loads what it replaces, or when an example of its README or of its page in
docs/alone fails with the package's ``testing`` extra.

usage: python tools/check_alone.py [PACKAGE...]
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
import venv
from concurrent.futures import ThreadPoolExecutor
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


def run(python: Path | str, *arguments: str) -> None:
    subprocess.run(
        [python, *arguments],
        cwd=ROOT,
        check=True,
        stdout=subprocess.DEVNULL,
        env=os.environ | {"PYTHONWARNINGS": "ignore"},  # what pages start is quiet, too
    )


def needed(name: str, extra: str | None = None) -> list[str]:
    """The package and the siblings that it declares, or an extra of it, transitively."""
    project = tomllib.loads((ROOT / "packages" / name / "pyproject.toml").read_text())["project"]
    declared = project["dependencies"] + project.get("optional-dependencies", {}).get(extra, [])
    siblings = [
        sibling
        for sibling in PACKAGES
        if sibling in {requirement.partition(">=")[0] for requirement in declared}
    ]
    return list(
        dict.fromkeys([name, *(found for sibling in siblings for found in needed(sibling))])
    )


def layered_environment(folder: Path) -> Path:
    """The interpreter of a new environment that sees what the running one holds."""
    venv.create(folder, with_pip=False)
    paths = {key: str(folder) for key in ("base", "platbase")}
    site = Path(sysconfig.get_path("purelib", vars=paths))
    (site / "below.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "python"


def build_wheel(name: str, folder: Path) -> str:
    """The path of the package's wheel, built in isolation."""
    run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "-w",
        str(folder / name),
        f"packages/{name}",
    )
    return str(next((folder / name).glob("*.whl")))


def check(name: str, wheels: dict[str, str], folder: Path) -> None:
    """One package in an environment of its own."""
    python = layered_environment(folder)
    install = ("-m", "pip", "install", "--quiet", "--no-compile", "-c", "constraints.txt")
    local = needed(name)
    run(python, *install, *(wheels[part] for part in local))
    run(
        python,
        "-c",
        IMPORT,
        *(part.replace("-", "_") for part in (name, *sorted(set(PACKAGES) - set(local)))),
    )
    in_kit = (wheels[part] for part in needed(name, "testing"))
    run(python, *install, *in_kit, f"{wheels[name]}[testing]")
    for page in (f"packages/{name}/README.md", f"docs/alone/{name.replace('-', '_')}.md"):
        if (ROOT / page).exists():
            run(python, "tools/run_page.py", page)
    print(f"{name}: installs, imports and runs its examples alone", flush=True)


def main(names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as text, ThreadPoolExecutor(2) as pool:
        folder = Path(text)
        wheels = dict(
            zip(PACKAGES, pool.map(lambda name: build_wheel(name, folder / "wheels"), PACKAGES))
        )
        list(pool.map(lambda name: check(name, wheels, folder / name), names or PACKAGES))


if __name__ == "__main__":
    main(sys.argv[1:])
