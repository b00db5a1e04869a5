"""Matrix products with loops before and after them, in the interpreter against eager."""

from __future__ import annotations

from dataclasses import replace

import primops
import pytest
import torch
import torch.nn.functional as F
from inductor_triton import Config, TritonCodeGenerator, compile_ptx
from inductor_triton.launching.compile import compile_variant, usual_variant
from inductor_triton.products.matmul import generate_matmul
from inductor_triton.spec import launch_spec, sequence_of
from inductor_triton.tuning import recorded
from inductor_triton.tuning.candidates import candidates
from inductor_triton.tuning.selection import format_config, parse_config
from loopir import Options, Template, compile_graph, format_schedule
from loopir.lowering import context, graph
from primops.testing import trace
from symshapes import FakeTensorMode

pytest.importorskip("triton")
aten = torch.ops.aten
DTYPES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])


class Recording(TritonCodeGenerator):
    """Keeps the sources of templates."""

    __slots__ = ("sources",)

    def generate_template(self, template):
        source = super().generate_template(template)
        self.sources.append(source)
        return source


def check(fn, *args, templates=1, tolerance=1e-2):
    """Compares with eager; the sources of the templates."""
    generator = Recording(device="cpu", interpret=True, templates="always")
    generator.sources = []
    graph = primops.decompose(trace(fn, *args))
    host = compile_graph(
        graph, args, codegens={"cpu": generator}, options=Options(check=True, threads=2)
    )
    expected = fn(*args)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for result, reference in zip(host(*args), expected, strict=True):
        torch.testing.assert_close(result, reference, rtol=tolerance, atol=tolerance)
    found = [kernel for kernel in host.program.kernels if isinstance(kernel, Template)]
    assert len(found) == templates, format_schedule(host.program)
    return generator.sources


def random(*shape, dtype=torch.float16):
    return torch.randn(*shape).to(dtype) / 4


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@DTYPES
@pytest.mark.parametrize("m", [16, 70, 128])
def test_linear_and_gelu(m, dtype):
    x, w, b = random(m, 48, dtype=dtype), random(96, 48, dtype=dtype), random(96, dtype=dtype)
    check(lambda x, w, b: F.gelu(F.linear(x, w, b)), x, w, b)


def test_residual_of_another_layout_and_three_dimensions():
    x, w = random(2, 20, 32), random(40, 32)
    check(lambda x, w, r: F.linear(x, w).relu() + r.transpose(1, 2), x, w, random(2, 40, 20))


@DTYPES
def test_addmm_scales_and_bmm_with_batches(dtype):
    a, b = random(3, 20, 24, dtype=dtype), random(3, 24, 40, dtype=dtype)
    check(lambda a, b: torch.bmm(a, b).sigmoid() * 2, a, b)
    check(
        lambda c, a, b: torch.baddbmm(c, a, b, beta=0.5, alpha=2).relu(),
        random(3, 1, 40, dtype=dtype),
        a,
        b,
    )
    check(
        lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2).relu(),
        random(20, 1, dtype=dtype),
        a[0],
        b[0],
    )


def test_prologues_cast_and_dequantise():
    x, q = torch.randn(20, 48), torch.randint(-128, 127, (40, 48), dtype=torch.int8)
    scale = torch.rand(40, 1) / 64
    sources = check(lambda x, q, s: torch.mm(x.half(), (q.float() * s).half().t()) + 1, x, q, scale)
    assert len(sources[0].kernel.prologues) == 2


def test_a_product_that_is_used_twice_is_rounded_as_in_memory():
    def fn(x, w):
        y = x @ w
        return y, y.relu()

    check(fn, random(32, 16), random(16, 64))


def test_columns_of_the_left_operand_and_views():
    x, w = random(48, 70).t()[:, 8:], random(41, 100)[1:, ::2][:, :32]
    check(lambda x, w: torch.tanh(x @ w), x[:, :40].contiguous().t().contiguous().t(), w)


def test_gather_before_a_product_checks_its_index():
    table, w, index = random(50, 32), random(32, 40), torch.randint(50, (24,))
    check(lambda i, t, w: torch.relu(t[i] @ w), index, table, w)


