"""Python text under construction, and text as functions."""

from __future__ import annotations

import itertools
import linecache
import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

_COUNT = itertools.count(1)


@dataclass(slots=True)
class PythonWriter:
    """Python text under construction, with its globals.

    Attributes:
        lines: the text.
        namespace: the globals of the text.
        reserved: names of nodes, which are locals; no global may have them.
    """

    lines: list[str] = field(default_factory=list)
    namespace: dict[str, Any] = field(default_factory=dict)
    reserved: set[str] = field(default_factory=set)
    _indent: int = 0

    def __call__(self, line: str = "") -> None:
        self.lines.append("    " * self._indent + line if line else "")

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        """Indents what is written within under ``header``; without a header nothing changes."""
        if header:
            self(header)
        self._indent += bool(header)
        yield
        self._indent -= bool(header)

    def within(self, guard: Any) -> AbstractContextManager[None]:
        """A block in which the context manager ``guard()`` is entered; no block for None."""
        if guard is None:
            return nullcontext()
        return self.block(f"with {self.name(guard.__name__.lstrip('_'), guard)}():")

    def name(self, stem: str, value: Any) -> str:
        """A global name for an object; the same object keeps its name."""
        stem = "".join(c if c.isalnum() else "_" for c in stem)
        name, n = stem, 0
        while name in self.reserved or (
            name in self.namespace and self.namespace[name] is not value
        ):
            n += 1
            name = f"{stem}_{n}"
        self.namespace[name] = value
        return name

    def pass_as_tuple(self, names: Sequence[str]) -> None:
        """Replaces these parameters by ``*inputs``, if the text only passes all of them on."""
        parameters = ", ".join(names)
        # a call's arguments, or a tuple of its own
        pattern = re.compile(rf"(\w?)\({re.escape(parameters)}\)")
        lines = [
            pattern.sub(lambda match: f"{match[1]}(*inputs)" if match[1] else "inputs", line)
            for line in self.lines
        ]
        other_text = "\n".join(self.lines).replace(f"({parameters})", "")
        if not {"inputs", *names} & set(re.findall(r"\w+", other_text)):
            self.lines = lines

    def load(self, name: str) -> tuple[Callable[..., Any], str]:
        """Compiles the text; returns the function of this name, and the text."""
        text = "\n".join(self.lines) + "\n"
        return load_text(text, self.namespace, name), text


def load_text(text: str, namespace: dict[str, Any], name: str) -> Callable[..., Any]:
    """Compiles a text; returns the function of this name. Tracebacks show its lines while it
    lives.
    """
    filename = f"<aotgrad {next(_COUNT)}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    exec(compile(text, filename, "exec"), namespace)
    weakref.finalize(namespace[name], linecache.cache.pop, filename, None).atexit = False
    return namespace[name]


def tuple_text(items: Iterable[str]) -> str:
    """Python text of a tuple."""
    items = list(items)
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
