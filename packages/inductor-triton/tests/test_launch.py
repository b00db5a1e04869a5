"""The launch path without a device: which variant, how many programs, which arguments; and the
store.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from inductor_triton import Binary, Launcher, Variant, generate_source, launch_spec
from inductor_triton.launching import launch as launch_module
from inductor_triton.launching.compile import (
    _parsed_again,
    compile_all,
    load_or_compile,
    usual_variant,
    variant_key,
)
from loopir import ArtifactStore, BuildError, parse_kernel

TEXT = """
@kernel(device='cuda')
def scale(in0: In('float32', 8*s0), out: Out('float32', 8*s0), s0: Size(hint=32)):
    for i in range(8*s0):
        a = load(in0, [i], 'float32')
        b = add(a, a)
        store(out, [i], b)
"""


class RecordedFunction:
    def __init__(self, binary: Binary, device: int) -> None:
        self.binary = binary


@pytest.fixture
def launcher(tmp_path, monkeypatch):
    """A launcher whose compilations are recorded in ``launcher.compiled``."""
    compiled = []

    def compile_stub(source, variant, capability, store):
        compiled.append(variant)
        return Binary("scale", b"", 0, 4)

    monkeypatch.setattr(launch_module, "load_or_compile", compile_stub)
    monkeypatch.setattr(launch_module, "capability_of", lambda device: 90)
    made = Launcher(
        generate_source(parse_kernel(TEXT)), ArtifactStore(tmp_path), loader=RecordedFunction
    )
    made.compiled = compiled
    return made


def test_grid_and_arguments(launcher):
    a, b = torch.zeros(8 * 100), torch.zeros(8 * 100)
    launch = launcher.prepare((a, b, 100), 0)
    block = launcher.spec.config.x
    assert launch.programs == -(-800 // block)
    assert launch.arguments == (a.data_ptr(), b.data_ptr(), 100)


def test_nothing_is_launched_for_no_points(launcher):
    assert launcher.prepare((torch.zeros(0), torch.zeros(0), 0), 0) is None
    assert launcher.compiled == []


def test_variants_follow_alignment_and_divisibility(launcher):
    base = torch.zeros(1000)
    aligned, shifted = base[:800], base[1:801]
    launcher.prepare((aligned, aligned, 100), 0)
    launcher.prepare((aligned, aligned, 100), 0)
    launcher.prepare((aligned, shifted, 100), 0)
    launcher.prepare((aligned, aligned, 96), 0)
    assert launcher.compiled == [
        Variant(False, (True, True, False)),
        Variant(False, (True, False, False)),
        Variant(False, (True, True, True)),
    ]


def test_wide_indices_when_the_sizes_need_them(launcher):
    a = torch.zeros(1)
    launcher.prepare((a, a, 2**28 - 1), 0)
    launcher.prepare((a, a, 2**28), 0)
    assert [variant.wide for variant in launcher.compiled] == [False, True]


def test_binaries_are_kept_in_the_store(tmp_path):
    pytest.importorskip("triton")
    source = generate_source(parse_kernel(TEXT))
    variant = usual_variant(launch_spec(source), [32])
    store = ArtifactStore(tmp_path)
    first = load_or_compile(source, variant, 90, store)
    misses = store.misses
    second = load_or_compile(source, variant, 90, store)
    assert store.misses == misses
    assert (second.image, second.name, second.shared) == (first.image, first.name, first.shared)
    assert first.image[:4] == b"\x7fELF"
    wide = load_or_compile(source, Variant(True, variant.divisible), 90, store)
    assert wide.image != first.image


class Recorder(ArtifactStore):
    """A store that puts nothing, and keeps what it was to put."""

    def put(self, key, suffix, data):
        self.__dict__.setdefault("puts", []).append((key, suffix, data))


def test_processes_that_put_one_key_leave_one_whole_binary(tmp_path):
    pytest.importorskip("triton")
    puts = []
    for name in ("one", "two"):
        source = generate_source(parse_kernel(TEXT.replace("def scale(", f"def {name}(")))
        recorder = Recorder(tmp_path)
        load_or_compile(source, usual_variant(launch_spec(source), [32]), 90, recorder)
        puts.append(recorder.__dict__["puts"])
    store = ArtifactStore(tmp_path)
    first, second = puts
    for arguments in [*first[:1], *second, *first[1:]]:
        store.put(*arguments)
    binary = load_or_compile(source, usual_variant(launch_spec(source), [32]), 90, store)
    assert binary.name.encode() in binary.image


def test_kernels_that_differ_in_names_and_counters_are_one_code(tmp_path):
    text = """
