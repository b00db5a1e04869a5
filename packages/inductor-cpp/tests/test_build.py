"""Building: the compiler and its absence, the store, equal kernels, threads, launchers."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import platform
import shutil
import stat
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch
from inductor_cpp import CppCodeGenerator, doctor, find_toolchain
from inductor_cpp.building import build as build_module
from inductor_cpp.building import toolchain as toolchain_module
from inductor_cpp.building.build import Entry, load_library
from inductor_cpp.building.toolchain import FLAGS, detect_features, detect_isa, find_compiler
from loopir import (
    ArtifactStore,
    BuildError,
    build_host,
    generate,
    parse_kernel,
    parse_program,
)
from loopir.testing import CASES

TEXT = """
@kernel(device='cpu', vector='p0')
def {name}(in0: In('float32', s0), out0: Out('float32', s0), s0: Size(hint=64)):
    for p0 in range(s0):
        a = load(in0, [p0], 'float32')
        c = constant({c}, 'float32')
        y = mul(a, c)
        store(out0, [p0], y)
"""


def sources(generator: CppCodeGenerator, *constants: float, name: str = "kernel{n}"):
    return [
        generator.generate(parse_kernel(TEXT.format(name=name.format(n=n), c=c)))
        for n, c in enumerate(constants)
    ]


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """An empty store and a process that has loaded nothing."""
    monkeypatch.setattr(build_module, "_loaded", {})
    return ArtifactStore(tmp_path / "store")


@pytest.fixture
def compilations(monkeypatch):
    """The texts that reach the compiler."""
    seen: list[str] = []
    compile_unit = build_module.compile_unit

    def record(text, target, toolchain):
        seen.append(text)
        compile_unit(text, target, toolchain)

    monkeypatch.setattr(build_module, "compile_unit", record)
    return seen


def test_second_build_does_not_compile(fresh, compilations, monkeypatch):
    generator = CppCodeGenerator()
    generator.build(sources(generator, 2.0, 3.0), fresh)
    assert len(compilations) == 1
    generator.build(sources(generator, 2.0, 3.0), fresh)
    assert fresh.hits == 1  # kept in the process
    monkeypatch.setattr(build_module, "_loaded", {})
    (first, second) = generator.build(sources(generator, 2.0, 3.0), fresh)
    assert len(compilations) == 1 and fresh.hits == 2  # and in the store
    out = torch.zeros(64)
    second(torch.ones(64), out, 64)
    assert out.eq(3).all() and first is not second


def test_equal_kernels_are_compiled_once_and_order_does_not_matter(fresh, compilations):
    generator = CppCodeGenerator()
    launches = generator.build(sources(generator, 2.0, 2.0, 5.0, 2.0), fresh)
    assert compilations[0].count('extern "C" int strata_kernel') == 2
    for launch, expected in zip(launches, (2, 2, 5, 2), strict=True):
        out = torch.zeros(64)
        launch(torch.ones(64), out, 64)
        assert out.eq(expected).all()
    generator.build(list(reversed(sources(generator, 2.0, 5.0, name="other{n}"))), fresh)
    assert len(compilations) == 1


def test_same_name_for_different_kernels(fresh):
    generator = CppCodeGenerator()
    out = torch.zeros(64)
    for launch, expected in zip(
        generator.build(sources(generator, 2.0, 3.0, name="kernel"), fresh), (2, 3), strict=True
    ):
        launch(torch.ones(64), out, 64)
        assert out.eq(expected).all()


def test_large_programs_are_split_in_two_units(fresh, compilations):
    generator = CppCodeGenerator()
    constants = [float(n) for n in range(build_module.SPLIT_AT + 1)]
    launches = generator.build(sources(generator, *constants), fresh)
    assert len(compilations) == 2
    for launch, expected in zip(launches, constants, strict=True):
        out = torch.zeros(20)
        launch(torch.ones(20), out, 20)
        assert out.eq(expected).all()


def test_nothing_to_build(fresh):
    assert CppCodeGenerator().build([], fresh) == []


def test_missing_compiler_says_what_to_do(fresh, monkeypatch, tmp_path):
    find_compiler.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("STRATA_CXX", raising=False)
    generator = CppCodeGenerator()
    with pytest.raises(BuildError, match=r"can't find a C\+\+ compiler .*STRATA_CXX"):
        generator.build(sources(generator, 2.0), fresh)
    assert "problem" in doctor()
    monkeypatch.setenv("STRATA_CXX", "no-such-compiler")
    with pytest.raises(BuildError, match="no-such-compiler"):
        CppCodeGenerator().build(sources(generator, 2.0), fresh)


def script(path, body: str):
    path.write_text("#!/bin/sh\n" + body)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_failing_compiler_shows_command_and_output(fresh, monkeypatch, tmp_path):
    fake = script(
        tmp_path / "broken",
        'case "$1" in --version) echo broken 1.0;; *) echo "no space for a.out" >&2; exit 3;; '
        "esac\n",
    )
    monkeypatch.setenv("STRATA_CXX", str(fake))
    generator = CppCodeGenerator()
    with pytest.raises(BuildError) as caught:
        generator.build(sources(generator, 2.0), fresh)
    assert (
        "-O2" in caught.value.command
        and "no space for a.out" in caught.value.output
        and "status 3" in str(caught.value)
    )
    assert not list(fresh.root.rglob("*.so"))


def test_compiler_that_writes_nothing_leaves_nothing(fresh, monkeypatch, tmp_path):
    fake = script(tmp_path / "mute", 'case "$1" in --version) echo mute 1.0;; *) exit 0;; esac\n')
    with monkeypatch.context() as patch:
        patch.setenv("STRATA_CXX", str(fake))
        generator = CppCodeGenerator()
        with pytest.raises(BuildError, match="reported success, but what it wrote can't be loaded"):
            generator.build(sources(generator, 2.0), fresh)
    assert not list(fresh.root.rglob("*.so"))


def test_library_that_cannot_be_loaded_is_built_again(fresh):
    generator = CppCodeGenerator()
    text, toolchain = "int answer() { return 42; }", generator.toolchain
    key = fresh.key("inductor_cpp", text, *toolchain.identity())
    fresh.put(key, ".so", b"no library")
    assert Entry(load_library(text, fresh, toolchain), "_Z6answerv").function() == 42
    assert fresh.get(key, ".so").stat().st_size > 1000


def test_store_where_no_file_can_be_executed(fresh, monkeypatch):
    load = ctypes.CDLL

    def refuse(path, *rest, **more):
        if path is not None and str(path).startswith(str(fresh.root)):
            raise OSError("failed to map segment from shared object")
        return load(path, *rest, **more)

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    generator = CppCodeGenerator()
    library = load_library("int answer() { return 43; }", fresh, generator.toolchain)
    assert Entry(library, "_Z6answerv").function() == 43
    assert list(fresh.root.rglob("*.so"))


def test_compiler_that_does_not_answer(monkeypatch, tmp_path):
    monkeypatch.setenv("STRATA_CXX", str(script(tmp_path / "silent", "exit 1\n")))
    with pytest.raises(BuildError, match="not a usable"):
        find_toolchain()


def test_key_depends_on_flags_compiler_and_instruction_set():
    toolchain = find_toolchain()
    others = [
        dataclasses.replace(toolchain, version="g++ 99"),
        dataclasses.replace(toolchain, isa="scalar", features=()),
    ]
    assert (
        len({tool.identity() for tool in [toolchain, *others]})
        == len({toolchain.isa, "scalar"}) + 1
    )
    assert set(FLAGS) <= set(toolchain.identity())


def test_unknown_instruction_set(monkeypatch):
    monkeypatch.setenv("STRATA_CPU_ISA", "mmx")
    with pytest.raises(BuildError, match="mmx"):
        find_toolchain()


def test_aarch64_has_neon_and_the_flags_of_its_extensions(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.delenv("STRATA_CPU_ISA", raising=False)
    assert detect_isa() == "neon"
    plain = dataclasses.replace(find_toolchain(), isa="neon", features=())
    assert not any(flag.startswith("-m") for flag in plain.flags)
    for processor, flags in {
        "Features : fp asimd": (),
        "Features : fp asimd bf16": ("-march=armv8.2-a+bf16",),
    }.items():
        monkeypatch.setattr(
            toolchain_module, "_processor_flags", lambda text=processor: frozenset(text.split())
        )
        assert dataclasses.replace(plain, features=detect_features("neon")).flags == (
            *plain.flags,
            *flags,
        )
    monkeypatch.setenv("STRATA_CPU_ISA", "avx2")
    with pytest.raises(BuildError, match="only has 'neon'"):
        detect_isa()


def test_only_libtorch_openmp_is_loaded(fresh):
    generator = CppCodeGenerator()
    generator.build(sources(generator, 2.0), fresh)
    if not os.path.exists("/proc/self/maps"):
        pytest.skip("needs /proc")
    with open("/proc/self/maps") as maps:
        runtimes = {line.split()[-1] for line in maps if "libgomp" in line or "libiomp" in line}
    assert runtimes == {os.path.realpath(find_toolchain().openmp)}


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_results_do_not_depend_on_threads(fresh, threads):
    generator = CppCodeGenerator()
    (launch,) = generator.build(sources(generator, 2.0), fresh)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        for n in (1, 4095, 4096, 4097, 100_001):
            x, out = torch.randn(n), torch.zeros(n + 1)
            launch(x, out, n)
            assert torch.equal(out[:n], x * 2) and out[n] == 0
    finally:
        torch.set_num_threads(before)


def test_launcher_tells_its_address(fresh):
    generator = CppCodeGenerator()
    (launch,) = generator.build(sources(generator, 2.0), fresh)
    assert launch.argument_types == "ppi" and launch.address > 0


def test_doctor_names_compiler_isa_and_threads():
    report = doctor()
    assert {"compiler", "version", "isa", "openmp", "threads"} <= set(report)


def test_translation_unit_includes_nothing():
    generator = CppCodeGenerator()
    (source,) = sources(generator, 2.0)
    assert "#include" not in build_module.unit_text([source.text])


OTHER_COMPILERS = {
    "clang++": ["clang++"],
    "clang++ for AArch64": ["clang++", "--target=aarch64-linux-gnu"],
    "zig for AArch64": [sys.executable, "-m", "ziglang", "c++", "-target", "aarch64-linux-gnu"],
    "g++ for AArch64": ["aarch64-linux-gnu-g++"],
    "g++ for AArch64 with bfloat16": ["aarch64-linux-gnu-g++", "-march=armv8.2-a+bf16"],
}


@pytest.mark.parametrize("name", OTHER_COMPILERS)
def test_other_compilers_take_the_text(name, tmp_path):
    compiler = OTHER_COMPILERS[name]
    if shutil.which(compiler[0]) is None or (
        "ziglang" in compiler and find_spec("ziglang") is None
    ):
        pytest.skip(f"no {name}")
    cases = [parse_kernel(case.text) for case in CASES[::16]]
    text = build_module.unit_text(
        [build_module._nameless(CppCodeGenerator().generate(kernel)) for kernel in cases]
    )
    (tmp_path / "unit.cpp").write_text(text)
    flags = [flag for flag in FLAGS if flag != "-Wno-ignored-attributes"]
    subprocess.run(
        [*compiler, *flags, "-c", str(tmp_path / "unit.cpp"), "-o", str(tmp_path / "unit.o")],
        check=True,
    )


FAULTS = """
import resource, sys, torch
from inductor_cpp import compile_graph
from primops.testing import trace

