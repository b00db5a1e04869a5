"""Numbers that a dtype does not hold: eager's kernels refuse some and wrap others."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
import torchstrata

from integration_tests.repros.outcome import outcome

INF, NAN = float("inf"), float("nan")
MASK = torch.tensor([True, False, True])
CALLS = {
    "full": lambda x, v: torch.full((2,), v, dtype=x.dtype),
    "new_full": lambda x, v: x.new_full((2,), v),
    "full_like": lambda x, v: torch.full_like(x, v),
    "fill_": lambda x, v: x.clone().fill_(v),
    "masked_fill": lambda x, v: x.masked_fill(MASK, v),
    "masked_fill_": lambda x, v: x.clone().masked_fill_(MASK, v),
    "index_fill": lambda x, v: x.index_fill(0, torch.tensor([0]), v),
    "scatter": lambda x, v: x.scatter(0, torch.tensor([1]), v),
    "assignment": lambda x, v: _assigned(x.clone(), v),
    "clamp": lambda x, v: x.clamp(min=v),
    "clamp_max": lambda x, v: x.clamp_max(v),
    "pad": lambda x, v: F.pad(x, (1, 1), value=v),
    "threshold": lambda x, v: F.threshold(x, 1, v),
    "hardtanh": lambda x, v: F.hardtanh(x, 0, v),
    "alpha": lambda x, v: torch.add(x, x, alpha=v),
    "power": lambda x, v: (x**v).nan_to_num(7.0).ne(0),
    "sum": lambda x, v: x + v,
    "product": lambda x, v: x * v,
    "comparison": lambda x, v: x < v,
    "choice": lambda x, v: torch.where(x > 0, x, v),
}


def _assigned(x, v):
    x[1] = v
    return x


def numbers(dtype):
    if dtype.is_floating_point:
        largest = torch.finfo(dtype).max
        return largest, -largest * 1.5, 1e39, 70000, INF, NAN, 2**63
    info = torch.iinfo(dtype)
    return (
        info.max,
        info.max + 1,
        info.min,
        info.min - 1,
        -info.max - 2,
        2.7,
        -2.7,
        info.max + 0.5,
        300.5,
        INF,
        NAN,
        True,
    )


@pytest.fixture(autouse=True)
def _reset():
    torchstrata.reset()


DTYPES = [torch.uint8, torch.int64, torch.float16]
DTYPES += [
    pytest.param(dtype, marks=pytest.mark.slow)
    for dtype in (torch.int8, torch.int32, torch.float32)
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CALLS)
def test_constants_out_of_range(name, dtype):
    x = torch.tensor([0, 1, 5], dtype=dtype)
    for number in numbers(dtype):
        torchstrata.reset()
        expected = outcome(CALLS[name], x, number)
        # Interpreted kernels do: the decision is made before there is code.
        result = outcome(
            torchstrata.compile(lambda x: CALLS[name](x, number), backend="aot_eager"), x
        )
        assert isinstance(result, torch.Tensor) == isinstance(expected, torch.Tensor), (
            number,
            expected,
            result,
        )
        if isinstance(expected, torch.Tensor):
            torch.testing.assert_close(result, expected, equal_nan=True, msg=str(number))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["full", "fill_", "clamp", "pad", "alpha", "power"])
@pytest.mark.parametrize("dynamic", [None, True])
def test_numbers_that_change_and_leave_the_range(name, dynamic):
    x = torch.tensor([0, 1, 5], dtype=torch.uint8)
    compiled = torchstrata.compile(CALLS[name], dynamic=dynamic)
    for number in (3, 5, 7, 255, 256, -1, -256, 2.5, 3.5, 255.5, -0.5):
        expected, result = outcome(CALLS[name], x, number), outcome(compiled, x, number)
        assert isinstance(result, torch.Tensor) == isinstance(expected, torch.Tensor), (
            number,
            expected,
            result,
        )
        if isinstance(expected, torch.Tensor):
            torch.testing.assert_close(result, expected, msg=str(number))
