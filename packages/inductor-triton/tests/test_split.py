"""Splitting is checked on the IR: the parts, evaluated in order, give what the kernel gives."""

from __future__ import annotations

import primops
import pytest
import torch
from inductor_triton import Split, split_reduction
from inductor_triton.generator import TritonCodeGenerator
from inductor_triton.kernels.codegen import generate_sequence
from inductor_triton.kernels.passes import split_reductions
from inductor_triton.kernels.passes.moments import squares_of
from inductor_triton.spec import sequence_of
from loopir import (
    ArtifactStore,
    Kernel,
    Options,
    VerificationError,
    check_kernel,
    evaluate_kernel,
    parse_kernel,
)
from loopir.host.host_builder import generate
from loopir.host.launched import check_launches, check_shared
from loopir.lowering import lower
from loopir.schedule import memory, schedule
from primops.testing import trace

COLUMNS = """
@kernel(device='cuda', vector='x0')
def columns(x: In('float32', 819200), out: Out('float32', 100), low: Out('float32', 100)):
    for x0 in range(100):
        for r0 in reduce(8192):
            a = load(x, [100*r0 + x0], 'float32')
            s = reduce('sum', a, 'float32')
            m = reduce('min', a, 'float32')
        n = constant(8192.0, 'float32')
        q = div(s, n)
        store(out, [x0], q)
        store(low, [x0], m)
"""

BATCH_NORM = """
@kernel(device='cuda', vector='r1')
def norm(x: In('float32', 524288), w: In('float32', 4), mean: Out('float32', 4), out: Out('float32', 524288)):
    for x0 in range(4):
        scale = load(w, [x0], 'float32')
        for r0 in reduce(32):
            for r1 in reduce(4096):
                a = load(x, [4096*x0 + 16384*r0 + r1], 'float32')
                s = reduce('sum', a, 'float32')
        n = constant(131072.0, 'float32')
        m = div(s, n)
        store(mean, [x0], m)
        for r0 in reduce(32):
            for r1 in reduce(4096):
                b = load(x, [4096*x0 + 16384*r0 + r1], 'float32')
                d = sub(b, m)
                e = mul(d, d)
                v = reduce('sum', e, 'float32')
        w0 = div(v, n)
        w1 = rsqrt(w0)
        w2 = mul(w1, scale)
        for r0 in reduce(32):
            for r1 in reduce(4096):
                c = load(x, [4096*x0 + 16384*r0 + r1], 'float32')
                f = sub(c, m)
                g = mul(f, w2)
                store(out, [4096*x0 + 16384*r0 + r1], g)
"""

EVERYTHING = """
@kernel(device='cuda', vector='r0')
def everything(x: In('float32', 1048576), flag: Out('bool', 1), doubled: Out('float32', 1048576)):
    for r0 in reduce(1048576):
        a = load(x, [r0], 'float32')
        zero = constant(0.0, 'float32')
        b = lt(zero, a)
        f = reduce('any', b, 'bool')
        t = add(a, a)
        store(doubled, [r0], t)
    store(flag, [0], f)
"""

STORED_FIRST = """
@kernel(device='cuda', vector='x0')
def stored_first(x: In('float32', 819200), y: Out('float32', 819200), z: Out('float32', 819200)):
    for x0 in range(100):
        for r0 in reduce(8192):
            a = load(x, [100*r0 + x0], 'float32')
            b = mul(a, a)
            store(y, [100*r0 + x0], b)
            s = reduce('sum', b, 'float32')
        for r0 in reduce(8192):
            c = load(y, [100*r0 + x0], 'float32')
            d = sub(c, s)
            store(z, [100*r0 + x0], d)
"""

TWO_VARIANCES = """
@kernel(device='cuda', vector='x0')
def two(x: In('float32', 819200), y: In('float32', 819200), w: In('float32', 100), copy: Out('float32', 100), vx: Out('float32', 100), vy: Out('float32', 100), my: Out('float32', 100)):
    for x0 in range(100):
        w0 = load(w, [x0], 'float32')
        store(copy, [x0], w0)
        for r0 in reduce(8192):
            a = load(x, [100*r0 + x0], 'float32')
            b = mul(a, w0)
            s = reduce('sum', b, 'float32')
            c = load(y, [100*r0 + x0], 'float32')
            t = reduce('sum', c, 'float32')
        n = constant(8192.0, 'float32')
        m = div(s, n)
        k = div(t, n)
        store(my, [x0], k)
        for r0 in reduce(8192):
            d = load(x, [100*r0 + x0], 'float32')
            e = mul(d, w0)
            f = sub(e, m)
            g = mul(f, f)
            v = reduce('sum', g, 'float32')
            h = load(y, [100*r0 + x0], 'float32')
            i = sub(h, k)
            j = mul(i, i)
            u = reduce('sum', j, 'float32')
        o = div(v, n)
        store(vx, [x0], o)
        p = div(u, n)
        store(vy, [x0], p)
"""


