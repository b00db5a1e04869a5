"""Plants one-line bugs in the packages and checks that the default tests find them.

A bug is a change to the syntax tree of one line, drawn by seed: a wrong operand, an off-by-one, a
dropped guard, a missing cast, a lost mutation or a wrong alias. Each is applied to a copy of the
repository, where static types and the default tests that run the changed place are checked until
one fails.

Not drawn: test kits, messages, ``__repr__``, and code that only chooses among correct ways to
compute (``TUNING``). A change that no program can tell is listed with its reason in
``planted_bugs_neutral.json``; the next draw takes its place.

usage: python tools/planted_bugs.py [--seed N] [--count N] [--jobs N] [--list] [--only N] [--tests
REVISION] [TEST ...]
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (
    "symshapes",
    "primops",
    "bytecode-dynamo",
    "aotgrad",
    "loopir",
    "inductor-cpp",
    "inductor-triton",
    "inductor-halide",
    "torchstrata",
)
MUTATORS = {
    "add",
    "append",
    "clear",
    "discard",
    "extend",
    "insert",
    "pop",
    "popleft",
    "remove",
    "setdefault",
    "update",
}
CASTS = {"int", "float", "bool", "sympify", "to", "convert", "to_dtype", "round_to"}
COPIES = {"clone", "copy", "deepcopy", "detach", "list", "dict", "set"}
# a wrong choice here costs time or memory, never a value
TUNING = ("cost.py", "heuristics.py", "selection.py", "autotune.py")
NEUTRAL = Path(__file__).with_name("planted_bugs_neutral.json")
# their text is compiled by Triton, or captured
NOT_PROBED = ("device_functions.py", "polyfills/library.py")
TIMEOUT = 1800  # seconds for the tests of one bug; one that makes them hang is found
NO_TESTS = 5  # pytest's exit code
PROBE = """
import os

seen = set()


def reach(number):
    row = f"{{number}} {{os.environ.get('PYTEST_CURRENT_TEST', '')}}"
    if row not in seen:
        seen.add(row)
        with open({log!r}, "a") as file:
            file.write(row + "\\n")
"""

Change = tuple[ast.AST, ast.AST]  # what stands there, and what replaces it


@dataclass(frozen=True)
class Bug:
    """One changed line."""

    kind: str
    package: str
    path: str
    line: int
    before: str
    after: str
    probe: str  # the line with a call of the probe, a format of the bug's number


def wrong_operand(node: ast.AST) -> Change | None:
    """The operands of an operator that doesn't commute, or the first two arguments of a call, in
    the wrong order.
    """
    if isinstance(node, ast.BinOp) and isinstance(
        node.op, (ast.Sub, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow)
    ):
        return node, ast.BinOp(node.right, node.op, node.left)
    if isinstance(node, ast.Call) and [
        isinstance(a, (ast.Name, ast.Attribute)) for a in node.args[:2]
    ] == [True, True]:
        first, second, *rest = node.args
        return node, ast.Call(node.func, [second, first, *rest], node.keywords)
    return None


def off_by_one(node: ast.AST) -> Change | None:
    """A comparison on the wrong side of equality, or an index or bound that is one too large."""
    swaps = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in swaps:
        return node, ast.Compare(node.left, [swaps[type(node.ops[0])]()], node.comparators)
    if (
        isinstance(node, ast.Subscript)
        and isinstance(node.slice, ast.Constant)
        and type(node.slice.value) is int
    ):
        return node, ast.Subscript(node.value, ast.Constant(node.slice.value + 1), node.ctx)
    if (
        isinstance(node, ast.BinOp)
        and isinstance(node.right, ast.Constant)
        and type(node.right.value) is int
    ):
        return node, ast.BinOp(node.left, node.op, ast.Constant(node.right.value + 1))
    return None


def dropped_guard(node: ast.AST) -> Change | None:
    """An early exit that never happens, or the last of several conditions not asked."""
    exits = (ast.Return, ast.Raise, ast.Continue, ast.Break)
    if (
        isinstance(node, ast.If)
        and not node.orelse
        and len(node.body) == 1
        and isinstance(node.body[0], exits)
    ):
        return node.test, ast.Constant(False)
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
        rest = node.values[:-1]
        return node, rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
    return None


def missing_cast(node: ast.AST) -> Change | None:
    """A value that keeps its type."""
    if not isinstance(node, ast.Call) or node.keywords:
        return None
    if isinstance(node.func, ast.Name) and node.func.id in CASTS and node.args:
        return node, node.args[0]
    if isinstance(node.func, ast.Attribute) and node.func.attr in CASTS and node.args:
        return node, node.func.value if node.func.attr == "to" else node.args[0]
    return None


def lost_mutation(node: ast.AST) -> Change | None:
    """A write to an object that doesn't happen."""
    if isinstance(node, ast.AugAssign) and not isinstance(node.target, ast.Name):
        return node, ast.Pass()
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
        return node, ast.Pass()
    call = node.value if isinstance(node, ast.Expr) else None
    if (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in MUTATORS
    ):
        return node, ast.Pass()
    return None