@DTYPES
@pytest.mark.parametrize(("m", "n", "columns"), [(200, 256, 128), (130, 520, 256)])
@pytest.mark.parametrize("transposed", [False, True])
def test_descriptors_and_a_persistent_grid(monkeypatch, dtype, m, n, columns, transposed):
    config = Config(x=columns, y=64, r=32, num_warps=4, num_stages=3, grid=3, tma=True)
    monkeypatch.setattr(recorded, "matmul_config", lambda template: config)
    x, b = random(m, 80, dtype=dtype), random(n, dtype=dtype)
    w = random(80, n, dtype=dtype).t() if transposed else random(n, 80, dtype=dtype)
    (source,) = check(lambda x, w, b: F.gelu(F.linear(x, w, b)), x, w, b)
    (part,) = sequence_of(source).parts
    assert source.text.count("make_tensor_descriptor") == 3
    for capability in (80, 90):
        assert ("cp.async.bulk.tensor" in compile_ptx(part, capability)) == (capability == 90)
    spec = launch_spec(part)
    aligned = usual_variant(spec)
    odd = replace(aligned, divisible=(False, *aligned.divisible[1:]))
    binary = compile_variant(part, odd, 90)
    assert "bulk.tensor" not in binary.ptx, "the copy engine takes multiples of 16 only"
    assert binary.ptx.count(".param .u64 .ptr") == compile_variant(part, aligned, 90).ptx.count(
        ".param .u64 .ptr"
    )


@pytest.mark.parametrize("by_engine", [False, True])
def test_columns_that_fill_halves_of_tiles(monkeypatch, by_engine):
    config = Config(
        x=256, y=64, r=32, num_warps=4, num_stages=3, grid=3 if by_engine else 0, tma=by_engine
    )
    monkeypatch.setattr(recorded, "matmul_config", lambda template: config)
    check(
        lambda x, w, b: F.linear(x, w, b).relu().float() * 2,
        random(100, 64),
        random(384, 64),
        random(384),
    )


@pytest.mark.parametrize("parts", [2, 4])
def test_the_sum_in_parts(monkeypatch, parts):
    config = Config(x=32, y=16, r=16, num_stages=3, split=parts)
    monkeypatch.setattr(recorded, "matmul_config", lambda template: config)
    x, w, b = random(40, 128), random(72, 128), random(72)
    (source,) = check(lambda x, w, b: F.gelu(F.linear(x, w, b)) + x[:, :72], x, w, b)
    assert len(sequence_of(source).parts) == 2
    for part in sequence_of(source).parts:
        assert compile_ptx(part, 90)
    check(
        lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2).relu(),
        random(40, 1),
        x,
        random(128, 72),
    )
    check(
        lambda x, q: torch.mm(x, (q.float() * 0.25).half()) + 1,
        x,
        torch.randint(-8, 8, (128, 48), dtype=torch.int8),
    )
    assert parse_config(format_config(config)) == config


@pytest.fixture
def tf32():
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    matmul.fp32_precision = "tf32"
    yield
    matmul.fp32_precision = before


def test_float32_is_exact_by_default():
    x, w, b = torch.randn(70, 100), torch.randn(90, 100), torch.randn(90)
    (source,) = check(lambda x, w, b: F.gelu(F.linear(x, w, b)), x, w, b, tolerance=1e-5)
    assert "input_precision='ieee'" in source.text
    for capability in (80, 90):
        assert "tf32" not in compile_ptx(source, capability)
    check(
        lambda a, b: torch.bmm(a, b).sigmoid() * 2,
        torch.randn(3, 20, 24),
        torch.randn(3, 24, 40),
        tolerance=1e-5,
    )
    check(lambda x, w: torch.mm(x.float(), w.t()).relu(), random(20, 100), w, tolerance=1e-5)


def test_float32_in_fewer_bits(tf32):
    x, w, b = torch.randn(256, 512), torch.randn(256, 512), torch.randn(256)
    (source,) = check(
        lambda x, w, b: F.gelu(F.linear(x, w, b)) + x[:, :256], x, w, b, tolerance=5e-2
    )
    assert "cvt.rna.tf32.f32" in compile_ptx(source, 80)
    assert "m16n8k8.row.col.f32.tf32.tf32.f32" in compile_ptx(source, 80)
    assert "wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32" in compile_ptx(source, 90)
    check(lambda x, eye: torch.mm(x, eye).relu(), (x * 8).round(), torch.eye(512), tolerance=0)
    above = torch.full((16, 16), 1 + 3 * 2**-12)
    generator = TritonCodeGenerator(device="cpu", interpret=True, templates="always")
    graph = primops.decompose(trace(lambda x, eye: torch.mm(x, eye).relu(), above, torch.eye(16)))
    (result,) = compile_graph(graph, (above, torch.eye(16)), codegens={"cpu": generator})(
        above, torch.eye(16)
    )
    assert torch.equal(result, torch.full((16, 16), 1 + 2**-10))
    assert all(config.tf32 for config in candidates(source.kernel))
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    assert not any(config.tf32 for config in candidates(source.kernel))


