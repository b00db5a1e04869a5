"""The smallest program that still differs: statements are removed while it does."""

from __future__ import annotations

import ast
import copy
import os
import pickle
import re
from collections.abc import Callable, Iterator

from integration_tests.programs.generate import generate
from integration_tests.programs.run import compare


def shrink_seed(seed: int, backend: str | None) -> str:
    """A seed's program, shrunk, with its differences."""
    text = generate(seed)
    first = isolated(text, backend)
    if not first:
        return f"# seed {seed} does not differ"
    wanted = kind_of(first)

    def differs(candidate: str) -> bool:
        return kind_of(isolated(candidate, backend)) == wanted

    text = shrink(text, differs)
    return "\n".join(
        [text, *(f"# {line}" for found in isolated(text, backend) for line in found.splitlines())]
    )


def isolated(text: str, backend: str | None) -> list[str]:
    """The differences of a program, run in a process of its own."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        with os.fdopen(write, "wb") as pipe:
            pickle.dump(attempt(text, backend), pipe)
            pipe.flush()
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    return pickle.loads(data) if data else ["crash"]


def attempt(text: str, backend: str | None) -> list[str]:
    try:
        return compare(text, backend)
    except BaseException as error:
        return [f"{type(error).__name__}: {error}"]


def kind_of(found: list[str]) -> str:
    """What kind of difference it is, without names and numbers."""
    if not found:
        return ""
    head = re.sub(r"^step \d+: ", "", found[0])
    raised = re.findall(r"raised \w+", head)
    if raised:
        return " ".join(raised)
    words = re.findall(
        r"[a-zA-Z]+",
        head.split(":", 1)[0] if "fallbacks" not in head else re.sub(r"[\d_]", "", head[:160]),
    )
    return words[0] if words else head


def shrink(text: str, differs: Callable[[str], bool]) -> str:
    """Removes statements, and replaces compound ones by their bodies, until nothing more can go."""
    size = 16
    while True:
        tree = ast.parse(text)
        changed = False
        for candidate in candidates(tree, size):
            smaller = ast.unparse(candidate)
            if len(smaller) < len(text) and differs(smaller):
                text, changed = smaller, True
                break
        if not changed:
            if size == 1:
                return text
            size //= 2


def bodies(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody", "handlers"):
            if isinstance(getattr(node, name, None), list) and getattr(node, name):
                yield node, name


def candidates(tree: ast.Module, size: int) -> Iterator[ast.Module]:
    """Trees with ``size`` adjacent statements less, or with a statement's body in its place."""
    for index, (node, name) in enumerate(bodies(tree)):
        count = len(getattr(node, name))
        for start in reversed(range(0, count, size)):
            if count == 1 and name == "body" and isinstance(getattr(node, name)[0], ast.Pass):
                continue
            if size > 1 and count - start < 2:
                continue
            for replacement in replacements(getattr(node, name)[start], size):
                other = copy.deepcopy(tree)
                target, field = list(bodies(other))[index]
                items = getattr(target, field)
                items[start : start + size] = replacement
                if not items and field in ("body",) and not isinstance(target, ast.Module):
                    items.append(ast.Pass())
                yield ast.fix_missing_locations(other)


def replacements(statement: ast.stmt, size: int) -> Iterator[list[ast.stmt]]:
    """What may stand in a statement's place."""
    yield []
    if size > 1:
        return
    for name in ("body", "orelse", "finalbody"):
        inner = getattr(statement, name, None)
        if (
            isinstance(inner, list)
            and inner
            and not isinstance(statement, (ast.FunctionDef, ast.ClassDef))
        ):
            yield inner
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        for part in ast.walk(statement.value):
            if isinstance(part, ast.Name) and part is not statement.value:
                yield [ast.Assign(statement.targets, part)]
    if isinstance(statement, ast.Return) and isinstance(statement.value, (ast.Tuple, ast.Dict)):
        for part in ast.walk(statement.value):
            if isinstance(part, ast.Name):
                yield [ast.Return(part)]
