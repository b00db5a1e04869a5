"""Damaged texts, for properties of parsers."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

DEPTH = 10_000
NESTED = (
    ("(", ")"), ("[", "]"), ("f(", ")"), ("{1: ", "}"), ("-", ""), ("not ", ""), ("s0.", ""),
    ("1 + ", ""), ("s0 // ", ""), ("2 ** ", ""), ("lambda: ", ""),
)  # fmt: skip
TOKENS = (
    "(", ")", "[", ",", ":", "=", ".", "*", "**", "-", "'", '"', "#", "\\", "\n", "    ", "\t",
    "\0", "\ud800", "9" * 5000, "1e999", "0x", "1j", "0", "-1", "99999999", "()", "[0]", "None",
    "True", "...", "*x", "**x", "x", "s0", "torch", "graph", "meta(", "size(", "f32[", "@", "f''",
)  # fmt: skip
"""Text that is inserted: the grammar's own, and what Python's parser or its numbers refuse."""


def damaged_texts(text: str) -> st.SearchStrategy[str]:
    """``text`` after one to four edits of characters, tokens and lines, some of which nest it
    deeply.
    """
    return st.lists(st.sampled_from(_EDITS), min_size=1, max_size=4).flatmap(
        lambda edits: _edited(text, edits)
    )


@st.composite
def _edited(draw: st.DrawFn, text: str, edits: list[Callable[..., str]]) -> str:
    for edit in edits:
        text = edit(draw, text)
    return text


def _places(draw: Any, text: str) -> tuple[int, int]:
    start = draw(st.integers(0, len(text)))
    return start, draw(st.integers(start, min(len(text), start + 12)))


def _delete(draw: Any, text: str) -> str:
    start, stop = _places(draw, text)
    return text[:start] + text[stop:]


def _duplicate(draw: Any, text: str) -> str:
    start, stop = _places(draw, text)
    return text[:stop] + text[start:]


def _insert(draw: Any, text: str) -> str:
    start, _ = _places(draw, text)
    return text[:start] + draw(st.sampled_from(TOKENS)) + text[start:]


def _replace(draw: Any, text: str) -> str:
    start, stop = _places(draw, text)
    return text[:start] + draw(st.sampled_from(TOKENS)) + text[stop:]


def _replace_word(draw: Any, text: str) -> str:
    words = list(re.finditer(r"\w+|[^\w\s]", text))
    if not words:
        return text
    word = draw(st.sampled_from(words))
    other = draw(st.sampled_from([*(found[0] for found in words), *TOKENS]))
    return text[: word.start()] + other + text[word.end() :]


def _nest(draw: Any, text: str) -> str:
    start, stop = _places(draw, text)
    opening, closing = draw(st.sampled_from(NESTED))
    depth = draw(st.sampled_from((1, 50, 300, DEPTH)))
    return text[:start] + opening * depth + text[start:stop] + closing * depth + text[stop:]


def _swap_lines(draw: Any, text: str) -> str:
    lines = text.splitlines(keepends=True)
    if len(lines) < 2:
        return text
    one, other = (draw(st.integers(0, len(lines) - 1)) for _ in range(2))
    lines[one], lines[other] = lines[other], lines[one]
    return "".join(lines)


def _duplicate_line(draw: Any, text: str) -> str:
    lines = text.splitlines(keepends=True) or [""]
    lines.insert(draw(st.integers(0, len(lines))), draw(st.sampled_from(lines)))
    return "".join(lines)


def _delete_line(draw: Any, text: str) -> str:
    lines = text.splitlines(keepends=True) or [""]
    del lines[draw(st.integers(0, len(lines) - 1))]
    return "".join(lines)


_EDITS = (
    _delete, _duplicate, _insert, _replace, _replace_word, _replace_word, _replace_word, _nest,
    _swap_lines, _duplicate_line, _delete_line,
)  # fmt: skip