def convolution(x, w, b=None, r=None):
    y = F.conv2d(x, w, b).relu()
    return y if r is None else y + r


@DTYPES
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_convolution_of_single_points(dtype, layout):
    x, w, r = (random(*s, dtype=dtype) for s in ((2, 24, 7, 5), (40, 24, 1, 1), (2, 40, 7, 5)))
    x = x.to(memory_format=layout)
    (source,) = check(convolution, x, w, random(40, dtype=dtype), r.to(memory_format=layout))
    assert source.kernel.op is (
        aten.addmm.default if layout is torch.channels_last else aten.baddbmm.default
    )
    assert "//" not in source.text.split("tl.dot")[1]
    assert "mma" in compile_ptx(source, 90)
    check(convolution, x, w, None, r)
    for part in (x[:1], x[..., :1], x[:, :, :1], x[:1, :, :1, :1]):
        (source,) = check(convolution, part.contiguous(memory_format=torch.channels_last), w)
        assert "%" not in source.text.split("tl.dot")[1]
    check(convolution, x, w, None, r.to(memory_format=torch.channels_last))
    check(lambda x, w: F.conv2d(x * 2, (w.float() * 0.5).to(dtype)).sigmoid(), x, w)
    check(lambda x, w: F.conv1d(x[..., 0], w[..., 0]).relu(), x, w)


def test_convolutions_that_are_no_products():
    x, w = random(2, 16, 6, 6), random(16, 16, 1, 1)
    for options in ({"stride": 2}, {"padding": 1}):
        check(lambda x, w, options=options: F.conv2d(x, w, **options).relu(), x, w, templates=0)
    check(lambda x, w: F.conv2d(x, w, groups=2).relu(), x, w[:, :8], templates=0)
    check(lambda x, w: F.conv2d(x, w).relu(), x, random(16, 16, 3, 3), templates=0)
    check(convolution, x.float(), w.float(), templates=0)
    check(lambda x, w: F.conv_transpose2d(x, w).relu(), x, w, templates=0)


@pytest.mark.parametrize("size", [(500, 12, 16, 20), (1, 1, 2048, 64), (1, 300, 64, 9)])
def test_tiles_of_small_products(size):
    batch, m, k, n = size
    (source,) = check(
        lambda a, b: torch.bmm(a, b).relu(),
        random(batch, m, k),
        random(batch, k, n),
        tolerance=3e-2,
    )
    options = candidates(source.kernel)
    assert any(config.y * config.x <= 1024 for config in options)
    assert len(options) <= 40
    for config in (
        config for config in options if min(config.x, config.y) == 16 and config.split == 1
    ):
        assert "mma" in compile_ptx(generate_matmul(source.kernel, config), 90)


def test_machine_code():
    x, w, b = random(256, 512), random(256, 512), random(256)
    (source,) = check(lambda x, w, b: F.gelu(F.linear(x, w, b)), x, w, b)
    assert "mma.sync" in compile_ptx(source, 80)
    assert "wgmma" in compile_ptx(source, 90)


def test_what_is_refused():
    generator = TritonCodeGenerator()
    x, w = random(16, 32), random(32, 4096)
    graph = primops.decompose(trace(lambda x, w: (x @ w).relu(), x, w))
    host = compile_graph(
        graph, (x, w), codegens={"cpu": TritonCodeGenerator(device="cpu", interpret=True)}
    )
    assert host.extern_count == 1
    assert "measured to gain" in format_schedule(host.program)
    assert generator.templates == "model"
    check(lambda x, w: (x @ w).relu(), x.double(), w.double(), templates=0)


@pytest.mark.parametrize(("size", "layout", "taken"), [
    ((1, 64, 128, 7), torch.channels_last, True),
    ((1, 64, 128, 7), torch.contiguous_format, False),
    ((1, 64, 128, 6), torch.channels_last, False),
    ((1, 64, 96, 7), torch.channels_last, False),
    ((1, 2048, 64, 7), torch.channels_last, False),
])  # fmt: skip
def test_convolutions_that_the_model_takes(size, layout, taken):
    images, inputs, channels, side = size
    x, w = (
        random(images, inputs, side, side).to(memory_format=layout),
        random(channels, inputs, 1, 1),
    )
    graph = primops.decompose(trace(convolution, x, w))
    host = compile_graph(
        graph, (x, w), codegens={"cpu": TritonCodeGenerator(device="cpu", interpret=True)}
    )
    assert host.extern_count == (not taken)
    torch.testing.assert_close(host(x, w)[0], convolution(x, w), rtol=2e-2, atol=2e-2)