def wrong_alias(node: ast.AST) -> Change | None:
    """An object itself in the place of its copy."""
    if isinstance(node, ast.List) and len(node.elts) == 1 and isinstance(node.elts[0], ast.Starred):
        return node, node.elts[0].value
    if not isinstance(node, ast.Call) or node.keywords:
        return None
    if isinstance(node.func, ast.Name) and node.func.id in COPIES and len(node.args) == 1:
        return None if isinstance(node.args[0], ast.GeneratorExp) else (node, node.args[0])
    if isinstance(node.func, ast.Attribute) and node.func.attr in COPIES and not node.args:
        return node, node.func.value
    return None


KINDS: dict[str, Callable[[ast.AST], Change | None]] = {
    "wrong operand": wrong_operand,
    "off by one": off_by_one,
    "dropped guard": dropped_guard,
    "missing cast": missing_cast,
    "lost mutation": lost_mutation,
    "wrong alias": wrong_alias,
}


def live_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes whose value a program can see: no annotations, messages, logs or ``__repr__``."""
    if isinstance(node, (ast.Raise, ast.Assert, ast.JoinedStr, ast.AnnAssign)):
        return
    if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in (
        "warn",
        "debug",
        "info",
        "warning",
        "cast",
    ):
        return
    yield node
    is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    if is_function and node.name in ("__repr__", "__str__", "__hash__"):
        return
    for child in node.body if is_function else ast.iter_child_nodes(node):
        yield from live_nodes(child)


def planted(line: str, old: ast.AST, text: str) -> str:
    """The line with ``text`` in the place of ``old``; offsets of syntax trees count UTF-8 bytes."""
    encoded = line.encode()
    return (encoded[: old.col_offset] + text.encode() + encoded[old.end_col_offset :]).decode()  # type: ignore[attr-defined]


def unparsed(new: ast.AST) -> str:
    text = ast.unparse(ast.fix_missing_locations(new))
    is_closed = isinstance(
        new, (ast.stmt, ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant)
    )
    return text if is_closed else f"({text})"


def probed(line: str, old: ast.AST) -> str:
    """The line with a call of the probe at ``old``, as a format of the bug's number."""
    encoded = line.encode()
    source = encoded[old.col_offset : old.end_col_offset].decode()  # type: ignore[attr-defined]
    call = '__import__("planted_probe").reach(\0)'
    text = planted(
        line, old, f"{call}; {source}" if isinstance(old, ast.stmt) else f"({call} or {source})"
    )
    return text.replace("{", "{{").replace("}", "}}").replace("\0", "{}")


def bugs_in(package: str, path: Path) -> Iterator[Bug]:
    """Every bug that can be planted in a file."""
    text = path.read_text()
    lines = text.splitlines()
    for node in live_nodes(ast.parse(text)):
        for kind, change in KINDS.items():
            old, new = change(node) or (None, None)
            if old is None or new is None or old.lineno != old.end_lineno:  # type: ignore[attr-defined]
                continue
            number = old.lineno  # type: ignore[attr-defined]
            after, probe = (
                planted(lines[number - 1], old, unparsed(new)),
                probed(lines[number - 1], old),
            )
            yield Bug(
                kind, package, str(path.relative_to(ROOT)), number, lines[number - 1], after, probe
            )


