"""Column sums that a row kernel adds to as it goes."""

from __future__ import annotations

import pytest
import torch
from inductor_triton import TritonCodeGenerator, compile_ptx
from inductor_triton.spec import sequence_of
from loopir import ArtifactStore, check_kernel, evaluate_kernel, parse_kernel

NORM = """
@kernel(device='cuda')
def norm(x: In('{dtype}', {rows}*{columns}), w: In('{dtype}', {columns}), a: InOut('float32', {columns}),
         b: InOut('float32', {columns}), out: Out('{dtype}', {rows}*{columns})):
    for i in range({rows}):
        for r in reduce({columns}):
            v = load(x, [{columns}*i + r], '{dtype}')
            f = cast(v, 'float32')
            g = load(w, [r], '{dtype}')
            h = cast(g, 'float32')
            m = mul(f, h)
            s = reduce('sum', m, 'float32')
            store(a, [r], m, mode='add')
            store(b, [r], f, mode='add')
        for r in reduce({columns}):
            v2 = load(x, [{columns}*i + r], '{dtype}')
            f2 = cast(v2, 'float32')
            d = sub(f2, s)
            e = cast(d, '{dtype}')
            store(out, [{columns}*i + r], e)
"""


def text_of(rows, columns, dtype):
    product = NORM.replace("{rows}*{columns})", str(rows * columns) + ")")
    text = product.format(rows=rows, columns=columns, dtype=dtype)
    return "\n".join(text.split("\n")).replace(",\n         b:", ", b:")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "columns"), [(24, 64), (2000, 20), (33, 100)])
def test_sums_are_those_of_the_evaluator(tmp_path, rows, columns, dtype):
    pytest.importorskip("triton")
    kernel = parse_kernel(text_of(rows, columns, str(dtype).removeprefix("torch.")))
    check_kernel(kernel)
    generator = TritonCodeGenerator(device="cpu", interpret=True)
    source = generator.generate(kernel)
    assert [part.kernel.name for part in sequence_of(source).parts] == ["norm", "norm_combine"]
    assert "atomic" not in source.text
    torch.manual_seed(0)
    tensors = [
        torch.randn(rows * columns).to(dtype),
        torch.randn(columns).to(dtype),
        torch.randn(columns),
        torch.zeros(columns),
    ]
    tensors.append(torch.empty(rows * columns, dtype=dtype))
    expected = [tensor.clone() for tensor in tensors]
    evaluate_kernel(kernel, expected, ())
    (launch,) = generator.build([source], ArtifactStore(tmp_path))
    launch(*tensors)
    for got, wanted in zip(tensors, expected):
        torch.testing.assert_close(
            got, wanted, rtol=1e-5 if got.dtype is torch.float32 else 8e-3, atol=1e-4
        )


def test_machine_code():
    pytest.importorskip("triton")
    source = TritonCodeGenerator().generate(parse_kernel(text_of(1024, 768, "bfloat16")))
    for part in sequence_of(source).parts:
        for capability in (80, 90):
            assert f".target sm_{capability}" in compile_ptx(part, capability)


@pytest.mark.parametrize(
    ("old", "new"), [("store(a, [r]", "store(a, [99 - r]"), ("in range(24)", "in range(3)")]
)
def test_other_places_and_few_rows_use_atomics(old, new):
    source = TritonCodeGenerator().generate(
        parse_kernel(text_of(24, 100, "float32").replace(old, new))
    )
    assert "atomic_add" in source.text


def test_source(golden):
    golden(TritonCodeGenerator().generate(parse_kernel(text_of(1024, 768, "bfloat16"))).text)


SHARED = """
@kernel(device='cpu')
def shared(x: In('float32', 2), total: InOut('float32', s0), out: Out('float32', 2), s0: Size(hint=40)):
    for i in range(2):
        v = load(x, [i], 'float32')
        for r in reduce(s0):
            store(total, [r], v, mode='add')
            s = reduce('sum', v, 'float32')
        store(out, [i], s)
"""


def test_interpreted_atomics_add_one_value_to_many_places(tmp_path):
    kernel = parse_kernel(SHARED)
    generator = TritonCodeGenerator("cpu", interpret=True)
    source = generator.generate(kernel)
    assert "XBLOCK: tl.constexpr = 1\n" in source.text
    (launch,) = generator.build([source], ArtifactStore(tmp_path))
    x, total, out = torch.tensor([1.0, 2.0]), torch.zeros(40), torch.zeros(2)
    launch(x, total, out, 40)
    assert total.tolist() == [3.0] * 40
    assert out.tolist() == [40.0, 80.0]
