"""Small independent kernels as one launch: which, and that their results stay the same."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import sympy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from inductor_triton import TritonCodeGenerator, compile_ptx, launch_spec
from inductor_triton.launching.shared_launches import MOST_KERNELS, share_launches, shared
from loopir import ArtifactStore, Place, Run, RunCall, parse_kernel, symbol

SCALE = """
@kernel(device='cpu')
def scale{n}(in0: In('float32', {n}), out: Out('float32', {n})):
    for i in range({n}):
        a = load(in0, [i], 'float32')
        b = add(a, a)
        store(out, [i], b)
"""
SUMS = """
@kernel(device='cpu')
def sums(in0: In('float32', 4000), out: Out('float32', 40)):
    for i in range(40):
        for r in reduce(100):
            a = load(in0, [100*i + r], 'float32')
            s = reduce('sum', a, 'float32')
        store(out, [i], s)
"""
GATHER = """
@kernel(device='cpu')
def gather(index: In('int64', 3), table: In('float32', 70), out: Out('float32', 21)):
    for i in range(3):
        for j in range(7):
            k = load(index, [i], 'int64')
            row = indirect(k, 10)
            a = load(table, [7*row + j], 'float32')
            store(out, [7*i + j], a)
"""
SYMBOLIC = """
@kernel(device='cpu')
def scale(in0: In('float32', s0), out: Out('float32', s0), s0: Size(hint=32)):
    for i in range(s0):
        a = load(in0, [i], 'float32')
        store(out, [i], a)
