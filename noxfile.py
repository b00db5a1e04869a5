"""Development sessions. ``nox -s tests`` is all that a contributor must pass; ``nox -s quickstart`` is the tour."""

from __future__ import annotations

import os
import shutil
import tomllib
from pathlib import Path

import nox

nox.options.sessions = ["tests"]
nox.options.default_venv_backend = "venv"
nox.options.reuse_venv = "yes"
nox.options.error_on_missing_interpreters = False  # the smoke session of a missing one is reported as skipped

ROOT = Path(__file__).parent
PACKAGES = (
    "symshapes",
    "bytecode-dynamo",
    "aotgrad",
    "primops",
    "loopir",
    "inductor-triton",
    "inductor-cpp",
    "torchstrata",
)
SOURCES = os.pathsep.join(str(ROOT / "packages" / name / "src") for name in PACKAGES)
OTHER_PYTHONS = ("3.12", "3.13")
NEEDED_BY_CUDA_TORCH = 10  # GB of disk
MODEL_LIBRARIES = ("transformers==5.23.0", "einops==0.8.2", "tqdm>=4.66", "pillow", "pyyaml", "huggingface_hub", "safetensors")
TIED_TO_TORCH = ("torchvision==0.28.0", "timm==1.0.31")  # their wheels ask for a torch build of their own
TEST_TOOLS = ("pytest>=8", "hypothesis>=6.100", "numpy>=2", "scipy>=1.12", "einops>=0.8")


def local_dependencies(name: str) -> list[str]:
    """The package and the siblings that its pyproject.toml declares, transitively."""
    declared = tomllib.loads((ROOT / "packages" / name / "pyproject.toml").read_text())["project"]["dependencies"]
    found = [sibling for sibling in PACKAGES if sibling in declared]
    return [name, *dict.fromkeys(dependency for sibling in found for dependency in local_dependencies(sibling))]


def install(session: nox.Session, *names: str, tools: tuple[str, ...] = TEST_TOOLS) -> None:
    """Installs packages of this repository, with torch as the constraints file pins it, and test tools."""
    make_room(session)
    folders = [f"packages/{name}" for name in dict.fromkeys(d for name in names for d in local_dependencies(name))]
    session.install("--no-compile", "-c", "constraints.txt", *folders, *tools)


def make_room(session: nox.Session) -> None:
    """On CI, where disk is small, only the running session keeps its environment and no downloads are kept.

    A torch of 3.12 or 3.13 brings the CUDA libraries: 5 GB installed and 3 GB while they are fetched.
    """
    if "CI" not in os.environ:
        return
    for environment in (ROOT / ".nox").iterdir():
        if environment != Path(session.virtualenv.location):
            shutil.rmtree(environment, ignore_errors=True)
    session.env["PIP_NO_CACHE_DIR"] = "1"
    free = shutil.disk_usage(ROOT).free / 1e9
    if session.python in OTHER_PYTHONS and free < NEEDED_BY_CUDA_TORCH:
        session.skip(f"{free:.1f} GB of disk are free, torch's CUDA build needs {NEEDED_BY_CUDA_TORCH}")


def run_pytest(session: nox.Session, *arguments: str) -> None:
    session.run("pytest", *arguments, *session.posargs, env={"STRATA_CACHE_DIR": session.create_tmp() + "/cache"})


@nox.session
def tests(session: nox.Session) -> None:
    """Everything that a contributor must pass."""
    for name in ("lint", "layers", "types", "seams", "integration", "docs"):
        session.notify(name)
    for package in PACKAGES:
        session.notify(f"unit(package='{package}')")
    for python in OTHER_PYTHONS:
        session.notify(f"smoke-{python}")


@nox.session
def lint(session: nox.Session) -> None:
    """Format, lint, size ceilings, banned imports."""
    session.install("ruff==0.17.6")
    session.run("ruff", "format", "--check", ".")
    session.run("ruff", "check", ".")
    session.run("python", "tools/check_sizes.py")
    session.run("python", "tools/check_imports.py")


