"""The static import check finds every spelling."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SPEC = importlib.util.spec_from_file_location(
    "check_imports", Path(__file__).parents[2] / "tools" / "check_imports.py"
)
check_imports = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(check_imports)


@pytest.mark.parametrize(
    "source",
    [
        "import torch._dynamo",
        "from torch import _inductor",
        "def f():\n    from torch.fx.experimental.proxy_tensor import make_fx",
        "import importlib\nimportlib.import_module('torch._decomp')",
        "__import__('torch._refs')",
        "import torch\ntorch._dynamo.reset()",
        "import torch\ng = torch.compile(f)",
        "from torch.export import export",
    ],
)
def test_violation_is_found(tmp_path, source) -> None:
    path = tmp_path / "module.py"
    path.write_text(source)
    assert check_imports.violations(path)


def test_docstrings_may_name_the_incumbent(tmp_path) -> None:
    path = tmp_path / "module.py"
    path.write_text('"""Unlike torch._dynamo, this is small."""\n')
    assert not check_imports.violations(path)