def test_rows_of_float32_that_are_not_aligned_are_exact(tf32):
    sources = check(
        lambda x, w: (x @ w).relu(), torch.randn(40, 48), torch.randn(48, 47), tolerance=1e-5
    )
    assert "ieee" in sources[0].text


def test_source(golden):
    x, w, b = random(256, 512), random(256, 512), random(256)
    (source,) = check(lambda x, w, b: F.gelu(F.linear(x, w, b)) + x[:, :256], x, w, b)
    golden(source.text)


def test_source_of_a_convolution(golden):
    x, w, b = random(4, 64, 14, 14), random(96, 64, 1, 1), random(96)
    (source,) = check(
        convolution, x.to(memory_format=torch.channels_last), w, b, random(4, 96, 14, 14)
    )
    golden(source.text)


def test_source_of_float32(golden, tf32):
    x, w, b = torch.randn(256, 512), torch.randn(256, 512), torch.randn(256)
    (source,) = check(lambda x, w, b: F.linear(x, w, b).relu(), x, w, b, tolerance=5e-2)
    golden(source.text)


def test_symbolic_sizes():
    mode = FakeTensorMode()
    w, b = random(40, 48), random(40)
    x = mode.from_real(random(20, 48), source="x", dynamic_dims=[0])
    with mode:
        graph = primops.decompose(
            trace(lambda x, w, b: F.linear(x, w, b).relu(), x, mode.from_real(w), mode.from_real(b))
        )
    generator = TritonCodeGenerator(device="cpu", interpret=True, templates="always")
    host = compile_graph(graph, (x, w, b), codegens={"cpu": generator}, options=Options(check=True))
    assert any(isinstance(kernel, Template) for kernel in host.program.kernels)
    for rows in (20, 3, 130):
        x = random(rows, 48)
        torch.testing.assert_close(host(x, w, b)[0], F.linear(x, w, b).relu(), rtol=1e-2, atol=1e-2)


def eighth(*shape, dtype=torch.float8_e4m3fn):
    return torch.randn(*shape).to(dtype)


def scaled(x, w, s, t, bias=None, fast=False):
    y = torch._scaled_mm(x, w, s, t, bias, out_dtype=torch.bfloat16, use_fast_accum=fast)
    return torch.relu(y.float() - 1).bfloat16()


@pytest.mark.parametrize(
    "dtypes", [(torch.float8_e4m3fn,) * 2, (torch.float8_e5m2, torch.float8_e4m3fn)]
)
@pytest.mark.parametrize("m", [16, 70])
def test_float8_with_scales(dtypes, m):
    x, w = eighth(m, 80, dtype=dtypes[0]), eighth(96, 80, dtype=dtypes[1]).t()
    (source,) = check(
        scaled, x, w, torch.tensor(0.5), torch.tensor(0.75), random(96, dtype=torch.bfloat16)
    )
    assert source.text.count("max_num_imprecise_acc") == 1
    (source,) = check(scaled, x, w, torch.rand(m, 1), torch.rand(1, 96), None, True)
    assert "max_num_imprecise_acc" not in source.text
    assert "wgmma" in compile_ptx(generate_matmul(source.kernel, Config(x=64, y=64, r=64)), 90)


def test_float8_made_before_the_product(monkeypatch):
    def fn(x, w, s, t):
        return scaled((x / s).clamp(-448, 448).to(torch.float8_e4m3fn), w, s, t)

    for module in (context, graph):
        monkeypatch.setattr(module, "LOOP_DTYPES", context.LOOP_DTYPES | {torch.float8_e4m3fn})
    (source,) = check(
        fn,
        torch.randn(40, 64),
        eighth(48, 64).t(),
        torch.tensor(0.5),
        torch.tensor(2.0),
        tolerance=4e-2,
    )
    assert len(source.kernel.prologues) == 1


def test_float8_that_stays_with_the_library():
    x, w, s, t = eighth(32, 64), eighth(48, 64).t(), torch.tensor(0.5), torch.tensor(2.0)
    check(lambda x, w, s, t: torch._scaled_mm(x, w, s, t).float() + 1, x, w, s, t, templates=0)


