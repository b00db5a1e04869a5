"""loopir's conformance kit on the best instruction set (the other tests cover the others)."""

from __future__ import annotations

from inductor_cpp import CppCodeGenerator
from loopir.testing import check_code_generator


def test_generator_conforms(store):
    assert check_code_generator(CppCodeGenerator(), store).passed > 400
