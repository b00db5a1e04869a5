"""Building the C extension, and what is said when it cannot be built."""

from __future__ import annotations

import importlib.util
import sys

import pytest
from bytecode_dynamo import build


def test_built_module_can_be_imported(tmp_path):
    target = build.build(tmp_path / build.extension_name())
    spec = importlib.util.spec_from_file_location("_hook", target)
    assert spec is not None
    assert importlib.util.module_from_spec(spec).Region is not None


def test_missing_compiler_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(build.BuildError, match="no-such-compiler") as caught:
        build.build(tmp_path / "x.so")
    assert "apt install gcc" in str(caught.value)
    assert sys.executable in str(caught.value)


def test_compiler_error_shows_the_command(monkeypatch, tmp_path):
    monkeypatch.setenv("CC", "false")
    with pytest.raises(build.BuildError, match="exit status 1") as caught:
        build.build(tmp_path / "x.so")
    assert "false" in str(caught.value)
    assert not list(tmp_path.iterdir())
