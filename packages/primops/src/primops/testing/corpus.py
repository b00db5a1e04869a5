"""The corpus: prim graphs as text, each with inputs and the results that they have.

A file is never changed: what it means holds for every later op set. ``python -m primops.testing
corpus`` checks all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from symshapes.testing.report import Report
from symshapes.testing.stored import check_stored, read_cases

from primops.evaluate import evaluate
from primops.text import format_graph, parse_graph

FOLDER = Path(__file__).with_name("corpus")


def check_corpus(strict: bool = True) -> Report:
    """All files of the corpus: read, checked, evaluated and printed."""
    report = Report("corpus", "primops", "files")
    check_stored(report, "graphs", read_cases(FOLDER), parse_graph, format_graph, _run)
    if strict:
        report.raise_if_wrong()
    return report


def _run(gm: torch.fx.GraphModule, given: Sequence[Any]) -> Sequence[Any]:
    return evaluate(gm, [x.clone() if isinstance(x, torch.Tensor) else x for x in given])
