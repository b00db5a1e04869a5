"""Shared test configuration: golden files, examples of READMEs, and the Hypothesis profiles."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tools.run_page import run_page

try:
    from hypothesis import HealthCheck, settings
except ImportError:
    settings = None

if settings is not None:
    relaxed = {"deadline": None, "suppress_health_check": list(HealthCheck)}
    settings.register_profile("default", max_examples=100, derandomize=True, **relaxed)
    # of the random examples; a thorough run draws others every time
    share = float(os.environ.get("STRATA_SHARE", "1"))
    settings.register_profile("thorough", max_examples=int(5000 * share), **relaxed)
    settings.load_profile(os.environ.get("STRATA_PROFILE", "default"))

os.environ.setdefault("STRATA_VERIFY", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="rewrite golden files with what the tests print now",
    )
    parser.addoption(
        "--quick", action="store_true", help="only the first test of each module of the packages"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Slow tests run in the thorough profile, and when they are asked for by a mark."""
    chosen = items
    if os.environ.get("STRATA_PROFILE") != "thorough" and not config.getoption("markexpr"):
        chosen = [item for item in chosen if not item.get_closest_marker("slow")]
    if config.getoption("quick"):
        first: dict[Path, pytest.Item] = {}
        for item in chosen:
            if "packages" in item.path.parts:
                first.setdefault(item.path, item)
        chosen = list(first.values())
    config.hook.pytest_deselected(items=[item for item in items if item not in set(chosen)])
    items[:] = chosen


@pytest.fixture
def golden(request: pytest.FixtureRequest):
    """Compares text with ``golden/<module>/<test>.txt`` beside the test; ``--update-golden``
    rewrites it.
    """

    def check(text: str) -> None:
        path = (
            Path(request.path).parent
            / "golden"
            / Path(request.path).stem
            / f"{request.node.name}.txt"
        )
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        if not path.exists():
            pytest.fail(f"no golden file {path}; run pytest with --update-golden and review it")
        assert text == path.read_text()

    return check


@pytest.fixture
def run_readme(request: pytest.FixtureRequest, tmp_path: Path):
    """Runs the examples of the nearest README above the test, one after the other with the same
    names.
    """

    def run() -> None:
        readme = next(
            path for folder in request.path.parents if (path := folder / "README.md").exists()
        )
        run_page(readme, tmp_path)

    return run
