"""From runs to launches without a device: places, sizes, variants, scratch memory of sequences; the
plan in Python.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import sympy
import torch
from inductor_triton import Binary, Launcher, TritonCodeGenerator, launch_spec
from inductor_triton.launching import launch as launch_module
from inductor_triton.launching.compile import example_variant
from inductor_triton.launching.launch_plan import Plan, PythonPlan, Resolver, expand, run_calls
from inductor_triton.launching.stored_plans import describe_plans, read_plans
from inductor_triton.spec import sequence_of
from loopir import ArtifactStore, KernelSource, Place, Run, RunCall, parse_kernel, symbol

SCALE = """
@kernel(device='cuda')
def scale(in0: In('float32', 8*s0), out: Out('float32', 8*s0), s0: Size(hint=32)):
    for i in range(8*s0):
        a = load(in0, [i], 'float32')
        b = add(a, a)
        store(out, [i], b)
"""
COLUMNS = """
@kernel(device='cuda')
def columns(x: In('float32', 4194304), out: Out('float32', 64)):
    for i in range(64):
        for r in reduce(65536):
            a = load(x, [64*r + i], 'float32')
            s = reduce('sum', a, 'float32')
        store(out, [i], s)
"""
S0 = symbol("s0")
CUDA = torch.device("cuda", 0)


class Function:
    """A loaded kernel that keeps its launches."""

    def __init__(self, binary: Binary, device: int) -> None:
        self.launches: list[tuple[int, tuple[int, ...]]] = []

    def launch(self, programs: int, stream: int, values: list[int]) -> None:
        self.launches.append((programs, tuple(values)))


@pytest.fixture
def launchers(tmp_path, monkeypatch):
    """``launchers(sources)``: one launcher per part of each, with nothing compiled."""
    monkeypatch.setattr(launch_module, "load_or_compile", lambda *args: Binary("kernel", b"", 0, 4))
    monkeypatch.setattr(
        launch_module,
        "compile_all",
        lambda requests, *args: [Binary("kernel", b"", 0, 4) for _ in requests],
    )
    monkeypatch.setattr(launch_module, "capability_of", lambda device: 90)

    def make(sources: list[KernelSource]) -> list[list[Launcher]]:
        store: Any = ArtifactStore(tmp_path)
        return [
            [Launcher(part, store, loader=Function) for part in sequence_of(source).parts]
            for source in sources
        ]

    return make


def scale_twice() -> Run:
    """t1 = scale(scale(t0)) through 32 * s0 bytes of a slab, behind 64 that something else uses."""
    inner = Place(2, sympy.Integer(64))
    calls = (
        RunCall(0, (Place(0, sympy.S.Zero), inner), (S0,)),
        RunCall(0, (inner, Place(1, sympy.S.Zero)), (S0,)),
    )
    return Run(3, (S0,), calls, CUDA, 64 + 32 * S0)


def generated(text: str) -> KernelSource:
    return TritonCodeGenerator().generate(parse_kernel(text))


def test_places_and_sizes(launchers):
    source = generated(SCALE)
    plan = expand(scale_twice(), [source], launchers([source]))
    assert (plan.tensors, len(plan.calls)) == (2, 2)
    resolver = Resolver(plan, 0, lambda operations, memory: (operations, memory))
    (first, second), memory = resolver(b"\1\1", (100,))  # type: ignore[misc]
    assert memory == 64 + 3200
    assert first.arguments == ((0, 0), (2, 64), (-1, 100))
    assert second.arguments == ((2, 64), (1, 0), (-1, 100))
    assert first.programs == -(-800 // launch_spec(source).config.x)
    assert resolver(b"\1\1", (100,)) is resolver(b"\1\1", (100,))
    (empty, _), _ = resolver(b"\1\1", (0,))  # type: ignore[misc]
    assert empty.programs == 0


def test_variants_of_a_run(launchers):
    source = generated(SCALE)
    made = launchers([source])
    plan = expand(scale_twice(), [source], made)
    resolver = Resolver(plan, 0, lambda operations, memory: operations)
    first, second = resolver(b"\0\1", (16,))  # type: ignore[misc]
    assert first.function is not second.function
    variants = [variant.divisible for _, variant in made[0][0]._functions]
    assert variants == [(False, True, True), (True, True, True)]


def test_what_a_size_needs_is_compiled_for_all_plans_at_once(launchers, monkeypatch):
    batches: list[int] = []

    def compile_all(requests, capability, store):
        batches.append(len(requests))
        return [Binary("kernel", b"", 0, 4) for _ in requests]

    monkeypatch.setattr(launch_module, "compile_all", compile_all)
    source = generated(SCALE)
    plans = [expand(scale_twice(), [source], launchers([source])) for _ in range(3)]
    resolvers = [Resolver(plan, 0, lambda operations, memory: operations) for plan in plans]
    for resolver in resolvers:
        resolver.siblings = resolvers
    for size in (16, 32, 5):
        for resolver in resolvers:
            resolver(b"\1\1", (size,))
    assert batches == [3, 3]


def test_sequences_share_scratch_memory(launchers):
    source = generated(COLUMNS)
    assert len(sequence_of(source).parts) > 1
    run = Run(
        2,
        (),
        (RunCall(0, (Place(0, sympy.S.Zero), Place(1, sympy.S.Zero)), ()),) * 2,
        CUDA,
        sympy.S.Zero,
    )
    plan = expand(run, [source], launchers([source]))
    need = sum(int(buffer.numel) * buffer.dtype.itemsize for buffer in sequence_of(source).scratch)
    assert len(plan.calls) == 2 * len(sequence_of(source).parts)
    assert plan.tensors == 2
    assert need <= int(plan.memory) < need + 1024
    used = {place.parameter for call in plan.calls for place in call.places}
    assert used == {0, 1, 2}


@pytest.mark.parametrize("size", [0, 5])
def test_the_plan_in_python(launchers, monkeypatch, size):
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 7, raising=False)
    slab, empty = torch.zeros(4096, dtype=torch.uint8), torch.empty
    monkeypatch.setattr(
        torch, "empty", lambda n, **options: slab if "device" in options else empty(n, **options)
    )
    source = generated(SCALE)
    made = launchers([source])
    plan: Plan = expand(scale_twice(), [source], made)
    call = PythonPlan(
        "scale",
        2,
        Resolver(plan, 0, lambda operations, memory: (operations, memory)),
        0,
        None,
    )
    x, y = torch.zeros(8 * size), torch.zeros(8 * size)
    call(x, y, size)
    launches = [
        launch for function in made[0][0]._functions.values() for launch in function.launches
    ]  # type: ignore[attr-defined]
    inner = slab.data_ptr() + 64
    assert launches == (
        [] if size == 0 else [(1, (x.data_ptr(), inner, size)), (1, (inner, y.data_ptr(), size))]
    )


def test_runs_in_the_interpreter(tmp_path):
    pytest.importorskip("triton")
    source = generated(SCALE.replace("cuda", "cpu"))
    calls = TritonCodeGenerator(device="cpu", interpret=True).build(
        [source], ArtifactStore(tmp_path)
    )
    x, y = torch.randn(80), torch.zeros(80)
    run_calls(scale_twice(), [source], calls)(x, y, 10)
    assert torch.equal(y, 4 * x)


def test_plans_are_read_without_kernels(launchers):
    run, source = scale_twice(), generated(SCALE)
    plan = expand(run, [source], launchers([source]))
    asked = []

    def build(parts, device):
        asked.append((parts, device))
        return [made for (made,) in launchers(parts)]

    text = describe_plans([replace(plan, device=0), replace(plan, device=1)])
    first, second = read_plans(text, build)
    ((parts, device), (_, other)) = asked
    (part,) = parts
    assert (device, other) == (0, 1) and part.text == source.text
    assert launch_spec(part) == launch_spec(source)
    assert example_variant(part) == example_variant(source)
    assert part.kernel.name == source.kernel.name and not part.kernel.bodies
    for read in (first, second):
        assert [(c.places, c.sizes) for c in read.calls] == [
            (c.places, c.sizes) for c in plan.calls
        ]
        assert (read.tensors, read.sizes, read.memory) == (plan.tensors, plan.sizes, plan.memory)
        for aligned, size in ((b"\1\1", 5), (b"\0\1", 16)):
            made, expected = (
                Resolver(each, 0, lambda operations, memory: None).resolve(aligned, (size,))
                for each in (read, plan)
            )
            assert made[1] == expected[1]
            assert [(o.programs, o.arguments) for o in made[0]] == [
                (o.programs, o.arguments) for o in expected[0]
            ]


def test_plans_with_the_copy_engine_have_no_text(launchers):
    source = generated(SCALE)
    plan = expand(scale_twice(), [source], launchers([source]))
    spec = launch_spec(source)
    plan.calls[0].launcher.spec = replace(spec, config=replace(spec.config, tma=True))
    assert describe_plans([plan]) is None
