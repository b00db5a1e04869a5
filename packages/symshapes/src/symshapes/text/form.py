"""``TextForm``: the name and version of a text form, and how texts of older versions are read.

The first line of a stored text names its form and version, and those of the forms inside it:
``# loopir.program 1, loopir.kernel 1``. A text without this line is of the current version.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from symshapes.errors import ParseError, VersionError

Upgrade: TypeAlias = Callable[[ast.Module], ast.Module]
_MOST_PARSES = 5
_HEADER = re.compile(r"# ([a-z_]+\.[a-z_]+ \d+(?:, [a-z_]+\.[a-z_]+ \d+)*)\n")


@contextmanager
def reading(node: ast.AST | None = None, *through: type[Exception]) -> Iterator[None]:
    """Turns whatever a reader raises on a bad text into ParseError, with the error as its cause and
    the place of ``node``; errors ``through`` are those of checkers.

    Texts come from files: SymPy, torch and Python's parser raise errors of their own on damaged
    ones, and run out of stack on deeply nested ones.
    """
    try:
        yield
    except (ParseError, *through):
        raise
    except SyntaxError as error:
        raise ParseError(error.msg, error.lineno or 0, error.offset or 0) from error
    except (RecursionError, MemoryError) as error:  # MemoryError: of the stack of Python's parser
        raise _error(node, "nested too deeply") from error
    except Exception as error:
        raise _error(node, f"malformed ({type(error).__name__}: {error})") from error


def _error(node: ast.AST | None, message: str) -> ParseError:
    return ParseError(message) if node is None else ParseError.at(node, message)


def _syntax_tree(text: str) -> ast.Module:
    """``ast.parse``, called again where it fails because other threads parse as well: CPython 3.11
    counts the recursion of all threads together, and raises SystemError where they meet.
    """
    for _ in range(_MOST_PARSES - 1):
        try:
            return ast.parse(text)
        except SystemError:
            continue
    return ast.parse(text)


def parameters(function: ast.FunctionDef) -> list[ast.arg]:
    """The parameters of a function. Raises ParseError if it has others than plain ones."""
    given = function.args
    others = (*given.posonlyargs, given.vararg, *given.kwonlyargs, given.kwarg, *given.defaults)
    for other in filter(None, others):
        raise ParseError.at(other, "expected a plain parameter")
    return given.args


@dataclass(frozen=True)
class TextForm:
    """One text form.

    Attributes:
        name: package and kind, as in ``loopir.kernel``.
        version: the current version.
        upgrades: for each older version a function that rewrites a text of that version into one
            of the next version, with the same meaning.
        parts: forms that texts of this one contain.
    """

    name: str
    version: int
    upgrades: Mapping[int, Upgrade] = field(default_factory=dict)
    parts: tuple[TextForm, ...] = ()

    def write(self, body: str) -> str:
        """``body`` with the line that states the versions."""
        stated = ", ".join(f"{form.name} {form.version}" for form in self._all())
        return f"# {stated}\n{body}"

    def parse(self, text: str) -> ast.Module:
        """The syntax tree of ``text``, rewritten to the current version.

        Raises ParseError with line and column, and VersionError for a version that this package
        can't read, and nothing else. Whoever reads the tree does so in ``reading``, too.
        """
        with reading():
            found = self._versions(text)
            tree = _syntax_tree(text)
            for form in self._all():
                for version in range(found.get(form.name, form.version), form.version):
                    tree = form.upgrades[version](tree)
            return tree

    def _all(self) -> Iterator[TextForm]:
        yield self
        for part in self.parts:
            yield from part._all()

    def _versions(self, text: str) -> dict[str, int]:
        header = _HEADER.match(text)
        if header is None:
            return {}
        stated = [entry.split() for entry in header[1].split(", ")]
        if stated[0][0] != self.name:
            raise ParseError(f"this text is a {stated[0][0]}, not a {self.name}", 1, 1)
        found = {name: int(version) for name, version in stated}
        for form in self._all():
            form._check(found.get(form.name, form.version))
        return found

    def _check(self, version: int) -> None:
        package = self.name.partition(".")[0]
        if version > self.version:
            raise VersionError(
                f"the text is of version {version} of {self.name}, and this {package} reads "
                f"versions up to {self.version}: install a newer {package}"
            )
        if any(old not in self.upgrades for old in range(version, self.version)):
            oldest = min(self.upgrades, default=self.version)
            raise VersionError(
                f"the text is of version {version} of {self.name}, and this {package} reads "
                f"versions {oldest} to {self.version}: convert it with an older {package}"
            )
