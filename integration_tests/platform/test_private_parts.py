"""A torch without one of its private parts that the packages use: programs run as in eager mode, or
say what is missing.
"""

from __future__ import annotations

import ast
import json
import os
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from symshapes.private_parts import CUDA_PARTS, PARTS

ROOT = Path(__file__).resolve().parents[2]
LISTED = {
    f"{path}.{name}"
    for parts in (PARTS, CUDA_PARTS)
    for path, names in parts.items()
    for name in names.split()
}
SAMPLE = [
    "torch._C._FunctionBase",
    "torch._C.DispatchKey.Autograd",
    "torch._C._log_api_usage_once",
    "torch._sync",
]

NEEDED_BY_TORCH = {"torch._ops.OpOverload", "torch.overrides._pop_mode"}
"""Without them torch itself can't define operators or leave a mode."""

PROGRAM = """
import copy, json, os, pkgutil, sys, warnings
import torch

def run(part):
    path, _, name = part.rpartition(".")
    delattr(pkgutil.resolve_name(path), name)
    import torchstrata

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 4))
    reference = copy.deepcopy(model)

    def step(model, x):
        y = model(x).sin()
        y[0] = 0.5
        return y.logsumexp(1).mean(), y.flip(0)[1:]

    compiled = torchstrata.compile(step)
    for rows in (5, 7):
        x = torch.randn(rows, 8)
        found, expected = compiled(model, x), step(reference, x)
        found[0].backward()
        expected[0].backward()
        torch.testing.assert_close(found, expected)
        for kind in ("parameters", "buffers"):
            for mine, other in zip(getattr(model, kind)(), getattr(reference, kind)()):
                torch.testing.assert_close([mine, mine.grad], [other, other.grad])

for part in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                run(part)
                outcome = ""
            except BaseException as error:
                outcome = f"{type(error).__name__}: {error}"
        says = any(part in str(warning.message) for warning in caught)
        os.write(1, json.dumps([part, outcome, says]).encode() + b"\\n")
        os._exit(0)
    if os.waitpid(child, 0)[1] != 0:
        os.write(1, json.dumps([part, "died", False]).encode() + b"\\n")
"""


def used_parts() -> Iterator[str]:
    """The private parts of torch that the sources of the packages mention, with their paths."""
    for file in sorted(ROOT.glob("packages/*/src/**/*.py")):
        tree = ast.parse(file.read_text())
        names = {}
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.ImportFrom)
                and (node.module or "").partition(".")[0] == "torch"
            ):
                names |= {
                    item.asname or item.name: f"{node.module}.{item.name}" for item in node.names
                }
        yield from names.values()
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Attribute)
                and (path := ast.unparse(node)).replace(".", "").isidentifier()
            ):
                head, _, rest = path.partition(".")
                yield f"{names.get(head, head)}.{rest}"


def is_private(path: str) -> bool:
    first, *parts = path.split(".")
    return (
        first == "torch"
        and parts[0] != "ops"
        and any(part.startswith("_") and part[:2] != "__" for part in parts)
    )


def contains(outer: str, inner: str) -> bool:
    return inner == outer or inner.startswith(outer + ".")


def test_the_list_is_complete() -> None:
    used = {path for path in used_parts() if is_private(path)}
    assert not {
        path
        for path in used
        if not any(contains(part, path) or contains(path, part) for part in LISTED)
    }
    assert not {part for part in LISTED if not any(contains(part, path) for path in used)}


def removable() -> list[str]:
    """Those that can be deleted: others are inherited, or belong to types that can't be changed."""
    found = []
    for part in sorted(LISTED - NEEDED_BY_TORCH):
        path, _, name = part.rpartition(".")
        with suppress(AttributeError, ImportError):
            if name in vars(pkgutil.resolve_name(path)):
                found.append(part)
    return found


def check(parts: list[str]) -> None:
    """Without each part, results are eager's and a warning names it, or one error does, which torch
    itself may run into.
    """
    command = [sys.executable, "-c", PROGRAM, *parts]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(outcomes) == len(parts), done.stderr
    assert not [
        (part, error)
        for part, error, warned in outcomes
        if not warned or (error and part not in error)
    ]


def test_some_parts_are_missing() -> None:
    check(SAMPLE)


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("STRATA_PROFILE") != "thorough", reason="minutes")
def test_any_part_is_missing() -> None:
    check(removable())
