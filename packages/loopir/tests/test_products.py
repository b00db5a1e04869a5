"""Small convolutions of a training step are matrix products on the CPU, with eager's results and
strides.
"""

from __future__ import annotations

import pytest
import torch
from loopir import compile_graph
from loopir.patterns import products
from loopir.testing import EvaluatorCodeGenerator
from primops.testing import trace

aten = torch.ops.aten


def step(
    stride: int | list[int],
    padding: int,
    dilation: int,
    bias: bool,
    wanted: list[bool],
    groups: int = 1,
):
    def fn(x, w, g):
        rest = (
            stride if isinstance(stride, list) else [stride] * 2,
            [padding] * 2,
            [dilation] * 2,
            False,
            [0, 0],
            groups,
        )
        y = aten.convolution(x, w, None, *rest)
        found = aten.convolution_backward(g, x, w, [w.shape[0]] if bias else None, *rest, wanted)
        return (y, *(t for t in found if t is not None))

    return fn


CASES = {
    "pointwise": (1, 1, 0, 1, False, [True, True, False], 0),
    "pointwise with bias": (1, 1, 0, 1, True, [True, True, True], 0),
    "pointwise in steps": (1, 2, 0, 1, False, [True, True, False], 2),
    "window": (3, 1, 1, 1, False, [True, True, False], 2),
    "window in steps": (3, 2, 1, 2, True, [False, True, True], 1),
    "patches": (3, 3, 0, 1, True, [True, True, True], 0),
    "patches that leave a rest": (2, 2, 0, 1, False, [True, True, False], 2),
    "depthwise": (5, 1, 2, 1, False, [True, True, False], 2),
    "depthwise in steps": (4, 2, 1, 1, False, [False, True, False], 1),
    "depthwise in two steps": (4, [1, 2], 1, 1, False, [False, True, False], 1),
}


@pytest.mark.parametrize(
    "layout", [torch.contiguous_format, torch.channels_last], ids=["plain", "channels last"]
)
@pytest.mark.parametrize("name", CASES)
def test_products_equal_convolutions(
    name: str, layout: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    size, stride, padding, dilation, bias, wanted, calls = CASES[name]
    monkeypatch.setattr(products, "LARGE_WEIGHT", 1)
    torch.manual_seed(0)
    groups = 3 if "depthwise" in name else 1
    x, w = (
        torch.randn(2, 3, 6 if name == "patches" else 5, 6),
        torch.randn(3 if groups > 1 else 4, 3 // groups, size, size),
    )
    x = x.contiguous(memory_format=layout)
    y = torch.conv2d(x, w, None, stride, padding, dilation, groups)
    g = torch.randn_like(y).contiguous(memory_format=torch.channels_last)
    fn = step(stride, padding, dilation, bias, wanted, groups)
    host = compile_graph(trace(fn, x, w, g), (x, w, g), codegens={"cpu": EvaluatorCodeGenerator()})
    assert sum("convolution" in op for op in host.extern_ops) == calls
    for result, expected in zip(host(x, w, g), fn(x, w, g), strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
        assert result.stride() == expected.stride()


def test_large_images_and_other_types_stay_convolutions() -> None:
    for x in (torch.randn(2, 3, 9, 9), torch.randn(1, 3, 4, 4, dtype=torch.float64)):
        w = torch.randn(4, 3, 1, 1, dtype=x.dtype)
        fn = step(1, 0, 1, False, [True, True, False])
        g = torch.randn(x.shape[0], 4, *x.shape[2:], dtype=x.dtype)
        host = compile_graph(
            trace(fn, x, w, g), (x, w, g), codegens={"cpu": EvaluatorCodeGenerator()}
        )
        assert sum("convolution" in op for op in host.extern_ops) == 2


@pytest.mark.parametrize("size", [1, 3])
def test_no_images_stay_convolutions(size: int) -> None:
    x, w = torch.randn(0, 3, 6, 6), torch.randn(4, 3, size, size)
    fn = step(1 if size == 1 else 3, 0, 1, True, [True, True, True])
    g = torch.conv2d(x, w, None, 1 if size == 1 else 3)
    host = compile_graph(trace(fn, x, w, g), (x, w, g), codegens={"cpu": EvaluatorCodeGenerator()})
    for result, expected in zip(host(x, w, g), fn(x, w, g), strict=True):
        assert torch.equal(result, expected) and result.stride() == expected.stride()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "layout", [torch.contiguous_format, torch.channels_last], ids=["plain", "channels last"]
)
def test_patches_with_bias(layout: torch.memory_format, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    w, bias = torch.randn(5, 3, 2, 3, dtype=dtype), torch.randn(5, dtype=dtype)
    x = torch.randn(2, 3, 4, 9, dtype=dtype).contiguous(memory_format=layout)

    def fn(x, w, bias):
        return aten.convolution(x, w, bias, [2, 3], [0, 0], [1, 1], False, [0, 0], 1)

    host = compile_graph(
        trace(fn, x, w, bias), (x, w, bias), codegens={"cpu": EvaluatorCodeGenerator()}
    )
    assert host.extern_ops == ("aten.addmm.default",)
    (result,) = host(x, w, bias)
    expected = fn(x, w, bias)
    torch.testing.assert_close(
        result, expected, rtol=2e-2 if dtype is torch.bfloat16 else 1e-4, atol=1e-2
    )
    assert result.stride() == expected.stride()
