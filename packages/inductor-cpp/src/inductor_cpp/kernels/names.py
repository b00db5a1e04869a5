"""Identifiers: those of a kernel, kept apart from the runtime's and the language's."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

RUNTIME_FILES = (
    "vector.h convert.h memory.h numeric.h math.h reduce.h random.h tile.h parallel.h".split()
)
_KEYWORDS = (
    "alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl "
    "concept const constexpr continue "
    "decltype default delete do double dynamic_cast else enum explicit export extern false float "
    "for friend goto if inline int "
    "long mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected "
    "public register return short "
    "signed sizeof static struct switch template this throw true try typedef typeid typename union "
    "unsigned using virtual void "
    "volatile wchar_t while xor xor_eq"
)
_LOCAL = "first last unit rest shared block share row_block W STEP begin end top bottom main"


@cache
def runtime_text() -> str:
    """The prefix of every translation unit: vectors, memory access, arithmetic, reductions,
    threads.
    """
    directory = Path(__file__).parents[1] / "runtime"
    return "".join((directory / name).read_text() for name in RUNTIME_FILES)


@cache
def reserved_names() -> frozenset[str]:
    """Identifiers that a kernel's own names must not hide."""
    return frozenset(
        re.findall(r"[A-Za-z_]\w*", re.sub(r'"[^"]*"', "", runtime_text()))
    ) | frozenset(f"{_KEYWORDS} {_LOCAL}".split())


def identifier(name: str) -> str:
    """``name``, changed when it would hide something; distinct names stay distinct (kernels' names
    have no trailing ``_``).
    """
    clean = re.sub(r"\W", "_", name)
    return f"{clean}_" if clean in reserved_names() else clean


def sums_of(buffer: str) -> str:
    """The name of what a thread's rows add to ``buffer``."""
    return f"{identifier(buffer)}_sums"