@kernel(device='cuda', vector='i')
def NAME(seed: In('int64', 1), out: Out('float32', 4096)):
    for i in range(4096):
        s = load(seed, [0], 'int64')
        c = index_expr(i + FIRST, 'int64')
        u = uniform(s, c)
        store(out, [i], u)
"""
    texts = [
        text.replace("NAME", f"k{first}").replace("FIRST", str(first))
        for first in (0, 4096, 8192, 3)
    ]
    sources = [
        generate_source(replace(parse_kernel(text), origins=((text[:30], ""),))) for text in texts
    ]
    assert [launch_spec(source).numbers for source in sources] == [(0,), (1024,), (2048,), (3,)]
    store = ArtifactStore(tmp_path)
    keys = [
        variant_key(store, source, usual_variant(launch_spec(source)), 90) for source in sources
    ]
    assert keys[0] == keys[1] == keys[2] != keys[3]


def test_kernels_compile_in_parallel(tmp_path):
    pytest.importorskip("triton")
    sources = [
        generate_source(parse_kernel(TEXT.replace("add(a, a)", f"{op}(a, a)")))
        for op in ("add", "mul", "sub", "div")
    ]
    requests = [(source, usual_variant(launch_spec(source))) for source in sources]
    store = ArtifactStore(tmp_path)
    binaries = compile_all(requests, 90, store)
    assert len({binary.image for binary in binaries}) == 4
    assert [load_or_compile(*request, 90, store).image for request in requests] == [
        binary.image for binary in binaries
    ]


def test_a_kernel_that_triton_refuses_is_a_build_error(tmp_path):
    pytest.importorskip("triton")
    source = generate_source(parse_kernel(TEXT))
    broken = type(source)(
        source.kernel, source.text.replace("tl.load", "tl.no_such_thing"), source.metadata
    )
    with pytest.raises(BuildError, match=r"no_such_thing") as caught:
        load_or_compile(broken, usual_variant(launch_spec(source)), 90, ArtifactStore(tmp_path))
    assert "sm_90" in caught.value.command


def test_more_shared_memory_than_a_block_has_is_a_build_error(monkeypatch):
    device = SimpleNamespace(shared_memory_per_block_optin=1000)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: device)
    with pytest.raises(
        BuildError, match="wide needs 2000 bytes of shared memory, of which a block has 1000"
    ):
        launch_module.load_binary(Binary("wide", b"", 2000, 4), 0)


def test_the_same_code_is_loaded_once_per_device(monkeypatch):
    device = SimpleNamespace(shared_memory_per_block_optin=1000)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: device)
    monkeypatch.setattr(launch_module, "DeviceFunction", lambda *facts: [*facts])
    monkeypatch.setattr(launch_module, "_loaded", {})
    code, other = (Binary("k", image, 0, 4) for image in (b"code", b"other"))
    load = launch_module.load_binary
    assert load(code, 0) is load(Binary("k", b"code", 0, 4), 0)
    assert load(code, 1) is not load(code, 0) is not load(other, 0)


def test_the_parser_of_threads_that_meet_is_called_again():
    calls = []

    def parse(fails: int) -> int:
        calls.append(fails)
        if len(calls) <= fails:
            raise SystemError("AST constructor recursion depth mismatch")
        return fails

    assert _parsed_again(parse, 2) == 2
    with pytest.raises(SystemError):
        _parsed_again(parse, 100)
