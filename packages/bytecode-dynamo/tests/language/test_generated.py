"""Generated programs have the results, effects, exceptions and order of effects of eager mode,
wherever their graphs end.
"""

from __future__ import annotations

import os

from bytecode_dynamo.testing import check_source
from bytecode_dynamo.testing.strategies import arguments, programs
from hypothesis import given, settings

SHARE = float(os.environ.get("STRATA_SHARE", "1"))
EXAMPLES = int(20_000 * SHARE) if os.environ.get("STRATA_PROFILE") == "thorough" else 250


@settings(max_examples=EXAMPLES)
@given(text=programs())
def test_generated_program(text: str) -> None:
    check_source(text, arguments)