def test_float8_by_descriptors(monkeypatch):
    config = Config(x=128, y=64, r=64, num_warps=4, num_stages=3, grid=3, tma=True)
    monkeypatch.setattr(recorded, "matmul_config", lambda template: config)
    x, w = eighth(200, 160), eighth(256, 160).t()
    (source,) = check(scaled, x, w, torch.rand(200, 1), torch.rand(1, 256))
    (part,) = sequence_of(source).parts
    text = compile_ptx(part, 90)
    assert "cp.async.bulk.tensor" in text
    assert "wgmma" in text


def grouped(a, b, ends=None):
    return torch._grouped_mm(a, b, offs=ends).sigmoid() * 2


def part_ends(extent, groups=5):
    inner = torch.randint(extent, (groups - 1,)).sort().values // 8 * 8
    return torch.cat([inner, torch.tensor([extent])]).int()


GROUPED = pytest.mark.parametrize(("left", "right", "along"), [
    ((200, 48), (5, 48, 72), 200), ((5, 40, 48), (48, 200), 200), ((40, 200), (200, 72), 200),
    ((5, 40, 48), (5, 48, 72), 0),
])  # fmt: skip


def operand(shape, turned):
    *batch, m, n = shape
    return (
        random(*batch, n, m, dtype=torch.bfloat16).transpose(-1, -2)
        if turned
        else random(*shape, dtype=torch.bfloat16)
    )


@GROUPED
@pytest.mark.parametrize("turned", [False, True])
def test_groups(left, right, along, turned):
    ends = (part_ends(along),) if along else ()
    (source,) = check(grouped, operand(left, turned), operand(right, not turned), *ends)
    assert "mma.sync" in compile_ptx(source, 80)


def test_groups_that_are_empty_or_all():
    a, b = operand((64, 32), False), operand((4, 32, 40), True)
    for ends in ([0, 0, 64, 64], [64, 64, 64, 64], [0, 0, 0, 64], [16, 32, 48, 64]):
        check(grouped, a, b, torch.tensor(ends, dtype=torch.int32))
    c, d = operand((24, 64), True), operand((64, 40), False)
    check(grouped, c, d, torch.tensor([0, 32, 32, 64], dtype=torch.int32))


def test_rows_beyond_the_groups_are_left_alone():
    a, b = operand((64, 32), False), operand((4, 32, 40), True)
    host = compile_graph(
        primops.decompose(
            trace(
                lambda a, b, e: grouped(a, b, e),
                a,
                b,
                torch.tensor([8, 8, 16, 24], dtype=torch.int32),
            )
        ),
        (a, b, torch.tensor([8, 8, 16, 24], dtype=torch.int32)),
        codegens={"cpu": TritonCodeGenerator(device="cpu", interpret=True, templates="always")},
    )
    ends = torch.tensor([8, 8, 16, 24], dtype=torch.int32)
    torch.testing.assert_close(
        host(a, b, ends)[0][:24], grouped(a, b, ends)[:24], rtol=1e-2, atol=1e-2
    )


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("left", "right"), [((200, 128), (5, 128, 136)), ((5, 72, 128), (128, 200))]
)
def test_groups_by_descriptors(monkeypatch, left, right, turned):
    config = Config(x=64, y=64, r=64, num_warps=4, num_stages=3, grid=3, tma=True)
    monkeypatch.setattr(recorded, "matmul_config", lambda template: config)
    (source,) = check(grouped, operand(left, turned), operand(right, not turned), part_ends(200))
    (part,) = sequence_of(source).parts
    assert source.text.count("make_tensor_descriptor") == 2
    assert "cp.async.bulk.tensor" in compile_ptx(part, 90)


def test_bias_is_computed_before():
    check(
        lambda c, a, b: torch.addmm(c * 2, a, b).relu(), random(40), random(24, 32), random(32, 40)
    )


def test_sources_of_float8_and_groups(golden):
    first = check(scaled, eighth(64, 64), eighth(64, 64).t(), torch.rand(64, 1), torch.rand(1, 64))
    second = check(grouped, operand((200, 48), False), operand((5, 48, 72), True), part_ends(200))
    golden(first[0].text + second[0].text)


@DTYPES
@pytest.mark.parametrize("n", [8, 60, 128, 200])
def test_rows_are_reduced_after_the_product(dtype, n):
    x, w, b = random(70, 48, dtype=dtype), random(n, 48, dtype=dtype), random(n, dtype=dtype)
    (source,) = check(lambda x, w, b: torch.softmax(F.linear(x, w, b), -1), x, w, b)
    assert source.text.count("tl.dot(") == 1
    for capability in (80, 90):
        compile_ptx(source, capability)
    check(lambda x, w, b: F.layer_norm(F.linear(x, w), (n,), b, b), x, w, b, tolerance=3e-2)
    check(lambda x, w, b: F.rms_norm(F.linear(x, w, b) + 1, (n,)), x, w, b)


