"""Each break id has a page, whose first program breaks for it and whose second one is captured."""

from __future__ import annotations

import re
from pathlib import Path

import bytecode_dynamo as bd
import pytest
from bytecode_dynamo.errors import BREAKS

ROOT = Path(__file__).parents[5]
PAGES = ROOT / "docs" / "errors"


def program(id_, number):
    """``f`` and ``args`` of a program on a page."""
    scope = {}
    blocks = re.findall(r"```python\n(.*?)```", (PAGES / f"{id_}.md").read_text(), re.DOTALL)
    exec(compile(blocks[number], str(PAGES / f"{id_}.md"), "exec"), scope)
    return scope["f"], scope["args"]


def test_there_is_a_page_for_every_id_and_no_other():
    assert {page.stem for page in PAGES.glob("BD*.md")} == set(BREAKS)
    navigation = (ROOT / "mkdocs.yml").read_text()
    assert all(f"errors/{id_}.md" in navigation for id_ in BREAKS)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("id_", BREAKS)
def test_first_program_causes_the_break(id_):
    f, args = program(id_, 0)
    stops = []
    with bd.config.patch(max_instructions=20_000):
        captured = bd.optimize(
            "eager", on_capture=lambda found: stops.append(found.stop and found.stop.id)
        )(f)
        try:
            captured(*args)
        except (ValueError, RuntimeError):
            assert id_ in ("BD008", "BD011")
    assert id_ in stops


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("id_", sorted(set(BREAKS) - {"BD008"}))
def test_fullgraph_names_the_line_and_the_page(id_):
    f, args = program(id_, 0)
    with bd.config.patch(max_instructions=20_000), pytest.raises(bd.exc.Unsupported) as caught:
        bd.optimize("eager", fullgraph=True)(f)(*args)
    text = str(caught.value)
    assert caught.value.id == id_
    assert text.rstrip().endswith(f"help: python -m torchstrata help {id_}")
    assert f'File "{PAGES / id_}.md", line ' in text


@pytest.mark.parametrize("id_", BREAKS)
def test_second_program_is_one_graph(id_, check):
    check(program(id_, 1)[0], lambda: program(id_, 1)[1], calls=1)


def test_every_page_named_in_a_message_is_in_the_documentation():
    named = {
        page
        for source in (ROOT / "packages").glob("*/src/**/*.py")
        for page in re.findall(r"docs/[\w/.-]+\.md(?:#[\w-]+)?", source.read_text())
    }
    navigation = (ROOT / "mkdocs.yml").read_text()
    for page in named:
        path, _, anchor = page.partition("#")
        headings = re.findall(r"^#+ (.*)$", (ROOT / path).read_text(), re.MULTILINE)
        assert path.removeprefix("docs/") in navigation, page
        assert not anchor or anchor in {re.sub(r"\W+", "-", text.lower()) for text in headings}


def test_index_of_pages_has_the_titles_of_messages():
    index = (PAGES / "index.md").read_text()
    for id_, (title, _) in BREAKS.items():
        assert f"| [{id_}]({id_}.md) | {title} |" in index