"""
TEXTS = (SCALE.format(n=70), SUMS, GATHER, SCALE.format(n=3000))
ZERO = sympy.S.Zero
CPU = TritonCodeGenerator(device="cpu", interpret=True)


def generated(text):
    return CPU.generate(parse_kernel(text))


def run_of(kernels, besides, sizes=()):
    """A run in which each kernel has tensors of its own."""
    calls, count = [], 0
    for source, beside in zip(kernels, besides, strict=True):
        buffers = SOURCES[source].kernel.buffers
        places = tuple(Place(count + i, ZERO) for i in range(len(buffers)))
        count += len(places)
        calls.append(RunCall(source, places, sizes, beside))
    return Run(count, (), tuple(calls), torch.device("cpu"), ZERO)


SOURCES = [generated(text) for text in TEXTS]


def tensors_of(run):
    made = []
    for call in run.calls:
        for buffer in SOURCES[call.source].kernel.buffers:
            size = int(buffer.numel)
            is_index = buffer.dtype is torch.int64
            made.append(torch.arange(size) * 4 if is_index else torch.rand(size))
    return made


def results(run, sources, tmp_path):
    tensors = [tensor.clone() for tensor in tensors_of(run)]
    calls = CPU.link(sources, [run], ArtifactStore(tmp_path))
    calls[0](*tensors)
    return tensors


@pytest.mark.parametrize("kernels", [(0, 1), (2, 1, 0), (0, 0), (1, 2, 3, 0)])
def test_values(kernels, tmp_path):
    run = run_of(kernels, range(len(kernels)))
    sources, (one,) = share_launches(SOURCES, [run])
    assert len(sources) == len(one.calls) == 1
    torch.manual_seed(0)
    expected = tensors_of(run)
    position = 0
    for number in kernels:
        inputs = [b for b in SOURCES[number].kernel.buffers if b.role == "in"]
        given_, out = expected[position : position + len(inputs)], position + len(inputs)
        expected[out] = {
            0: lambda x: x * 2, 1: lambda x: x.view(40, 100).sum(1), 3: lambda x: x * 2,
            2: lambda index, table: table.view(10, 7)[index].flatten(),
        }[number](*given_)  # fmt: skip
        position = out + 1
    torch.manual_seed(0)
    for found, wanted in zip(results(run, SOURCES, tmp_path), expected, strict=True):
        torch.testing.assert_close(found, wanted)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 7)), min_size=1, max_size=20))
def test_the_order_of_dependent_launches_stays(drawn):
    besides = [min(beside, i) for i, (_, beside) in enumerate(drawn)]
    run = run_of([kernel for kernel, _ in drawn], besides)
    sources, (made,) = share_launches(SOURCES, [run])
    assert [p for call in made.calls for p in call.places] == [
        p for call in run.calls for p in call.places
    ]
    position = 0
    for call in made.calls:
        names = [b.name.partition("_")[0] for b in sources[call.source].kernel.buffers]
        parts = len(dict.fromkeys(names)) if names[0].startswith("tensor") else 1
        assert parts <= MOST_KERNELS
        assert all(besides[position + i] >= i for i in range(parts))
        position += parts
    assert position == len(drawn)


def test_an_error_of_one_part_is_raised(tmp_path):
    run = run_of((0, 2), (0, 1))
    tensors = tensors_of(run)
    tensors[2] = torch.tensor([0, 11, 1])
    (call,) = CPU.link(SOURCES, [run], ArtifactStore(tmp_path))
    with pytest.raises(IndexError, match="index out of range"):
        call(*tensors)


def test_large_and_symbolic_kernels_have_launches_of_their_own():
    large = generated(SCALE.format(n=1 << 22))
    symbolic = generated(SYMBOLIC)
    places = (Place(0, ZERO), Place(1, ZERO)), (Place(2, ZERO), Place(3, ZERO))
    for source, sizes in ((large, ()), (symbolic, (symbol("s0"),))):
        calls = tuple(RunCall(0, own, sizes, i) for i, own in enumerate(places))
        run = Run(4, sizes, calls, torch.device("cpu"), ZERO)
        assert share_launches([source], [run]) == ([source], [run])


def test_kernels_that_only_run_together_are_built_once():
    run = run_of((0, 1, 0, 1), (0, 1, 0, 1))
    sources, (made,) = share_launches(SOURCES, [run])
    assert [call.source for call in made.calls] == [0, 0]
    assert len(sources) == 1


def test_source(golden):
    golden(shared(SOURCES[:3]).text)


@pytest.mark.parametrize("capability", [80, 90])
def test_compiles(capability):
    source = shared(SOURCES)
    spec = launch_spec(source)
    assert spec.batch == sum(launch_spec(each).batch * _blocks(each) for each in SOURCES)
    assert ".visible .entry" in compile_ptx(source, capability)


def _blocks(source):
    count = 1
    for extent, block in launch_spec(source).blocks:
        count *= -(-int(extent) // block)
    return count


TIMES = """
@kernel(device='cpu')
def {name}(in0: In('float32', 64), out: Out('float32', 64)):
    for i in range(64):
        a = load(in0, [i], 'float32')
        c = constant({factor}, 'float32')
        b = mul(a, c)
        store(out, [i], b)
"""


def _together(number, name):
    """The launch of a kernel with another one; four that differ in both."""
    factor, other = (2.0, 3.0)[number // 2], (SCALE.format(n=70), SUMS)[number % 2]
    return shared([generated(TIMES.format(name=name, factor=factor)), generated(other)])


def _instructions(source):
    """The lines of its PTX that are instructions, without its name."""
    lines = compile_ptx(source).replace(source.kernel.name, "").splitlines()
    return [line for line in lines if line.startswith("\t") and line.endswith(";")]


@settings(max_examples=20, deadline=None)
@given(order=st.lists(st.integers(0, 3), min_size=4, max_size=10), threads=st.integers(1, 3))
def test_kernels_of_equal_names_keep_their_own_code(order, threads):
    """As those of several programs in one process have."""
    with ThreadPoolExecutor(threads) as pool:
        found = list(pool.map(lambda number: _instructions(_together(number, "times")), order))
    for number, instructions in zip(order, found):
        assert instructions == _instructions(_together(number, f"times{number}"))
