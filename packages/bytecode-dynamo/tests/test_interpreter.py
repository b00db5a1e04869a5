"""Which interpreters are refused, and how."""

from __future__ import annotations

import pytest
from bytecode_dynamo.interpreter import refusal


@pytest.mark.parametrize("version", [(3, 11), (3, 12), (3, 13), (3, 14)])
def test_supported_interpreters(version) -> None:
    assert refusal("CPython", version, has_gil=True) is None


@pytest.mark.parametrize(
    ("implementation", "version"), [("CPython", (3, 15)), ("CPython", (3, 10)), ("PyPy", (3, 11))]
)
def test_unknown_interpreters_are_refused_in_a_sentence(implementation, version) -> None:
    text = refusal(implementation, version, has_gil=True)
    assert (
        text == f"bytecode_dynamo captures on CPython 3.11 to 3.14, not on {implementation} "
        f"{version[0]}.{version[1]}."
    )


def test_free_threaded_build_is_refused() -> None:
    assert "free-threaded" in (refusal("CPython", (3, 14), has_gil=False) or "")
