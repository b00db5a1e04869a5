"""Each error id in the sources has a page in the package, whose programs do what it says.

The pages of graph breaks are run by bytecode_dynamo's test_error_pages.
"""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torchstrata
from torchstrata.__main__ import main
from torchstrata.error_pages import list_ids, read_page

ROOT = Path(__file__).parents[3]
ID = re.compile(r"\b(?:AG|BD|LI|PR)\d{3}\b")
NEVER_SEEN = ("AG001", "AG002", "LI006")
"""Defects: no program is known to cause them."""
RUN_HERE = [id for id in list_ids() if not id.startswith("BD") and id not in NEVER_SEEN]


def blocks(id: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", read_page(id), re.DOTALL)


def run(id: str, number: int) -> None:
    scope: dict[str, Any] = {}
    exec(compile(blocks(id)[number], f"{id}.md", "exec"), scope)
    scope["example"]()


def test_every_id_in_the_sources_has_a_page_and_no_other() -> None:
    named = {
        id
        for source in (ROOT / "packages").glob("*/src/**/*.py")
        for id in ID.findall(source.read_text())
    }
    assert named == {*list_ids()}


def test_pages_are_in_the_navigation_and_the_index() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text()
    index = (ROOT / "docs" / "errors" / "index.md").read_text()
    for id in list_ids():
        title, _, rest = read_page(id).partition("\n")
        assert f"errors/{id}.md" in navigation
        assert f"| [{id}]({id}.md) | {title.removeprefix(f'# {id}: ')} |" in index
        assert "## What to do" in rest
        assert len(blocks(id)) == (0 if id in NEVER_SEEN else 2)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("id", RUN_HERE)
def test_first_program_raises_the_error(id: str) -> None:
    torchstrata.reset()
    with pytest.raises(Exception) as caught:
        run(id, 0)
    error: BaseException | None = caught.value
    messages = []
    while error is not None:
        messages.append(str(error))
        error = error.__cause__
    assert any(f"help: python -m torchstrata help {id}" in message for message in messages)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("id", RUN_HERE)
def test_second_program_runs_without_falling_back(id: str) -> None:
    torchstrata.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error", torchstrata.FallbackWarning)
        run(id, 1)
    assert torchstrata.counters["fallbacks"] == 0


def test_command(capsys) -> None:
    assert main(["help", "bd003"]) == 0
    assert capsys.readouterr().out.startswith("# BD003: input or output\n")
    assert main(["help", "BD03"]) == 1
    assert "no error is called 'BD03'; did you mean 'BD0" in capsys.readouterr().out
    assert main(["help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[0] for line in lines] == list_ids()