def is_python(bug: Bug) -> bool:
    """Whether the file with the bug has a syntax tree."""
    lines = (ROOT / bug.path).read_text().splitlines()
    lines[bug.line - 1] = bug.after
    try:
        ast.parse("\n".join(lines))
    except SyntaxError:
        return False
    return True


def draw(seed: int, count: int) -> list[Bug]:
    """``count`` bugs, packages and kinds in turn. A change of the sources replaces the bugs of the
    changed lines alone.
    """

    def rank(bug: Bug) -> str:
        return hashlib.sha256(
            f"{seed} {bug.path} {bug.before.strip()} {bug.after.strip()}".encode()
        ).hexdigest()

    neutral = {
        (row["path"], row["before"], row["after"]) for row in json.loads(NEUTRAL.read_text())
    }
    pools: dict[tuple[str, str], list[Bug]] = {}
    for package in PACKAGES:
        source = ROOT / "packages" / package / "src"
        for path in sorted(source.glob("**/*.py")):
            if (
                not path.relative_to(source).parts[1].startswith("testing")
                and path.name not in TUNING
            ):
                for bug in bugs_in(package, path):
                    pools.setdefault((package, bug.kind), []).append(bug)
    chosen: list[Bug] = []
    for pool in pools.values():
        pool[:] = [
            bug for bug in pool if (bug.path, bug.before.strip(), bug.after.strip()) not in neutral
        ]
        pool.sort(key=rank)
    # lengths without a common factor
    for package, kind in zip(itertools.cycle(PACKAGES), itertools.cycle([*KINDS, None])):
        if len(chosen) == count or not any(pools.values()):
            return chosen
        pool = pools.get((package, kind)) if kind is not None else None
        while pool:
            if is_python(bug := pool.pop()):
                chosen.append(bug)
                break
    return chosen


def copy_repository(tests: Path, root: Path) -> None:
    """A copy of the repository at ``root`` with the tests of the checkout ``tests``."""
    shutil.copytree(
        ROOT, root, ignore=shutil.ignore_patterns(".git", ".nox", "dist", "__pycache__", "site")
    )
    if tests != ROOT:
        for path in ("integration_tests", *(f"packages/{name}/tests" for name in PACKAGES)):
            shutil.rmtree(root / path)
            shutil.copytree(tests / path, root / path)
        shutil.copy(tests / "conftest.py", root / "conftest.py")


def replace_line(root: Path, bug: Bug, text: str) -> None:
    lines = (root / bug.path).read_text().splitlines(keepends=True)
    lines[bug.line - 1] = lines[bug.line - 1].replace(bug.before, text)
    (root / bug.path).write_text("".join(lines))


def pytest(root: Path, *arguments: str, timeout: int = TIMEOUT) -> subprocess.CompletedProcess[str]:
    """The tests of a copy, on its own sources."""
    paths = os.pathsep.join(
        [*(str(root / "packages" / name / "src") for name in PACKAGES), str(root)]
    )
    with tempfile.TemporaryDirectory() as store:
        environment = {
            **os.environ,
            "PYTHONPATH": paths,
            "STRATA_CACHE_DIR": store,
            "OMP_WAIT_POLICY": "passive",
        }
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
        return subprocess.run(
            command, cwd=root, env=environment, capture_output=True, text=True, timeout=timeout
        )


def failures(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]