GATHERED = """
@kernel(device='cuda', vector='r0')
def gathered(at: In('int64', 8192), x: In('float32', 819200), out: Out('float32', 1)):
    for r0 in reduce(8192):
        t = load(at, [r0], 'int64')
        z = constant(0, 'int64')
        p = maximum(t, z)
        i0 = indirect(p, 100)
        a = load(x, [100*r0 + i0], 'float32')
        s = reduce('sum', a, 'float32')
    store(out, [0], s)
"""


def split(text: str) -> tuple[Kernel, Split]:
    kernel = parse_kernel(text)
    found = split_reduction(kernel)
    assert found is not None
    return kernel, found


def tensors_of(kernel: Kernel) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(int(b.numel)).to(b.dtype) for b in kernel.buffers]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (COLUMNS, 2),
        (BATCH_NORM, 3),
        (EVERYTHING, 2),
        (STORED_FIRST, 3),
        (TWO_VARIANCES, 2),
        (GATHERED, 2),
    ],
)
def test_parts_give_what_the_kernel_gives(text: str, parts: int):
    kernel, found = split(text)
    assert len(found.parts) == parts
    expected, actual = tensors_of(kernel), tensors_of(kernel)
    evaluate_kernel(kernel, expected, ())
    named = {b.name: tensor for b, tensor in zip(kernel.buffers, actual)}
    named |= {b.name: torch.empty(int(b.numel), dtype=b.dtype) for b in found.scratch}
    for part in found.parts:
        check_kernel(part)
        evaluate_kernel(part, [named[b.name] for b in part.buffers], ())
    for got, wanted in zip(actual, expected):
        torch.testing.assert_close(got, wanted)


ANY_ROWS = """
@kernel(device='cuda', vector='x0')
def rows(x: In('float32', 64*s0), w: In('float32', s0), out: Out('float32', 64), s0: Size(hint=3)):
    for x0 in range(64):
        for r0 in reduce(s0):
            a = load(x, [64*r0 + x0], 'float32')
            b = load(w, [r0], 'float32')
            c = mul(a, b)
            s = reduce('sum', c, 'float32')
            t = reduce('sum', a, 'float32')
        d = div(s, t)
        store(out, [x0], d)
"""
ANY_BATCH_STORED = """
@kernel(device='cuda', vector='x0')
def batch(x: In('float32', 32*s0*s1), out: Out('bfloat16', 32*s0*s1), total: Out('float32', 32), s0: Size(hint=2), s1: Size(hint=5)):
    for x0 in range(32):
        for r0 in reduce(s0):
            for r1 in reduce(s1):
                a = load(x, [32*r0*s1 + r1 + s1*x0], 'float32')
                b = cast(a, 'bfloat16')
                store(out, [32*r0*s1 + 32*r1 + x0], b)
                c = cast(b, 'float32')
                s = reduce('sum', c, 'float32')
        store(total, [x0], s)
"""
ANY_IMAGES = """
@kernel(device='cuda', vector='r1')
def images(x: In('float32', 2048*s0), mean: Out('float32', 2), var: Out('float32', 2), s0: Size(hint=2)):
    for x0 in range(2):
        for r0 in reduce(s0):
            for r1 in reduce(1024):
                a = load(x, [2048*r0 + r1 + 1024*x0], 'float32')
                s = reduce('sum', a, 'float32')
        store(mean, [x0], s)
        for r0 in reduce(s0):
            for r1 in reduce(1024):
                b = load(x, [2048*r0 + r1 + 1024*x0], 'float32')
                c = sub(b, s)
                d = mul(c, c)
                v = reduce('sum', d, 'float32')
        store(var, [x0], v)
"""
ANY_GATHERED = """
@kernel(device='cuda', vector='x0')
def gathered(x: In('float32', 200), at: In('int64', s0), out: Out('float32', 20), s0: Size(hint=7)):
    for x0 in range(20):
        for r0 in reduce(s0):
            k = load(at, [r0], 'int64')
            i = indirect(k, 10)
            p = index_expr(r0, 'int64')
            q = constant(2, 'int64')
            m = lt(q, p)
            a = load(x, [20*i + x0], 'float32', mask=m, other=0.5)
            s = reduce('sum', a, 'float32')
        store(out, [x0], s)
"""