@nox.session
def layers(session: nox.Session) -> None:
    """No arrow between packages but the declared ones."""
    session.install("import-linter==2.16")
    session.run("lint-imports", env={"PYTHONPATH": SOURCES})


@nox.session
def types(session: nox.Session) -> None:
    """Static types of every package."""
    install(session, "torchstrata", tools=("pyright[nodejs]==1.1.414", "hypothesis>=6.100", "pytest>=8", "numpy>=2"))
    folders = [f"packages/{name}/src" for name in PACKAGES]  # named, for pyright is content with a pattern that finds no file
    session.run("pyright", *folders, env={"PYTHONPATH": SOURCES})


@nox.session
@nox.parametrize("package", PACKAGES)
def unit(session: nox.Session, package: str) -> None:
    """One package with its declared dependencies only: wheel, import without siblings, its tests."""
    install(session, package)
    siblings = [name.replace("-", "_") for name in PACKAGES if name not in local_dependencies(package)]
    session.run("python", "tools/check_alone.py", package.replace("-", "_"), *siblings)
    run_pytest(session, f"packages/{package}/tests")


@nox.session
def seams(session: nox.Session) -> None:
    """Each producer's output passes its consumer."""
    install(session, "torchstrata")
    run_pytest(session, "integration_tests/seams")


@nox.session
def integration(session: nox.Session) -> None:
    """Whole models against eager, and every bug ever fixed."""
    install(session, "torchstrata", tools=(*TEST_TOOLS, *MODEL_LIBRARIES))
    session.install("--no-compile", "--no-deps", *TIED_TO_TORCH)
    run_pytest(session, *(f"integration_tests/{part}" for part in ("api", "models", "operators", "repros", "thirdparty")))


@nox.session(python=list(OTHER_PYTHONS))
def smoke(session: nox.Session) -> None:
    """Hook, capture and smoke tests on the other CPython versions (reported as skipped when the interpreter is missing)."""
    install(session, "torchstrata")
    run_pytest(session, "packages/bytecode-dynamo/tests", "integration_tests/api/test_smoke.py")


@nox.session
def bench(session: nox.Session) -> None:
    """Call overhead and compile time next to torch.compile, in one process."""
    install(session, "torchstrata")
    session.run("python", "benchmarks/run.py", *session.posargs)


@nox.session
def opinfo(session: nox.Session) -> None:
    """First and second derivatives of every operator in torch's database through aotgrad; writes docs/aotgrad_opinfo.md."""
    install(session, "aotgrad")
    session.run(
        "python", "-W", "ignore", "-m", "packages.aotgrad.tests.opinfo", "--table", "docs/aotgrad_opinfo.md", *session.posargs
    )


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation site, links checked."""
    session.install("mkdocs-material>=9.5,<10")
    session.run("mkdocs", "build", "--strict", "--quiet")


@nox.session
def quickstart(session: nox.Session) -> None:
    """Trains a small CNN on real digits, eager and compiled, and shows every stage."""
    install(session, "torchstrata", tools=("scikit-learn>=1.4", "tqdm>=4.66"))
    session.run("python", "examples/quickstart.py", *session.posargs)


@nox.session
def nightly(session: nox.Session) -> None:
    """The large property-test profiles."""
    install(session, "torchstrata", tools=(*TEST_TOOLS, *MODEL_LIBRARIES))
    session.install("--no-compile", "--no-deps", *TIED_TO_TORCH)
    session.env["STRATA_PROFILE"] = "nightly"
    run_pytest(session, "packages", "integration_tests", "-m", "slow or not slow")


@nox.session
def wheels(session: nox.Session) -> None:
    """Builds every package's wheel into dist/."""
    session.install("build")
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    for name in PACKAGES:
        session.run("python", "-m", "build", "--wheel", "--outdir", "dist", f"packages/{name}")