x = torch.ones(4)
compile_graph(trace(lambda x: x + 1, x), [x])(x)
def step():
    blocks = [torch.ones(1 << 20) for _ in range(16)]
step(), step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
def test_memory_freed_at_once_is_kept():
    run = [sys.executable, "-c", FAULTS]
    plain = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MALLOC_", "GLIBC_"))
    }
    kept, given = (
        int(
            subprocess.run(run, env=plain | more, capture_output=True, text=True, check=True).stdout
        )
        for more in ({}, {"MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_MMAP_THRESHOLD_": "131072"})
    )
    assert kept < 1000 < given


LINKED = """
@kernel(device='cpu', vector='p0')
def twice(in0: In('float32', 64), out0: Out('float32', 64)):
    for p0 in range(64):
        a = load(in0, [p0], 'float32')
        y = add(a, a)
        store(out0, [p0], y)

def program(x: f32[64]):
    y: f32[64] = allocate()
    launch(twice, x, y)
    return (y,)
"""


def linked(generator, store):
    """A program of one run, and the launcher of the run."""
    program = parse_program(LINKED)
    host = build_host(program, generate(program, {"cpu": generator}), {"cpu": generator}, store)
    return list(host.text.launchers["cpu"].values())


def test_launchers_are_loaded_without_a_compiler(fresh, monkeypatch):
    text = CppCodeGenerator().describe_launchers(linked(CppCodeGenerator(), fresh))
    monkeypatch.setattr(build_module, "_loaded", {})
    monkeypatch.setenv("PATH", "")
    for _ in range(2):
        (launch,) = CppCodeGenerator().load_launchers(text, fresh)
        out = torch.zeros(64)
        launch(torch.ones(64), out)
        assert out.eq(2).all()


def test_launchers_without_their_library_are_built_again(fresh, monkeypatch):
    text = CppCodeGenerator().describe_launchers(linked(CppCodeGenerator(), fresh))
    monkeypatch.setattr(build_module, "_loaded", {})
    for path in fresh.root.rglob("*.so"):
        path.unlink()
    assert CppCodeGenerator().load_launchers(text, fresh) is None


@pytest.mark.parametrize("name", ["STRATA_CPU_ISA", "STRATA_CXX"])
def test_launchers_for_another_target_are_built_again(fresh, monkeypatch, name):
    text = CppCodeGenerator().describe_launchers(linked(CppCodeGenerator(), fresh))
    monkeypatch.setenv(name, "scalar" if name == "STRATA_CPU_ISA" else "c++")
    assert CppCodeGenerator().load_launchers(text, fresh) is None
    given = CppCodeGenerator(dataclasses.replace(find_toolchain(), version="another"))
    assert given.load_launchers(text, fresh) is None