@pytest.mark.parametrize(
    ("text", "parts"),
    [(ANY_ROWS, 2), (ANY_BATCH_STORED, 3), (ANY_IMAGES, 4), (ANY_GATHERED, 2)],
)
@pytest.mark.parametrize("size", [1, 2, 31, 200])
def test_parts_of_reductions_of_any_size(text: str, parts: int, size: int, monkeypatch):
    monkeypatch.setattr(split_reductions, "SMALLEST_SHARE", 0)
    kernel, found = split(text)
    assert len(found.parts) == parts
    sizes = (size, 7)[: len(kernel.sizes)]
    values = dict(zip(kernel.sizes, sizes))
    lengths = [int(buffer.numel.subs(values)) for buffer in kernel.buffers]
    torch.manual_seed(size)
    expected = [
        torch.randint(10, (length,))
        if buffer.dtype is torch.int64
        else torch.rand(length).to(buffer.dtype)
        for buffer, length in zip(kernel.buffers, lengths)
    ]
    named = {b.name: tensor.clone() for b, tensor in zip(kernel.buffers, expected)}
    evaluate_kernel(kernel, expected, sizes)
    named |= {b.name: torch.empty(int(b.numel), dtype=b.dtype) for b in found.scratch}
    for part in found.parts:
        check_kernel(part)
        evaluate_kernel(part, [named[b.name] for b in part.buffers], sizes)
    for buffer, wanted in zip(kernel.buffers, expected):
        torch.testing.assert_close(named[buffer.name], wanted)


def test_a_reduction_of_any_size_reads_before_its_stores_overwrite(monkeypatch):
    monkeypatch.setattr(split_reductions, "SMALLEST_SHARE", 0)
    text = ANY_BATCH_STORED.replace("bfloat16", "float32")
    text = text.replace("32*r1 + x0], b", "r1 + s1*x0], b")
    _, found = split(text)
    assert len(found.parts) == 3
    check_shared(found.parts, "x", "out")


@pytest.mark.parametrize("rows", [8192, 8190, 8100])
def test_variances_far_from_zero(rows: int):
    kernel, found = split(
        TWO_VARIANCES.replace("8192", str(rows)).replace("819200", str(100 * rows))
    )
    assert len(found.parts) == 2
    tensors = tensors_of(kernel)
    tensors[0], tensors[1] = (
        4000 + tensors[0],
        torch.where(torch.arange(100 * rows) < 100, 0.0, 1e4 + tensors[1]),
    )
    tensors[2].fill_(1.0)
    named = {b.name: tensor for b, tensor in zip(kernel.buffers, tensors)}
    named |= {b.name: torch.empty(int(b.numel), dtype=b.dtype) for b in found.scratch}
    for part in found.parts:
        evaluate_kernel(part, [named[b.name] for b in part.buffers], ())
    for source, result in (("x", "vx"), ("y", "vy")):
        wanted = named[source].double().view(rows, 100).var(0, correction=0)
        torch.testing.assert_close(named[result].double(), wanted, rtol=1e-4, atol=0)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("h = load(y, [100*r0 + x0]", "h = load(y, [-100*r0 - x0 + 819199]"),
        ("j = mul(i, i)", "j = mul(i, h)"),
        ("i = sub(h, k)", "i = sub(k, h)"),
        ("store(my, [x0], k)", "store(my, [x0], k)\n        store(x, [x0], k)"),
    ],
    ids=["elsewhere", "no square", "turned round", "written between"],
)
def test_what_is_no_variance(old: str, new: str):
    assert TWO_VARIANCES.count(old) == 1
    bodies = parse_kernel(TWO_VARIANCES.replace(old, new).replace("x: In", "x: InOut")).bodies
    assert squares_of(parse_kernel(TWO_VARIANCES).bodies, 1)
    assert not squares_of(bodies, 1)


def test_the_first_part_uses_the_whole_device():
    _, found = split(BATCH_NORM)
    first = found.parts[0]
    points = 1
    for item in first.ranges:
        points *= int(item.extent)
    assert points >= 4 * 132


