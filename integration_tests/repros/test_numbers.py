"""Numbers that graphs take, compute and return: floats that change, items, negative bases."""

from __future__ import annotations

import math

import bytecode_dynamo
import pytest
import torch
import torch.nn.functional as F
import torchstrata


@pytest.fixture(autouse=True)
def _strict(monkeypatch):
    torchstrata.reset()
    monkeypatch.setattr(torchstrata.config, "fallback", "error")


def returned(x, f):
    return x * 2 + f, f * 3, min(0.5, 1 / (f**0.5)), max(f, x.numel() / 2)


def across_a_break(x, f):
    smaller, least = f**-0.8, min(0.1, 1 / f)
    norm = x.norm().item()
    return x * smaller * least + norm, smaller, least


def without_a_graph(x, f):
    smaller = f**-0.8
    bytecode_dynamo.graph_break()
    return x * smaller, smaller


@pytest.mark.parametrize("function", [returned, across_a_break, without_a_graph])
@pytest.mark.parametrize("backend", ["torchstrata", "eager"])
@pytest.mark.parametrize("dynamic", [None, True])
def test_floats_that_change_come_back_as_floats(function, backend, dynamic):
    compiled = torchstrata.compile(function, backend=backend, dynamic=dynamic)
    for f in (1.0, 2.0, 3.0, 5.5):
        x = torch.randn(3)
        result, expected = compiled(x, f), function(x, f)
        torch.testing.assert_close(result[0], expected[0])
        assert [(type(v), v) for v in result[1:]] == [(type(v), v) for v in expected[1:]]


def divided(x, f):
    return x * (f % 0.7), x + f // 0.7, f % 0.1, divmod(f, 2.0)


def rounded(x, f):
    return (
        x * round(f),
        round(f, 1),
        math.floor(f),
        math.ceil(f * 2),
        abs(-f),
        math.sqrt(f),
        math.log(f + 1),
    )


def of_a_size(x, f):
    n = int(x.shape[0] * f)
    return x[:n] * n, x.shape[0] * f, n // 2


@pytest.mark.parametrize("function", [divided, rounded, of_a_size])
@pytest.mark.parametrize("backend", ["torchstrata", "eager"])
@pytest.mark.parametrize("dynamic", [None, True])
def test_floats_that_change_share_a_graph(function, backend, dynamic):
    compiled = torchstrata.compile(function, backend=backend, dynamic=dynamic)
    for f in (2.6, 5.1, 3.3, 8.9, 10.1, 11.7):
        x = torch.randn(130)
        result, expected = compiled(x, f), function(x, f)
        torch.testing.assert_close(result, expected, rtol=1e-6, atol=0)
        assert [(type(v), v) for v in result if not isinstance(v, torch.Tensor)] == [
            (type(v), v) for v in expected if not isinstance(v, torch.Tensor)
        ]
    assert torchstrata.counters["graphs"] == 2


def test_what_a_float_makes_may_fail():
    def inverse(x, f):
        return x / (1.0 / (f - 2.5)), x * (f - 3.0) ** 0.5

    compiled = torchstrata.compile(inverse)
    for f in (3.5, 4.5, 5.5, 2.75, 6.5):
        x = torch.randn(3)
        try:
            expected = inverse(x, f)
        except Exception as error:
            with pytest.raises(type(error)):
                compiled(x, f)
        else:
            torch.testing.assert_close(compiled(x, f), expected)
    with pytest.raises(ZeroDivisionError):
        compiled(torch.randn(3), 2.5)


def test_a_float_of_an_attribute_stays_a_float():
    settings = {"rate": 1.0}

    def decay(x):
        settings["rate"] = settings["rate"] * 0.5
        return x * settings["rate"]

    compiled = torchstrata.compile(decay, fullgraph=True)
    for step in range(1, 5):
        torch.testing.assert_close(compiled(torch.ones(3)), torch.full((3,), 0.5**step))
        assert type(settings["rate"]) is float


