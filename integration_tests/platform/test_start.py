"""What importing the packages loads, and that names load what they need, whatever comes first."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import pkgutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from symshapes.lazy import lazy_names

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = sorted(path.parent.name for path in ROOT.glob("packages/*/src/*/__init__.py"))
ROOMS = ["inductor_cpp.building", "inductor_cpp.kernels", "loopir.host", "loopir.ir"]
HEAVY = ("sympy", "mpmath", "triton", "networkx", "jinja2", "rich", "halide")
LOADING = """
    aotgrad.compiling.compiled_cache aotgrad.operators aotgrad.running.autograd_function
    aotgrad.running.batched aotgrad.running.fallback aotgrad.running.prologue
    aotgrad.running.python_text aotgrad.running.retain_graph aotgrad.running.text_functions
    aotgrad.running.writeback_protocol aotgrad.graphs.donation aotgrad.tracing.autograd_history
    aotgrad.tracing.memory_overlap aotgrad.tracing.tangent_layout inductor_cpp.building.linked_run
    inductor_cpp.building.toolchain inductor_cpp.generator inductor_cpp.operators
    inductor_cpp.running.contraction loopir.backend loopir.cache.bundle loopir.cache.cache_key
    loopir.cache.program_cache loopir.cache.store loopir.cache.stored_program loopir.errors
    loopir.host.generator_calls loopir.host.host_program loopir.ir.host_functions primops.prims
    symshapes.fake.wrapper symshapes.text.form symshapes.text.names symshapes.text.values
    symshapes.values torchstrata.artifacts torchstrata.artifacts.loading torchstrata.config
    torchstrata.counters torchstrata.errors torchstrata.extensions torchstrata.generators
""".split()
"""The modules that load a compiled program and run it."""


def run(program: str, *arguments: str) -> None:
    """Runs a program in a fresh process, which must succeed."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, *arguments], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def not_loaded(names: tuple[str, ...]) -> str:
    return f"import sys\nfound = {set(names)} & {{*sys.modules}}\nassert not found, found"


def test_importing_the_stack_loads_no_compiler() -> None:
    ours = ("aotgrad", "inductor_cpp", "inductor_triton", "bytecode_dynamo.api", "primops.prims")
    run(f"import torch\nimport torchstrata\n{not_loaded(HEAVY + ours)}")


def test_importing_all_roots_loads_no_compiler() -> None:
    run(f"import {', '.join(PACKAGES)}\n{not_loaded(HEAVY)}")


def test_programs_are_loaded_without_sympy() -> None:
    run(f"""
import importlib, sys
for module in {LOADING}:
    importlib.import_module(module)
    found = {set(HEAVY)} & {{*sys.modules}}
    assert not found, (module, found)
""")


@pytest.mark.parametrize("package", [*PACKAGES, *ROOMS])
def test_all_names_are_there(package) -> None:
    module = importlib.import_module(package)
    assert type(module).__name__ == "LazyPackage"
    names = set(module.__all__)
    assert names <= {*dir(module)}
    assert len(names) == len(module.__all__)
    scope: dict[str, object] = {}
    exec(f"from {package} import *", scope)
    assert {name: getattr(module, name) for name in names}.items() <= scope.items()
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'zork'"):
        _ = module.zork


SAME = {
    package: [
        name
        for name in importlib.import_module(package).__all__
        if importlib.util.find_spec(f"{package}.{name}") and name not in ("compiler", "prims")
    ]
    for package in PACKAGES
}
"""Public names that are names of modules, too; two are these modules."""


def test_there_are_names_of_modules() -> None:
    assert {"config", "counters"} <= {*SAME["torchstrata"]}
    assert {"config", "counters", "explain", "export"} <= {*SAME["bytecode_dynamo"]}
    assert "schedule" in SAME["loopir"] and "evaluate" in SAME["primops"]


@pytest.mark.parametrize("package", [package for package, names in SAME.items() if names])
@pytest.mark.parametrize("modules_first", [True, False])
def test_a_name_is_not_hidden_by_a_module(package, modules_first) -> None:
    run(f"""
import importlib, types
package = importlib.import_module("{package}")
modules, values = dict(), dict()
for load_modules in {(modules_first, not modules_first)}:
    for name in {SAME[package]}:
        if load_modules:
            modules[name] = importlib.import_module("{package}." + name)
        else:
            values[name] = getattr(package, name)
for name, value in values.items():
    assert isinstance(modules[name], types.ModuleType)
    assert not isinstance(value, types.ModuleType)
    assert value is getattr(package, name)
    scope = dict()
    exec("from {package} import " + name, scope)
    assert scope[name] is value
""")


def test_names_can_be_used_first_in_a_captured_function() -> None:
    run("""
import torch, torchstrata

def f(x):
    y = x + 1
    torchstrata.graph_break()
    return y * 2 if torchstrata.is_compiling() else y

compiled = torchstrata.compile(f, backend="eager")
assert compiled(torch.ones(2)).tolist() == [4, 4]
assert torchstrata.counters["graph_breaks"] == 1
""")


def test_primops_has_the_same_module() -> None:
    """``primops`` depends on torch alone, so it can't take the module of ``symshapes``."""
    one, other = (
        (ROOT / f"packages/{name}/src/{name}/lazy.py").read_text()
        for name in ("symshapes", "primops")
    )
    assert one == other


def make_package(tmp_path, monkeypatch, text: str) -> ModuleType:
    folder = tmp_path / "lazy_sample"
    folder.mkdir()
    (folder / "__init__.py").write_text(text)
    (folder / "part.py").write_text("def part():\n    return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("lazy_sample", "lazy_sample.part"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("lazy_sample")


SAMPLE = """
from typing import TYPE_CHECKING
from symshapes.lazy import lazy_names
{before}
if TYPE_CHECKING:
    from .part import part
    from .part import part as renamed
__all__ = ["part", "renamed"]
__getattr__, __dir__ = lazy_names(__name__)
"""


@pytest.mark.parametrize("before", ["", "from . import part as early"])
def test_a_root_may_load_a_module_itself(tmp_path, monkeypatch, before) -> None:
    module = make_package(tmp_path, monkeypatch, SAMPLE.format(before=before))
    assert module.part() == module.renamed() == 1
    module.part = None  # tests replace names
    assert module.part is None


def test_a_package_needs_its_source(monkeypatch) -> None:
    spec = importlib.machinery.ModuleSpec("no_source", None)
    module = ModuleType("no_source")
    module.__spec__ = spec
    monkeypatch.setitem(sys.modules, "no_source", module)
    with pytest.raises(ImportError, match="no_source needs the source"):
        lazy_names("no_source")


def test_public_modules_stay_modules() -> None:
    primops = importlib.import_module("primops")
    assert primops.prims is sys.modules["primops.prims"]
    assert pkgutil.resolve_name("bytecode_dynamo.exc") is sys.modules["bytecode_dynamo.errors"]