@pytest.mark.parametrize("rows", [6272, 25088, 100352, 401408])
def test_chunks_are_filled_by_blocks(rows: int):
    _, found = split(COLUMNS.replace("8192", str(rows)).replace("819200", str(100 * rows)))
    assert all(int(item.extent) % 32 == 0 for item in found.parts[0].reduction)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("reduce(8192)", "reduce(64)"),
        ("reduce('min'", "reduce('argmin'"),
        ("reduce(8192)", "reduce(8191)"),
    ],
    ids=["short", "positions", "prime"],
)
def test_what_stays_whole(old: str, new: str):
    text = COLUMNS.replace(old, new)
    if "argmin" in new:
        text = text.replace("'argmin', a, 'float32'", "'argmin', a, 'int64'").replace(
            "low: Out('float32'", "low: Out('int64'"
        )
    assert split_reduction(parse_kernel(text)) is None


def test_a_variance_in_two_launches(golden):
    parts = sequence_of(generate_sequence(parse_kernel(TWO_VARIANCES))).parts
    golden("\n".join(part.text[part.text.rindex("# num_warps") :] for part in parts))


def test_the_generator_runs_the_parts():
    pytest.importorskip("triton")
    kernel = parse_kernel(COLUMNS.replace("'cuda'", "'cpu'"))
    generator = TritonCodeGenerator(device="cpu", interpret=True)
    (call,) = generator.build([generator.generate(kernel)], ArtifactStore())
    expected, actual = tensors_of(kernel), tensors_of(kernel)
    evaluate_kernel(kernel, expected, ())
    call(*actual)
    for got, wanted in zip(actual, expected):
        torch.testing.assert_close(got, wanted)


def test_checker_sees_the_operand_that_a_part_loads_again():
    kernel = parse_kernel(BATCH_NORM)
    source = TritonCodeGenerator().generate(kernel)
    parts = TritonCodeGenerator().launched(source)
    assert len(parts) > 1
    check_shared(parts, "x", "out")
    with pytest.raises(
        VerificationError,
        match=r"C4.8.*norm_\d loads w after norm_\d stored mean in the same memory",
    ):
        check_shared(parts, "w", "mean")


def _planned(fn, *args):
    """The program of ``fn`` with its second argument donated, and the sources of its kernels."""
    graph = primops.decompose(trace(fn, *args))
    list(graph.graph.find_nodes(op="placeholder"))[1].meta["donated"] = True
    codegens = {"cpu": TritonCodeGenerator("cpu", interpret=True)}
    options = Options(split_reductions=False)
    program = schedule(lower(graph, options), options, codegens)
    return program, generate(program, codegens), codegens


def test_no_result_in_memory_that_a_part_still_reads(monkeypatch):
    def fn(x, scale):
        total = x.sum(1) * scale
        return total, x * scale[:, None] + total[:, None]

    args = torch.rand(4, 1 << 18), torch.rand(4)
    planned = _planned(fn, *args)
    assert len(sequence_of(planned[1][0]).parts) > 1
    check_launches(*planned)
    monkeypatch.setattr(memory, "_is_used_later", lambda *_: False)
    with pytest.raises(VerificationError, match=r"C4.8.* loads .* after .* stored"):
        check_launches(*_planned(fn, *args))


UNREAD = """
@kernel(device='cpu')
def unread(x: In('int32', 34), y: In('float32', 223448), out: Out('int32', 2210)):
    for x0 in range(65):
        for x1 in range(34):
            for r0 in reduce(53):
                for r1 in reduce(62):
                    a = load(y, [3286*x0 + 62*r0 + r1], 'float32')
                    s = reduce('min', a, 'float32')
            b = load(x, [x1], 'int32')
            store(out, [34*x0 + x1], b)
"""


def test_a_part_that_reads_fewer_buffers(tmp_path):
    generator = TritonCodeGenerator("cpu", interpret=True)
    source = generator.generate(parse_kernel(UNREAD))
    (part,) = sequence_of(source).parts
    assert [buffer.name for buffer in part.kernel.buffers] == ["x", "out"]
    (launch,) = generator.build([source], ArtifactStore(tmp_path))
    x, out = torch.arange(34, dtype=torch.int32), torch.zeros(2210, dtype=torch.int32)
    launch(x, torch.zeros(223448), out)
    assert torch.equal(out.view(65, 34), x.expand(65, 34))