@pytest.mark.parametrize("read", [torch.Tensor.sum, torch.Tensor.argmax])
def test_items_in_a_graph(read):
    def scaled(x):
        value = read(x).item()
        return x * value, value, value * 2

    with bytecode_dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torchstrata.compile(scaled, fullgraph=True)
        for x in (torch.tensor([1.0, 3.0, 2.0]), torch.tensor([5.0, 1.0, 7.0])):
            result, expected = compiled(x), scaled(x)
            torch.testing.assert_close(result[0], expected[0])
            assert result[1:] == expected[1:] and type(result[1]) is type(expected[1])


@pytest.mark.parametrize("base", [-2, -2.5])
@pytest.mark.parametrize("backend", ["torchstrata", "eager"])
def test_a_negative_base(base, backend):
    x = torch.tensor([0, 1, 2, 3])
    compiled = torchstrata.compile(lambda x: base**x, backend=backend, fullgraph=True)
    torch.testing.assert_close(compiled(x), base**x)


def test_adafactor_steps():
    def losses(wrap):
        torch.manual_seed(0)
        layer = torch.nn.Linear(3, 4)
        optimizer = torch.optim.Adafactor(layer.parameters(), lr=0.1)

        def step(x):
            optimizer.zero_grad()
            loss = layer(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        call = wrap(step)
        return torch.stack([call(torch.randn(5, 3)) for _ in range(4)])

    torch.testing.assert_close(losses(torchstrata.compile), losses(lambda f: f))


@pytest.mark.parametrize("requires_grad", [False, True])
def test_numbers_that_nobody_reads_are_drawn(requires_grad):
    def last(x):
        torch.rand(3), torch.empty(2).normal_(), torch.nn.functional.dropout(x)
        return torch.rand(3) + x

    x = torch.zeros(3, requires_grad=requires_grad)
    compiled = torchstrata.compile(last, fullgraph=True, options={"fallback_random": True})
    results = []
    for call in (last, compiled):
        torch.manual_seed(0)
        results.append((call(x), torch.rand(1)))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.zeros(int(x.shape[0] * 1.7)) + x.sum(),
        lambda x: x + int(x.shape[0] * -0.7) + int(x.shape[1] - 6.5) + float(x.shape[0] > 6),
        lambda x: x[: int(x.shape[0] * 0.6)].softmax(0).cumsum(0),
        lambda x: F.interpolate(x[None, None], scale_factor=1.7, mode="bilinear"),
        lambda x: F.interpolate(x[None, None], size=(3, 3), mode="bicubic", antialias=True),
        lambda x: F.pad(x, (int(x.shape[0] * 0.5), 1)) * 2,
    ],
)
def test_sizes_computed_with_floats(function):
    compiled = torchstrata.compile(function, fullgraph=True, dynamic=True)
    for shape in ((5, 7), (8, 5), (31, 9)):
        results = []
        x = torch.randn(shape)
        for call in (function, compiled):
            leaf = x.clone().requires_grad_()
            result = call(leaf)
            result.square().sum().backward()
            results.append((result, leaf.grad))
        torch.testing.assert_close(*results, atol=1e-4, rtol=1e-4)
    assert torchstrata.counters["graphs"] <= 2