def test_row_results_beside_the_product():
    def fn(x, w):
        y = torch.relu(x @ w)
        return y, y.amax(-1), y.float().sum(-1, keepdim=True)

    check(fn, random(2, 35, 48).view(70, 48), random(48, 96))
    check(lambda x, w: torch.softmax(F.linear(x, w), -1), random(3, 5, 7, 32), random(60, 32))
    check(lambda a, b: torch.softmax(a @ b, -1), random(4, 40, 32), random(4, 32, 60))
    check(lambda x, w: (x @ w).sum(), random(64, 32), random(32, 32), templates=0)
    check(lambda x, w: (x @ w).relu().sum(0), random(64, 32), random(32, 32), templates=0)
    check(lambda x, w: torch.softmax(x @ w, -1), random(20, 32), random(32, 300), templates=0)
    check(
        lambda x, w: torch.softmax(x @ w, -1),
        torch.randn(40, 32),
        torch.randn(32, 50),
        tolerance=1e-5,
    )


def test_source_of_rows(golden):
    (source,) = check(
        lambda x, w: torch.softmax(F.linear(x, w), -1), random(256, 64), random(60, 64)
    )
    golden(source.text)


def test_symbolic_rows_of_groups_and_of_float8():
    ends = torch.tensor([8, 8, 40], dtype=torch.int32)
    a, b = operand((40, 32), False), operand((3, 32, 40), True)
    x, w = eighth(40, 32), eighth(48, 32).t()
    cases = [
        (grouped, [a, b, ends], (0,)),
        (scaled, [x, w, torch.rand(40, 1), torch.rand(1, 48)], (0, 2)),
    ]
    for fn, args, dynamic in cases:
        mode = FakeTensorMode()
        fakes = [
            mode.from_real(arg, source=f"a{i}", dynamic_dims=[0] if i in dynamic else [])
            for i, arg in enumerate(args)
        ]
        with mode:
            graph = primops.decompose(trace(fn, *fakes))
        generator = TritonCodeGenerator(device="cpu", interpret=True, templates="always")
        host = compile_graph(graph, args, codegens={"cpu": generator}, options=Options(check=True))
        assert any(isinstance(kernel, Template) for kernel in host.program.kernels)
        for rows in (40, 64, 130):
            given = [
                torch.cat([arg] * 4)[:rows] if i in dynamic else arg for i, arg in enumerate(args)
            ]
            result, expected = host(*given)[0], fn(*given)
            known = min(rows, 40) if fn is grouped else rows
            torch.testing.assert_close(result[:known], expected[:known], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("offset", [0, 5, 3 << 40, (3 << 40) + 1])
@pytest.mark.parametrize("draw", [primops.prims.uniform, primops.prims.uniform16])
def test_random_masks_after_a_product(draw, offset):
    """Each mask of a program has 2^40 numbers of its own, so that counters need 64 bits."""
    x, w, seed = random(32, 64), random(64, 128), torch.tensor(7)
    mask = draw(seed, shape=(32, 128), offset=offset) < 0.75
    gm = primops.decompose(trace(lambda x, w, m, s: torch.where(m, x @ w, 0), x, w, mask, seed))
    *_, old, last = (node for node in gm.graph.nodes if node.op == "placeholder")
    with gm.graph.inserting_after(last):
        drawn = gm.graph.call_function(draw, (last,), {"shape": (32, 128), "offset": offset})
    with gm.graph.inserting_after(drawn):
        below = gm.graph.call_function(primops.prims.lt, (drawn, 0.75))
    drawn.meta["val"] = primops.TensorMeta.from_tensor(torch.empty(32, 128))
    below.meta["val"] = primops.TensorMeta.from_tensor(mask)
    old.replace_all_uses_with(below)
    generator = Recording(device="cpu", interpret=True, templates="always")
    generator.sources = []
    host = compile_graph(gm, (x, w, mask, seed), codegens={"cpu": generator})
    expected = torch.where(mask, x @ w, 0)
    torch.testing.assert_close(host(x, w, mask, seed)[0], expected, rtol=1e-2, atol=1e-2)
    assert ".visible .entry" in compile_ptx(generator.sources[0])
