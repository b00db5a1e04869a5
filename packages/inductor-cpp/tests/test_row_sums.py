"""Sums of columns inside kernels that work on rows: per thread, added up in order."""

from __future__ import annotations

import pytest
import torch
from inductor_cpp import kernel_text
from loopir import parse_kernel

ROWS = """
@kernel(device='cpu', vector='r1')
def rows_of(
    in0: In('{dtype}', {length}*s0), in1: In('float32', {length}), inout0: InOut('float32', {length}),
    inout1: InOut('float32', {length}), out0: Out('{dtype}', {length}*s0), s0: Size(hint={rows})
):
    for p0 in range(s0):
        for r0 in reduce({depth}):
            for r1 in reduce({columns}):
                v = load(in0, [{length}*p0 + {columns}*r0 + r1], '{dtype}')
                x = cast(v, 'float32')
                w = load(in1, [{columns}*r0 + r1], 'float32')
                y = mul(x, w)
                store(inout0, [{columns}*r0 + r1], y, mode='add')
                t = reduce('sum', y, 'float32')
        for r0 in reduce({depth}):
            for r1 in reduce({columns}):
                v1 = load(in0, [{length}*p0 + {columns}*r0 + r1], '{dtype}')
                x1 = cast(v1, 'float32')
                z = sub(x1, t)
                store(inout1, [{columns}*r0 + r1], z, mode='add')
                o = cast(z, '{dtype}')
                store(out0, [{length}*p0 + {columns}*r0 + r1], o)
"""


def text_of(rows: int, columns: int, depth: int = 1, dtype: str = "float32") -> str:
    return ROWS.format(rows=rows, columns=columns, depth=depth, length=columns * depth, dtype=dtype)


def inputs_of(rows: int, length: int, dtype: str = "float32") -> list[torch.Tensor]:
    kind = getattr(torch, dtype)
    sums = torch.randn(length), torch.randn(length)
    return [
        torch.randn(rows * length).to(kind),
        torch.randn(length),
        *sums,
        torch.zeros(rows * length, dtype=kind),
    ]


@pytest.fixture(params=[1, 3])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sums_of_columns(harness_any, threads: int, dtype: str) -> None:
    torch.manual_seed(0)
    for rows in (0, 1, 7, 100, 333):
        for columns, depth in ((1, 1), (40, 1), (700, 1), (33, 3)):
            tensors = inputs_of(rows, columns * depth, dtype)
            rounding = (
                {"rtol": 2e-2, "atol": 2e-2}
                if dtype == "bfloat16"
                else {"rtol": 1e-4, "atol": 1e-3}
            )
            harness_any.add(
                text_of(rows, columns, depth, dtype), *tensors, sizes=[rows], **rounding
            )
    harness_any.compare()


def test_the_same_threads_add_up_to_the_same_bits(harness, threads: int) -> None:
    kernel = parse_kernel(text_of(400, 512))
    (launch,) = harness.build(kernel)
    tensors, results = inputs_of(400, 512), []
    for _ in range(5):
        fresh = [tensor.clone() for tensor in tensors]
        launch(*fresh, 400)
        results.append(fresh[2:4])
    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other))


def test_long_sums_are_exact_enough(harness, threads: int) -> None:
    rows, columns = 100_000, 16
    (launch,) = harness.build(parse_kernel(text_of(rows, columns)))
    tensors = inputs_of(rows, columns)
    tensors[0] += 1
    expected = tensors[2].double() + (
        tensors[0].view(rows, columns).double() * tensors[1].double()
    ).sum(0)
    launch(*tensors, rows)
    torch.testing.assert_close(tensors[2].double(), expected, rtol=1e-6, atol=1e-3)


def test_text(golden) -> None:
    golden(kernel_text(parse_kernel(text_of(64, 512))))


SIDE_BY_SIDE = """
@kernel(device='cpu', vector='p1')
def side_by_side(
    in0: In('float32', 40*{points}), inout0: InOut('float32', 10), inout1: InOut('{wide}', 4), out0: Out('float32', 4*{points})
):
    for p0 in range(4):
        for p1 in range({points}):
            for r0 in reduce(10):
                v = load(in0, [{points}*(10*p0 + r0) + p1], 'float32')
                store(inout0, [r0], v, mode='add')
                w = cast(v, '{wide}')
                store(inout1, [p0], w, mode='add')
                t = reduce('sum', v, 'float32')
            store(out0, [{points}*p0 + p1], t)
"""


@pytest.mark.parametrize("wide", ["float32", "float64"])
def test_rows_side_by_side_add_their_total(harness_any, threads: int, wide: str) -> None:
    for points in (1, 5, 49, 3000):
        text = SIDE_BY_SIDE.format(points=points, wide=wide)
        tensors = (
            torch.randn(40 * points),
            torch.randn(10),
            torch.randn(4).to(getattr(torch, wide)),
            torch.zeros(4 * points),
        )
        harness_any.add(text, *tensors, rtol=1e-4, atol=1e-3)
    assert "scatter_add" not in kernel_text(parse_kernel(text))
    harness_any.compare()


TWICE = """
@kernel(device='cpu', vector='r0')
def twice(in0: In('float32', 2560), inout0: InOut('float32', 40), out0: Out('float32', 64)):
    for p0 in range(64):
        for r0 in reduce(40):
            v = load(in0, [40*p0 + r0], 'float32')
            store(inout0, [r0], v, mode='add')
            w = mul(v, v)
            store(inout0, [r0], w, mode='add')
            t = reduce('sum', v, 'float32')
        store(out0, [p0], t)
"""


def test_two_sums_in_one_buffer(harness, threads: int) -> None:
    harness.add(TWICE, torch.randn(2560), torch.randn(40), torch.zeros(64), rtol=1e-4, atol=1e-3)
    harness.compare()


OTHER_PLACES = """
@kernel(device='cpu', vector='r0')
def scattered(in0: In('float32', 640), inout0: InOut('float32', 11), out0: Out('float32', 64)):
    for p0 in range(64):
        for r0 in reduce(10):
            v = load(in0, [10*p0 + r0], 'float32')
            store(inout0, [{place}], v, mode='add')
            t = reduce('sum', v, 'float32')
        store(out0, [p0], t)
"""


@pytest.mark.parametrize("place", ["r0 + 1", "10 - r0", "0"])
def test_other_places_are_added_to_one_by_one(harness_any, place: str) -> None:
    text = OTHER_PLACES.format(place=place)
    assert "inout0_sums" not in kernel_text(parse_kernel(text))
    harness_any.add(text, torch.randn(640), torch.randn(11), torch.zeros(64), rtol=1e-4, atol=1e-4)
    harness_any.compare()