def test_a_comparison_that_a_later_guard_settles():
    def program(x):
        n = x.shape[0]
        divides = n % 4 == 0
        return x * len(range(n)), divides

    compiled = torchstrata.compile(program, fullgraph=True, dynamic=True)
    for n in (8, 9):
        torch.testing.assert_close(compiled(torch.ones(n)), program(torch.ones(n)))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, n: x.roll(n, 1),
        lambda x, n: x.roll((n, n - 2), (0, 1)),
        lambda x, n: x + (n % 5) // 2 * 3 - n // -3,
        lambda x, n: x * max(n, 0) + min(n, 2),
        lambda x, n: x * float(max(n, 0)) + n % 5 / 2 + n // 3 * 0.5,
    ],
)
def test_numbers_below_zero(function):
    compiled, x = (
        torchstrata.compile(function, fullgraph=True, dynamic=True),
        torch.arange(24.0).reshape(4, 6),
    )
    for n in (3, 4, -3, -4, 7, -7, 30, -30):
        assert torch.equal(compiled(x, n), function(x, n))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, n: x[:n] * 2,
        lambda x, n: x[-n:, n:] * 2,
        lambda x, n: F.pad(x, (0, 0, -n, 0)) * 2,
        lambda x, n: F.pad(x, (0, -n)) + n,
        lambda x, n: torch.select_scatter(x, x[0] * 0, 0, n),
        lambda x, n: torch.slice_scatter(x, x[:1] * 0, 0, n, n + 1 if n != -1 else None),
        lambda x, n: x + int(n / 2) + (n >> 1),
        lambda x, n: x * (7 // n) + 5 % n,
        lambda x, n: x // n,
    ],
)
def test_positions_and_divisors_below_zero(function):
    compiled, x = torchstrata.compile(function, fullgraph=True), torch.arange(24.0).reshape(4, 6)
    for n in (2, 3, -1, -2, -3, 1):
        assert torch.equal(compiled(x, n), function(x, n))


