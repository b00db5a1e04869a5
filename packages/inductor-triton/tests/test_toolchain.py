"""Loading Triton."""

from __future__ import annotations

import pytest
from inductor_triton.toolchain import load_triton
from loopir import temporary_root

triton = pytest.importorskip("triton")


@pytest.mark.parametrize("directory", ["/proc/nowhere", "/dev/null/below"])
def test_cache_that_cannot_be_written_becomes_a_temporary_one(directory) -> None:
    with triton.knobs.cache.scope():
        triton.knobs.cache.dir = directory
        load_triton.__wrapped__()
        assert triton.knobs.cache.dir == str(temporary_root() / "triton")


def test_cache_that_can_be_written_is_left_alone(tmp_path) -> None:
    with triton.knobs.cache.scope():
        triton.knobs.cache.dir = str(tmp_path / "cache")
        load_triton.__wrapped__()
        assert triton.knobs.cache.dir == str(tmp_path / "cache") and (tmp_path / "cache").is_dir()
