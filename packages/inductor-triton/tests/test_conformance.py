"""loopir's conformance kit, through the interpreter."""

from __future__ import annotations

import pytest
from inductor_triton import TritonCodeGenerator
from loopir.testing import check_code_generator


def test_conformance(tmp_path):
    pytest.importorskip("triton")
    assert check_code_generator(TritonCodeGenerator(device="cpu", interpret=True)) > 0
