"""What every package carries and says of itself."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    path.parent.name: tomllib.loads(path.read_text())["project"]
    for path in ROOT.glob("packages/*/pyproject.toml")
}


def version_of(package: str) -> str:
    text = (
        ROOT / "packages" / package / "src" / package.replace("-", "_") / "__init__.py"
    ).read_text()
    found = re.search(r'^__version__ = "(\d+\.\d+\.\d+)"$', text, re.MULTILINE)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("package", PACKAGES)
def test_license_and_changelog(package) -> None:
    folder = ROOT / "packages" / package
    assert (folder / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    assert f"\n## {version_of(package)} – " in (folder / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("package", PACKAGES)
def test_siblings_are_required_by_minor_version(package) -> None:
    siblings = [
        line
        for line in PACKAGES[package]["dependencies"]
        if re.split("[<>=;]", line)[0] in PACKAGES
    ]
    for requirement in siblings:
        major, minor, _ = version_of(requirement.partition(">=")[0]).split(".")
        assert requirement.partition(">=")[2] == f"{major}.{minor},<{major}.{int(minor) + 1}", (
            requirement
        )


def test_all_packages_are_for_the_same_interpreters() -> None:
    assert {project["requires-python"] for project in PACKAGES.values()} == {">=3.11,<3.15"}
    assert (
        len(
            {
                tuple(name for name in project["classifiers"] if ":: 3." in name)
                for project in PACKAGES.values()
            }
        )
        == 1
    )
