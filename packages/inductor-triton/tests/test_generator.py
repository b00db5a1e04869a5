"""The code generator's public face: building, interpreting, and what it says where something is
missing.
"""

from __future__ import annotations

import subprocess
import sys

import inductor_triton
import pytest
import torch
from inductor_triton import TritonCodeGenerator, compile_ptx, generate_source, toolchain
from inductor_triton.launching import launch
from loopir import ArtifactStore, BuildError, KernelSource, parse_kernel

TEXT = """
@kernel(device='cuda')
def double(in0: In('float32', 100), out: Out('float32', 100)):
    for i in range(100):
        a = load(in0, [i], 'float32')
        b = add(a, a)
        store(out, [i], b)
"""


def test_interpreted_build(tmp_path):
    pytest.importorskip("triton")
    generator = TritonCodeGenerator(device="cpu", interpret=True)
    (launch,) = generator.build([generator.generate(parse_kernel(TEXT))], ArtifactStore(tmp_path))
    x, y = torch.rand(100), torch.zeros(100)
    launch(x, y)
    assert torch.equal(y, x + x)


def test_the_interpreter_leaves_triton_as_it_was(tmp_path):
    triton = pytest.importorskip("triton")
    before = triton.language.reduce, triton.language.range
    test_interpreted_build(tmp_path)
    assert (triton.language.reduce, triton.language.range) == before
    assert ".target sm_90" in compile_ptx(generate_source(parse_kernel(TEXT)))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_no_device_is_a_clear_error(tmp_path):
    generator = TritonCodeGenerator()
    with pytest.raises(BuildError, match=r"no CUDA device .*interpret=True"):
        generator.build([generator.generate(parse_kernel(TEXT))], ArtifactStore(tmp_path))


@pytest.fixture
def without_triton(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    toolchain.load_triton.cache_clear()
    yield
    toolchain.load_triton.cache_clear()


def test_no_triton_is_a_clear_error(tmp_path, without_triton):
    generator = TritonCodeGenerator(device="cpu", interpret=True)
    source = generator.generate(parse_kernel(TEXT))
    with pytest.raises(BuildError, match="pip install triton"):
        generator.build([source], ArtifactStore(tmp_path))
    with pytest.raises(BuildError, match="pip install triton"):
        compile_ptx(source)


def test_an_old_triton_is_a_clear_error(monkeypatch):
    from types import ModuleType

    old = ModuleType("triton")
    old.__version__ = "3.2.0"
    monkeypatch.setitem(sys.modules, "triton", old)
    toolchain.load_triton.cache_clear()
    with pytest.raises(BuildError, match="too old"):
        toolchain.load_triton()
    toolchain.load_triton.cache_clear()


def test_an_old_device_is_a_clear_error(tmp_path, monkeypatch):
    for name, value in {
        "is_available": True,
        "current_device": 0,
        "get_device_capability": (7, 0),
        "get_device_name": "V",
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    launch.capability_of.cache_clear()
    generator = TritonCodeGenerator()
    with pytest.raises(
        BuildError, match=r"V has compute capability 7\.0; kernels need 8\.0 or newer"
    ):
        generator.build([generator.generate(parse_kernel(TEXT))], ArtifactStore(tmp_path))


def test_importing_and_generating_need_neither_triton_nor_banned_modules():
    code = f"""
import sys
sys.modules["triton"] = None
import inductor_triton
from loopir import parse_kernel
inductor_triton.generate_source(parse_kernel({TEXT!r}))
banned = [name for name in sys.modules if name.startswith(("torch._dynamo", "torch._inductor"))]
assert not banned, banned
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_foreign_source_is_refused(tmp_path):
    source = KernelSource(parse_kernel(TEXT), "x = 1")
    with pytest.raises(TypeError, match="not a source of inductor_triton"):
        TritonCodeGenerator(interpret=True).build([source], ArtifactStore(tmp_path))


def test_public_names_exist():
    assert all(hasattr(inductor_triton, name) for name in inductor_triton.__all__)
