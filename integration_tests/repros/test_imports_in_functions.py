"""Modules that a compiled function imports for the first time."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torchstrata

FILES = {
    "__init__.py": "",
    "sub.py": "import torch\nTABLE = torch.ones(2)\ndef add(x): return x + TABLE\n",
    "broken.py": "raise RuntimeError('no device')\n",
    "other.py": "import torch\nSTATE = []\n",
    "user.py": """
import sys
COUNT = []

def relative(x):
    from . import sub
    return sub.add(x)

def whole(x):
    import fresh_package.sub as sub
    return sub.add(x)

def name(x):
    from fresh_package.sub import add
    return add(x) * 2

def optional(x):
    try:
        import fresh_package.missing
    except ImportError as error:
        return x * len(str(error))
    return x

def missing_name(x):
    try:
        from . import nothing
    except ImportError:
        return x - 1
    return x

def broken(x):
    try:
        from . import broken
    except RuntimeError:
        return x * 3
    return x

def after_change(x):
    COUNT.append(1)
    from . import other
    return x + len(COUNT) + len(other.STATE)
""",
}


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    folder = tmp_path / "fresh_package"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    import fresh_package.user

    yield fresh_package.user
    for name in [name for name in sys.modules if name.partition(".")[0] == "fresh_package"]:
        del sys.modules[name]


@pytest.mark.parametrize("name", ["relative", "whole", "name", "optional", "missing_name"])
def test_one_graph(user: ModuleType, name: str) -> None:
    function, x = getattr(user, name), torch.randn(2)
    compiled = torchstrata.compile(function, fullgraph=True)
    found = compiled(x)
    torch.testing.assert_close(found, function(x))
    torch.testing.assert_close(compiled(x + 1), function(x + 1))


def test_a_module_has_real_tensors(user: ModuleType) -> None:
    torchstrata.compile(user.relative, fullgraph=True)(torch.ones(2))
    assert type(sys.modules["fresh_package.sub"].TABLE) is torch.Tensor


@pytest.mark.parametrize("name", ["broken", "after_change"])
def test_a_break_is_as_in_eager_mode(user: ModuleType, name: str) -> None:
    function, x = getattr(user, name), torch.randn(2)
    compiled = torchstrata.compile(function)
    for _ in range(2):
        before = len(user.COUNT)
        found = compiled(x)
        del user.COUNT[before:]
        torch.testing.assert_close(found, function(x))
        del user.COUNT[before:]