def tests_that_reach(bugs: Sequence[Bug], tests: Path) -> dict[Bug, list[str]]:
    """The default tests that run the place of each bug, those of its package first, from one run of
    all of them.

    Each place of a copy gets a probe, which notes the running test. The tests must pass with them.
    A place that runs on import, or can't have a probe, counts as reached by every test of its
    package.
    """
    with tempfile.TemporaryDirectory() as folder:
        root, log = Path(folder) / "copy", Path(folder) / "log"
        copy_repository(tests, root)
        (root / "planted_probe.py").write_text(PROBE.format(log=str(log)))
        places = {(bug.path, bug.line): bug for bug in bugs if not bug.path.endswith(NOT_PROBED)}
        for number, bug in enumerate(places.values()):
            replace_line(root, bug, bug.probe.format(number))
        log.touch()
        done = pytest(
            root, "-n", "2", "--dist", "worksteal", "packages", "integration_tests",
            timeout=2 * TIMEOUT,  # the whole suite
        )  # fmt: skip
        if done.returncode:
            raise SystemExit("the tests fail without a bug:\n" + "\n".join(failures(done.stdout)))
        rows = [line.split(" ", 1) for line in log.read_text().splitlines()]
    numbers = {place: number for number, place in enumerate(places)}
    found: dict[Bug, list[str]] = {}
    for bug in bugs:
        own, number = f"packages/{bug.package}/tests", numbers.get((bug.path, bug.line))
        reached = {test.rpartition(" (")[0] for row, test in rows if int(row) == number}
        if "" in reached or number is None:
            reached = {own, *(test for test in reached if not test.startswith(own))}
        found[bug] = sorted(
            reached - {""}, key=lambda test, own=own: (not test.startswith(own), test)
        )
    return found


def judge(bug: Bug, reached: Sequence[str], tests: Path) -> str:
    """What found the bug, with the first line that says so, or "missed"."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "copy"
        copy_repository(tests, root)
        replace_line(root, bug, bug.after)
        command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, bug.path]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True)
        if done.returncode:
            if "error:" not in done.stdout:
                raise RuntimeError(f"pyright did not run: {done.stdout}{done.stderr}")
            return f"types: {done.stdout.partition('error:')[2].strip().splitlines()[0][:120]}"
        if not reached:
            return "missed: no test runs the line"
        ids = Path(folder) / "tests"
        ids.write_text("\n".join(reached))
        try:
            done = pytest(root, "-x", f"@{ids}")
        except subprocess.TimeoutExpired:
            return "the tests hang"
        if "ERROR: not found" in done.stdout + done.stderr or done.returncode == NO_TESTS:
            raise RuntimeError(
                f"the tests that reach {bug.path}:{bug.line} did not run: {done.stderr}"
            )
        if done.returncode == 0:
            return f"missed by {len(reached)} tests"
        return next(iter(failures(done.stdout)), f"exit code {done.returncode}")[:150]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=27)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--list", action="store_true", help="print the bugs and run nothing")
    parser.add_argument(
        "--only", type=int, action="append", help="number of a bug to plant; may be repeated"
    )
    parser.add_argument("--tests", default="", help="take the tests from this revision")
    parser.add_argument(
        "test", nargs="*", help="run these in the place of the tests that reach a bug"
    )
    options = parser.parse_args()
    bugs = [
        (k, bug)
        for k, bug in enumerate(draw(options.seed, options.count))
        if options.only is None or k in options.only
    ]
    if options.list:
        for k, bug in bugs:
            print(
                f"{k:3} {bug.kind}: {bug.path}:{bug.line}\n      {bug.before.strip()}\n      "
                f"{bug.after.strip()}"
            )
        return 0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        tests = ROOT
        if options.tests:
            tests = Path(folder)
            archive = subprocess.run(
                ["git", "archive", options.tests], cwd=ROOT, capture_output=True, check=True
            ).stdout
            subprocess.run(["tar", "x", "-C", folder], input=archive, check=True)
        reached = {} if options.test else tests_that_reach([bug for _, bug in bugs], tests)
        running = {
            pool.submit(judge, bug, reached.get(bug, options.test), tests): (k, bug)
            for k, bug in bugs
        }
        missed = 0
        for done in as_completed(running):
            k, bug = running[done]
            missed += done.result().startswith("missed")
            print(f"{k:3} {bug.kind}: {bug.path}:{bug.line}  {done.result()}", flush=True)
    print(f"{len(bugs) - missed} of {len(bugs)} found")
    return int(len(bugs) - missed < 0.95 * len(bugs))


if __name__ == "__main__":
    sys.exit(main())
