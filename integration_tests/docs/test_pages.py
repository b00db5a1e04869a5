"""The pages follow the code: their blocks run and print what they say, pages that a tool writes are
current, and files that a page names exist.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tools.check_alone import PACKAGES, needed
from tools.run_page import PageError, list_pages, pages, read_blocks, run_page, writer

ROOT = Path(__file__).parents[2]
FOLDERS = ("packages", "integration_tests", "tools", "benchmarks")
WRITTEN = [page for page in pages() if writer(page)]
RUN = [page for page in pages() if not writer(page) and read_blocks(page)]
ALONE = [page for page in RUN if page.parent.name == "alone" and page.stem in
         {name.replace("-", "_") for name in PACKAGES}]  # fmt: skip
NEEDS = {
    "inductor_halide": "halide",
    "inductor_triton": "triton",
    "speed-up-a-hugging-face-model": "transformers",
}
"""What a page needs besides the packages."""
BEFORE = {
    "speed-up-a-hugging-face-model": "from integration_tests.models.vision import "
    "import_torchvision; import_torchvision()"
}
"""transformers imports a torchvision that may be installed without operators."""
SCRIPT = """
import sys
from pathlib import Path
from tools.run_page import run_page
run_page(Path(sys.argv[1]), Path(sys.argv[2]))
print(*{name.partition(".")[0] for name in sys.modules})
"""


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", RUN, ids=name_of)
def test_blocks_run_and_print_what_the_page_says(page: Path, tmp_path: Path):
    if page.stem in NEEDS:
        pytest.importorskip(NEEDS[page.stem])
    settings = {
        "STRATA_CACHE_DIR": str(tmp_path / "cache"), "STRATA_VERIFY": "0",
        "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", ""))),
    }  # fmt: skip
    script = BEFORE.get(page.stem, "") + SCRIPT
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-W", "error:a graph runs eagerly", "-c", script,
         str(page), str(tmp_path)],
        capture_output=True, text=True, env=os.environ | settings,
    )  # fmt: skip
    assert not done.returncode, done.stderr
    if page in ALONE:
        declared = {
            name.replace("-", "_") for name in needed(page.stem.replace("_", "-"), "testing")
        }
        siblings = {name.replace("-", "_") for name in PACKAGES} - declared
        assert not siblings & set(done.stdout.splitlines()[-1].split())


@pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="nodes print differently")
@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_page_that_a_tool_writes_is_current(page: Path):
    command = [sys.executable, "-W", "ignore", str(ROOT / str(writer(page))), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert not done.returncode, done.stderr


def test_blocks_that_are_not_run(golden):
    """Each says why; a new one changes this list."""
    listed = [line for line in list_pages().splitlines() if line.startswith(" ")]
    golden("\n".join([*listed, ""]))


def test_every_package_has_a_page():
    assert {page.stem for page in ALONE} == {name.replace("-", "_") for name in PACKAGES}


def test_a_page_that_prints_something_else_is_found(tmp_path: Path):
    page = tmp_path / "page.md"
    text = "```python\nprint(1)\nprint(2)\n```\n\n```text\n...\n2\n```\n"
    page.write_text(text)
    run_page(page, tmp_path)
    page.write_text(text.replace("...\n2", "1"))
    with pytest.raises(AssertionError, match="says\n1\n\nbut prints"):
        run_page(page, tmp_path)


def test_commands_share_files_with_the_page(tmp_path: Path):
    page = tmp_path / "page.md"
    text = (
        '```python title="a.py"\nprint("one", 2.5, "s")\n```\n\n```console\n$ python a.py\n'
        "one ... s\n$ python a.py | tr o 0\n0ne ...\n$ true\n```\n"
    )
    page.write_text(text)
    run_page(page, tmp_path)
    page.write_text(text.replace("$ true", "$ false"))
    with pytest.raises(AssertionError, match="false failed"):
        run_page(page, tmp_path)
    page.write_text(text.replace("0ne", "one"))
    with pytest.raises(AssertionError, match="says\none"):
        run_page(page, tmp_path)


@pytest.mark.parametrize(
    "text",
    ["```text\nwords\n```\n", "```\nwords\n```\n", "Words:\n\n    x = 1\n", "- a\n\n  ```python\n"],
)
def test_a_block_that_nothing_checks_is_refused(text: str, tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(PageError):
        read_blocks(page)


def test_text_of_a_form_is_read(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text("<!-- read by ast.literal_eval -->\n\n```text\n[1, 2]\n```\n")
    run_page(page, tmp_path)
    page.write_text(page.read_text().replace("]", ""))
    with pytest.raises(SyntaxError):
        run_page(page, tmp_path)


def test_install_page_names_the_versions_that_are_tested():
    tree = ast.parse((ROOT / "noxfile.py").read_text())
    pythons, torches = (
        ast.literal_eval(step.value)
        for name in ("OTHER_PYTHONS", "TORCHES")
        for step in tree.body
        if isinstance(step, ast.Assign) and ast.unparse(step.targets[0]) == name
    )
    pairs = [("3.11", torch) for torch in torches] + [(python, torches[-1]) for python in pythons]
    rows = re.findall(r"^\| (3\.\d+) \| (\S+) \|$", (ROOT / "docs/install.md").read_text(), re.M)
    assert rows == pairs


def test_architecture_names_existing_files():
    named = re.findall(r"`([\w./-]+(?:\.py|\.c|/))`", (ROOT / "docs/architecture.md").read_text())
    files = {
        str(path.relative_to(ROOT)) for folder in FOLDERS for path in (ROOT / folder).rglob("*")
    }
    assert len(named) > 40
    assert [
        name
        for name in named
        if not any(f"/{file}".endswith(f"/{name.rstrip('/')}") for file in files)
    ] == []
