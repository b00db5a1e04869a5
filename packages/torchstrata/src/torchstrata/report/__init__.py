"""Reports: what a trace directory says, as a page and as text. Only the directory is read."""

from typing import TYPE_CHECKING

from symshapes.lazy import lazy_names

if TYPE_CHECKING:
    from .chrome import chrome_trace
    from .model import Report
    from .page import render_page
    from .reader import read_report
    from .terminal import line_text, summary_text

__all__ = [
    "Report", "chrome_trace", "line_text", "read_report", "render_page", "summary_text",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(__name__)
