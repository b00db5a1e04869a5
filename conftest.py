"""Shared test configuration: golden files, examples of READMEs, and the Hypothesis profiles."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

try:
    from hypothesis import HealthCheck, settings
except ImportError:
    settings = None

if settings is not None:
    relaxed = {"deadline": None, "suppress_health_check": list(HealthCheck)}
    settings.register_profile("ci", max_examples=100, derandomize=True, **relaxed)
    settings.register_profile("nightly", max_examples=5000, **relaxed)
    settings.load_profile(os.environ.get("STRATA_PROFILE", "ci"))

os.environ.setdefault("STRATA_VERIFY", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite golden files with what the tests print now")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Slow tests run in the nightly profile, and when they are asked for by a mark."""
    if os.environ.get("STRATA_PROFILE") == "nightly" or config.getoption("markexpr"):
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if not item.get_closest_marker("slow")]


@pytest.fixture
def golden(request: pytest.FixtureRequest):
    """Compares text with ``golden/<module>/<test>.txt`` beside the test; ``--update-golden`` rewrites it."""

    def check(text: str) -> None:
        path = Path(request.path).parent / "golden" / Path(request.path).stem / f"{request.node.name}.txt"
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        if not path.exists():
            pytest.fail(f"no golden file {path}; run pytest with --update-golden and review it")
        assert text == path.read_text()

    return check


@pytest.fixture
def run_readme(request: pytest.FixtureRequest, tmp_path: Path):
    """Runs the examples of the nearest README above the test, one after the other with the same names."""

    def run() -> None:
        text = next(path for folder in request.path.parents if (path := folder / "README.md").exists()).read_text()
        blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        assert blocks
        names = {"__name__": "example"}
        for number, block in enumerate(blocks):
            path = tmp_path / f"example{number}.py"
            path.write_text(block)
            exec(compile(block, str(path), "exec"), names)

    return run
