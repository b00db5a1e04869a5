"""Generated programs have the results, effects, exceptions and order of effects of eager mode, wherever their graphs end."""

from __future__ import annotations

import os
from pathlib import Path

import bytecode_dynamo as bd
from hypothesis import given, settings

from .comparing import check_program, load
from .generated import program

EXAMPLES = 20_000 if os.environ.get("STRATA_PROFILE") == "nightly" else 500


@settings(max_examples=EXAMPLES)
@given(text=program())
def test_generated_program(tmp_path_factory, text: str) -> None:
    path = Path(tmp_path_factory.getbasetemp()) / "generated_program.py"
    path.write_text(text)
    eager, captured = load(path), load(path)
    eager.f.any_graphs = True
    bd.reset()
    with bd.config.patch(fallback="error", verify=True, recompile_limit=200):
        check_program(eager, captured, "f")
