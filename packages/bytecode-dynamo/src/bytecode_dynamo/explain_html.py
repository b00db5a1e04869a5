"""HTML for notebooks: small tables and texts that open."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

_STYLE = (
    ".bd-report{font:13px/1.5 system-ui,sans-serif;max-width:1000px}"
    ".bd-report table{border-collapse:collapse;margin:4px 0 10px}"
    ".bd-report th,.bd-report td{text-align:left;vertical-align:top;padding:3px 12px 3px 0;"
    "border-bottom:1px solid #8883;white-space:pre-wrap}"
    ".bd-report pre{max-height:420px;overflow:auto;padding:8px;border:1px solid #8883;"
    "border-radius:6px;font-size:12px}"
    ".bd-report summary{cursor:pointer;padding:2px 0}"
)


def page(title: str, parts: Iterable[str]) -> str:
    """A title with what follows."""
    body = "".join(parts)
    return f'<div class="bd-report"><style>{_STYLE}</style><b>{escape(title)}</b>{body}</div>'


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of texts; empty without rows."""
    if not rows:
        return ""
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>" for row in rows
    )
    return f"<div>{escape(title)}</div><table><tr>{head}</tr>{body}</table>"


def details(title: str, text: str) -> str:
    """A text that opens at a click."""
    return f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>"