def test_divisors_that_become_zero():
    compiled, x = (
        torchstrata.compile(lambda x, n: x * (7 // n) + 5 % (n - 4), dynamic=True),
        torch.arange(4.0),
    )
    for n in (2, 3):
        compiled(x, n)
    for n in (0, 4):
        with pytest.raises(ZeroDivisionError):
            compiled(x, n)
    assert torch.equal(compiled(x, 5), x)


def test_filling_what_has_no_elements():
    def filled(x, n):
        return x.expand(n, -1).clone().fill_(3) * x.sum()

    compiled = torchstrata.compile(filled, fullgraph=True)
    for n in (2, 3, 0):
        torch.testing.assert_close(compiled(torch.ones(1, 4), n), filled(torch.ones(1, 4), n))


@pytest.mark.parametrize("correction", [1, 2.5, 5])
def test_variance_of_fewer_numbers_than_its_correction(correction):
    def spread(x):
        return x.var(1, correction=correction), x.std(correction=correction)

    compiled = torchstrata.compile(spread, dynamic=True)
    for shape in ((3, 4), (2, 6), (2, 2)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), spread(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    "limit", [torch.relu, F.relu6, lambda x: x.clamp(max=0.0), lambda x: F.hardtanh(x, 0, 1)]
)
def test_limits_keep_the_sign_of_a_zero(dtype, limit):
    x = torch.full((43,), -0.0, dtype=dtype)
    assert torch.equal(torchstrata.compile(limit)(x).signbit(), limit(x).signbit())


@pytest.mark.parametrize("padding_mode", ["border", "reflection"])
@pytest.mark.parametrize("align_corners", [True, False])
def test_grid_sample_of_a_place_that_is_no_number(padding_mode, align_corners):
    def sample(x, grid):
        return F.grid_sample(x, grid, padding_mode=padding_mode, align_corners=align_corners)

    x, grid = torch.randn(1, 2, 4, 5), torch.rand(1, 3, 3, 2)
    grid[0, 0, 0], grid[0, 1, 2, 1] = float("nan"), float("nan")
    torch.testing.assert_close(torchstrata.compile(sample)(x, grid), sample(x, grid))


def test_a_float_divisor_that_becomes_zero():
    compiled, x = torchstrata.compile(lambda x, f: x * (1 / f)), torch.ones(3)
    for f in (0.5, 0.25):
        compiled(x, f)
    with pytest.raises(ZeroDivisionError):
        compiled(x, 0.0)


@pytest.mark.parametrize("place", [lambda n: slice(n, None), lambda n: slice(n)])
@pytest.mark.parametrize("backend", ["torchstrata", "eager"])
def test_items_bound_the_part_that_is_written(place, backend):
    def written(x, t):
        n = t.item()
        torch._check(n >= 0)
        torch._check(n < x.shape[0])
        y = torch.zeros(5, 3)
        y[place(n)] = 1.0
        return x + y

    compiled = torchstrata.compile(written, fullgraph=True, backend=backend)
    x = torch.randn(5, 3)
    for n in (2, 0, 4):
        torch.testing.assert_close(compiled(x, torch.tensor(n)), written(x, torch.tensor(n)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("exponent", [0.5, -0.5])
def test_roots_of_limits(dtype, exponent):
    x = torch.tensor([float("-inf"), -0.0, 0.0, float("inf"), -1.0, 4.0], dtype=dtype)
    result = torchstrata.compile(lambda x: x**exponent)(x)
    torch.testing.assert_close(result, x**exponent, equal_nan=True)
    assert torch.equal(result.nan_to_num().signbit(), (x**exponent).nan_to_num().signbit())


READ_TWICE = {
    "float": lambda t, x: (x * (-t).item(), (x + 1) * (-t).item()),
    "integer": lambda t, x: (
        x.new_ones((t.long() + 1).item()) * 2,
        x.new_ones((t.long() + 1).item()) + 1,
    ),
    "places": lambda t, x: ((-x).nonzero() * 2, (-x).nonzero() + 1),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", READ_TWICE)
def test_equal_calls_have_symbols_of_their_own(name):
    t, x = torch.tensor(2.0), torch.tensor([1.0, 0.0, 3.0])
    function = READ_TWICE[name]
    torch.testing.assert_close(torchstrata.compile(function, fullgraph=True)(t, x), function(t, x))


@pytest.mark.parametrize("backend", ["torchstrata", "eager"])
def test_a_truth_that_is_read(backend):
    def call(x):
        truth = (x.sum() > 0).item()
        return (
            x * truth,
            torch.full((2,), truth),
            truth,
            x + int(x.max() > 5),
            x / float(x.min() < 0),
        )

    compiled = torchstrata.compile(call, backend=backend, fullgraph=True)
    for x in (torch.arange(-1.0, 9.0, 4.0), -torch.arange(3.0)):
        torch.testing.assert_close(compiled(x), call(x))
    assert torchstrata.counters["graphs"] == 1


@pytest.mark.parametrize("backend", ["torchstrata", "eager"])
def test_a_float_that_is_read_and_truncated(backend):
    def call(x):
        n = int(x.sum())
        return x + n, x.clamp(max=n), x / n, x * (n / 3)

    compiled = torchstrata.compile(call, backend=backend, fullgraph=True)
    for total in (2.5, -3.5, 7.0):
        x = torch.tensor([total - 1, 1.0])
        torch.testing.assert_close(compiled(x), call(x))
    assert torchstrata.counters["graphs"] == 1


@pytest.mark.parametrize("backend", ["torchstrata", "eager"])
def test_classes_of_numbers_as_dtypes(backend):
    def converted(x):
        return (
            x.to(int),
            torch.tensor([1], dtype=float),
            x.new_ones(2, dtype=bool),
            x.sum(dtype=complex),
        )

    x = torch.tensor([1.5, 0.0])
    torch.testing.assert_close(
        torchstrata.compile(converted, backend=backend, fullgraph=True)(x), converted(x)
    )


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.skipif(torch.__version__ < "2.12", reason="runs eagerly: its kernel reads the values")
@pytest.mark.parametrize(("indices", "count"), [([5], 3), ([-1], 3), ([0, 0], 0), ([], 0)])
def test_values_that_are_no_class(indices, count, dynamic):
    with pytest.raises(RuntimeError, match="Class values|number of classes"):
        torchstrata.compile(F.one_hot, dynamic=dynamic)(
            torch.tensor(indices, dtype=torch.int64), count
        )


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_float_of_a_changing_integer_fills(dynamic):
    def function(x, n):
        x.fill_(float(n))
        return x * n

    compiled = torchstrata.compile(function, dynamic=dynamic)
    for n in (0, 1, 4):
        torch.testing.assert_close(compiled(torch.ones(3), n), function(torch.ones(3), n))
