"""NumPy's numbers keep their dtype in tensors made of them, and arrays have NumPy's layout."""

from __future__ import annotations

import numpy
import pytest
import torch
import torchstrata

NUMBERS = [
    numpy.float64(0.3), numpy.float32(0.3), numpy.float16(0.3), numpy.int64(3), numpy.int32(3),
    numpy.int16(3), numpy.int8(3),
    numpy.uint8(3), numpy.bool_(True), numpy.complex64(1 + 2j), numpy.complex128(1 + 2j),
]  # fmt: skip
NAMES = [type(number).__name__ for number in NUMBERS]


@pytest.fixture(autouse=True)
def _strict(monkeypatch):
    torchstrata.reset()
    monkeypatch.setattr(torchstrata.config, "fallback", "error")


@pytest.mark.parametrize("number", NUMBERS, ids=NAMES)
def test_tensors_of_numbers(number):
    def made(x, number):
        return (
            torch.tensor(number),
            torch.tensor([[number, number], (number, number)]),
            torch.as_tensor([number]),
            torch.asarray(number),
            x + 1,
        )

    compiled, x = torchstrata.compile(made, fullgraph=True), torch.ones(2)
    torch.testing.assert_close(compiled(x, number), made(x, number), rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:Casting complex")
@pytest.mark.parametrize("number", NUMBERS, ids=NAMES)
@pytest.mark.parametrize(
    "function",
    [
        lambda x, n: x * n,
        lambda x, n: torch.add(x, n),
        lambda x, n: torch.where(x > 1, x, n),
        lambda x, n: x.int() + n,
        lambda x, n: torch.full((2,), n),
    ],
)
def test_numbers_as_operands(function, number):
    x = torch.tensor([1.5, 0.0])
    torch.testing.assert_close(
        torchstrata.compile(function)(x, number), function(x, number), rtol=0, atol=0
    )


LAYOUTS = {
    "copy": lambda a: a.T.copy(),
    "copy of permuted": lambda a: numpy.transpose(a.reshape(2, 3, 4), (1, 2, 0)).copy(),
    "function copy": lambda a: numpy.copy(a.T),
    "cumsum": lambda a: a.T.cumsum(1),
    "argsort": lambda a: a.T.argsort(0),
    "sum": lambda a: a.reshape(2, 3, 4).transpose(2, 1, 0).sum(1),
    "mean": lambda a: a.reshape(2, 3, 4).transpose(2, 1, 0).mean(0),
    "stack": lambda a: numpy.stack([a.T, a.T]),
    "concatenate": lambda a: numpy.concatenate([a.T, a.T]),
    "two layouts": lambda a: a.T + a.reshape(6, 4),
    "view": lambda a: a.T,
    "slice": lambda a: a[::2, 1:4] * 1,
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name):
    a = numpy.arange(24.0).reshape(4, 6)
    result, expected = torchstrata.compile(LAYOUTS[name], fullgraph=True)(a), LAYOUTS[name](a)
    numpy.testing.assert_array_equal(result, expected)
    assert result.strides == expected.strides


def test_astype_to_the_same_dtype_copies() -> None:
    def write_copy(a):
        b = a.astype(a.dtype)
        b += 1
        torch.from_numpy(a.astype(numpy.float64)).add_(1)
        return b

    expected, actual = numpy.ones(4), numpy.ones(4)
    assert (torchstrata.compile(write_copy, backend="eager")(actual) == write_copy(expected)).all()
    assert (expected == actual).all()


def test_reversed_array_is_a_view() -> None:
    def write_reversed(a):
        b = a[::-1]
        b[0] = 7
        return b

    expected, actual = numpy.arange(4.0), numpy.arange(4.0)
    other = torchstrata.compile(write_reversed, backend="eager")(actual)
    assert other.strides == write_reversed(expected).strides
    assert (expected == actual).all()


WITH_ONE = {
    "copy_of_transposed": lambda a: a.T.copy().T,
    "copy_of_columns": lambda a: a[:, :2].copy(),
    "row": lambda a: a[:1],
    "columns": lambda a: a[:, 1:2],
}


@pytest.mark.parametrize("backend", ["eager", "torchstrata"])
@pytest.mark.parametrize("name", WITH_ONE)
@pytest.mark.parametrize("rows", [1, 3])
def test_strides_are_numpys_where_a_dimension_has_one_element(rows, name, backend):
    function, array = WITH_ONE[name], numpy.arange(rows * 4, dtype=numpy.float32).reshape(rows, 4)
    found, expected = torchstrata.compile(function, backend=backend)(array), function(array)
    assert (found.strides, found.tolist()) == (expected.strides, expected.tolist())
    assert numpy.may_share_memory(found, array) == numpy.may_share_memory(expected, array)


def test_writes_to_arrays_of_inference_tensors():
    """NumPy writes to the memory; the graph's operator refused to write to such a tensor outside of
    inference mode.
    """

    def function(x):
        with torch.inference_mode():
            y = x + 1
        array = y.detach().numpy()
        array[0] = 2
        return array, y * 2

    torchstrata.reset()
    for found, expected in zip(
        torchstrata.compile(function)(torch.ones(3)), function(torch.ones(3))
    ):
        assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("scalars", [True, False])
def test_an_array_of_tensors(scalars):
    def function(x, y):
        array = numpy.array([x, y])
        return array, numpy.asarray((x.numpy(), y)), torch.as_tensor(array) * 2

    inputs = [torch.tensor(n) if scalars else torch.full((2, 3), n) for n in (1, 2.5)]
    found, expected = (
        call(*inputs) for call in (torchstrata.compile(function, fullgraph=True), function)
    )
    assert [value.dtype for value in found] == [value.dtype for value in expected]
    assert [value.tolist() for value in found] == [value.tolist() for value in expected]
