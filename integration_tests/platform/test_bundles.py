"""A bundle of the cache travels: to another environment with torch elsewhere, another directory, and
another user.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
OTHER_USER = 12345
AS_OTHER = ("setpriv", f"--reuid={OTHER_USER}", f"--regid={OTHER_USER}", "--clear-groups")
LIBRARIES = """
    torch torchgen functorch sympy mpmath numpy numpy.libs filelock platformdirs jinja2 markupsafe
    networkx typing_extensions.py fsspec safetensors
""".split()
OURS = [
    *("symshapes", "bytecode_dynamo", "aotgrad", "primops", "loopir"),
    *("inductor_cpp", "inductor_triton", "torchstrata"),
]
PROGRAM = """
import sys, torch, torchstrata
from zoo import ZOO

def step(call, *inputs):
    call(*inputs).float().sum().backward()

options = {"verify": False, "fallback": "error"}
torch.manual_seed(0)
for entry in ZOO:
    if entry.name == "mlp":
        step(torchstrata.compile(entry.build(), options=options), *entry.inputs(3))
weight = torch.randn(4, 4, requires_grad=True)
rows = torchstrata.compile(
    lambda x: (x @ weight + torch.tensor([1.0, 2.0, 3.0, 4.0])).tanh(), dynamic=True, options=options
)
for count in (4, 6, 9):
    step(rows, torch.randn(count, 4))
print(torchstrata.__file__, torch.__file__)
print(torchstrata.counters["cache_hits"], torchstrata.counters["cache_misses"])
"""


class Environment:
    """A virtual environment with copies of this one's packages, and a directory to work in."""

    def __init__(self, root: Path, as_other: tuple[str, ...] = ()) -> None:
        self.root, self.as_other = root, as_other
        self.python = root / "env" / "bin" / "python"
        venv.create(root / "env", with_pip=False, symlinks=True)
        (site,) = (root / "env" / "lib").glob("python*/site-packages")
        installed = Path(torch.__file__).parents[1]
        for name in LIBRARIES:
            if (installed / name).exists():
                subprocess.run(["cp", "-al", installed / name, site / name], check=True)
        for name in OURS:
            spec = importlib.util.find_spec(name)
            assert spec is not None and spec.origin is not None
            shutil.copytree(Path(spec.origin).parent, site / name)
        (root / "work").mkdir()
        (root / "work" / "program.py").write_text(PROGRAM)
        shutil.copy(ROOT / "integration_tests" / "models" / "zoo.py", root / "work")
        if as_other:
            os.chown(root / "work", OTHER_USER, OTHER_USER)

    def run(self, *arguments: object) -> str:
        """The output of its Python."""
        work = self.root / "work"
        done = subprocess.run(
            [*self.as_other, self.python, "-W", "ignore", *map(str, arguments)],
            capture_output=True, text=True, cwd=work,
            env={
                "HOME": str(work), "PATH": os.environ["PATH"], "OMP_NUM_THREADS": "2",
                "STRATA_CACHE_DIR": str(work / "cache"),
            },
        )  # fmt: skip
        assert not done.returncode, done.stderr
        return done.stdout


@pytest.fixture
def places() -> Iterator[Path]:
    """A directory that every user may enter."""
    with tempfile.TemporaryDirectory(dir=ROOT) as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


def can_be_other() -> bool:
    """Whether this user may run its Python as another one."""
    if shutil.which("setpriv") is None:
        return False
    done = subprocess.run([*AS_OTHER, sys.executable, "-c", "import torch"], capture_output=True)
    return not done.returncode


@pytest.mark.skipif(sys.platform != "linux", reason="links files to copy them")
def test_a_bundle_has_everything_elsewhere(places: Path):
    here = Environment(places / "here")
    there = Environment(places / "far" / "there", AS_OTHER if can_be_other() else ())
    *first, counts = here.run("program.py").splitlines()
    assert counts.split()[0] == "0", "an empty cache has no hits"
    bundle = places / "bundle.zip"
    here.run("-m", "torchstrata", "cache", "export", bundle)
    bundle.chmod(0o644)
    there.run("-m", "torchstrata", "cache", "import", bundle)
    *second, counts = there.run("program.py").splitlines()
    hits, misses = map(int, counts.split())
    assert (misses, hits > 0) == (0, True) and first != second
