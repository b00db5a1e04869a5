"""loopir's conformance kit on each instruction set."""

from __future__ import annotations

from loopir.testing import check_code_generator


def test_generator_conforms(any_isa, store):
    assert check_code_generator(any_isa, store) > 400
