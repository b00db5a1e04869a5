"""Symbolic sizes: static first, then what changed; marks; numbers from arguments."""

from __future__ import annotations

import math

import bytecode_dynamo as bd
import pytest
import torch

PROGRAMS = {
    "size in arithmetic": (lambda x: x * 2 + x.shape[0], lambda n: (torch.randn(n, 4),)),
    "view": (lambda x: x.view(x.size(0) // 2, 2, -1).sum(-1), lambda n: (torch.randn(2 * n, 4),)),
    "slice by argument": (lambda x, n: x[:n] * n, lambda n: (torch.randn(9, 4), n)),
    "zeros by argument": (
        lambda x, n: torch.zeros(n, x.shape[1]) + x.sum(),
        lambda n: (torch.randn(9, 4), n),
    ),
    "branch on size": (
        lambda x: x + 1 if x.shape[0] > 5 else x - 1,
        lambda n: (torch.randn(n, 4),),
    ),
    "two sizes": (
        lambda x, y: (torch.cat([x, y]), x.shape[0] + y.shape[0], x.size()),
        lambda n: (torch.randn(n, 3), torch.randn(n + 1, 3)),
    ),
    "loop over size": (
        lambda x: sum(x[i] for i in range(x.shape[0])),
        lambda n: (torch.randn(n, 4),),
    ),
    "transpose": (lambda x: x.t() + 1, lambda n: (torch.randn(n, 4),)),
    "factories": (
        lambda x: (torch.arange(x.shape[0]), torch.ones(x.shape)),
        lambda n: (torch.randn(n, 4),),
    ),
    "python numbers": (
        lambda x: (
            max(x.shape),
            min(x.shape[0], 3),
            x.shape[0] % 2,
            -x.shape[0],
            x.shape[0] / 2,
            f"{x.shape[0]}",
            x + 1,
        ),
        lambda n: (torch.randn(2 * n, 4),),
    ),
    "distances of sizes": (
        lambda x: (x * abs(x.size(0) - 4), x.nbytes),
        lambda n: (torch.randn(n, 3),),
    ),
    "waves of sizes": (
        lambda x, n: x * math.cos(math.pi * n / 10) + math.sin(x.shape[0] / 3),
        lambda n: (torch.randn(n, 3), 2 * n),
    ),
    "size as key": (
        lambda x: ({x.shape[0]: 1}, [1] * x.shape[0], x.shape[0] == x.shape[1], x + 1),
        lambda n: (torch.randn(n, 4),),
    ),
}


@pytest.mark.parametrize("dynamic", [None, True, False])
@pytest.mark.parametrize("name", PROGRAMS)
def test_program_equals_eager_at_every_size(name, dynamic, alike):
    f, arguments = PROGRAMS[name]
    captured = bd.optimize("eager", fullgraph=True, dynamic=dynamic)(f)
    for n in (3, 4, 6, 7, 2, 1, 5):
        given = arguments(n)
        assert alike(f(*given), captured(*given)), n


@pytest.mark.parametrize(("dynamic", "graphs"), [(None, 2), (True, 1), (False, 4)])
def test_number_of_graphs_for_four_sizes(dynamic, graphs):
    captured = bd.optimize("eager", fullgraph=True, dynamic=dynamic)(lambda x: x * 2)
    for n in (3, 4, 5, 6):
        captured(torch.randn(n, 4))
    assert bd.counters["graphs"] == graphs


def test_a_schedule_by_cosine_is_one_graph():
    captured = bd.optimize("eager", fullgraph=True)(
        lambda x, t, f: x * math.cos(math.pi * t / 10) * math.sin(f)
    )
    for t in range(2, 9):
        expected = torch.full((2,), math.cos(math.pi * t / 10) * math.sin(t / 7))
        torch.testing.assert_close(captured(torch.ones(2), t, t / 7), expected)
    assert bd.counters["graphs"] == 2


def test_mark_dynamic_makes_one_graph():
    captured = bd.optimize("eager", fullgraph=True)(lambda x: x * 2)
    for n in (3, 4, 5):
        x = torch.randn(n, 4)
        bd.mark_dynamic(x, 0)
        captured(x)
    assert bd.counters["graphs"] == 1


def test_mark_dynamic_bounds_are_guarded():
    captured = bd.optimize("eager", fullgraph=True)(lambda x: x * 2)
    for n, graphs in ((4, 1), (8, 1), (9, 2)):
        x = torch.randn(n, 4)
        bd.mark_dynamic(x, 0, min=2, max=8) if n <= 8 else None
        captured(x)
        assert bd.counters["graphs"] == graphs


def test_mark_static_makes_a_graph_per_size():
    captured = bd.optimize("eager", fullgraph=True, dynamic=True)(lambda x: x * 2)
    for n in (3, 4, 5):
        x = torch.randn(n, 4)
        bd.mark_static(x)
        captured(x)
    assert bd.counters["graphs"] == 3


def test_marks_reject_bad_dimensions():
    with pytest.raises(IndexError, match="dimension 7"):
        bd.mark_dynamic(torch.randn(3), 7)
    for dim, bounds in (
        (1.0, {}),
        ("a", {}),
        (None, {}),
        (0, {"min": "a"}),
        (0, {"min": 5, "max": 2}),
        (0, {"max": 2}),
    ):
        with pytest.raises(bd.exc.UserError):
            bd.mark_dynamic(torch.randn(3), dim, **bounds)


def test_counter_attribute_becomes_symbolic():
    class Steps:
        n = 2

    steps = Steps()

    def f(x):
        steps.n += 1
        return x * steps.n

    captured = bd.optimize("eager", fullgraph=True)(f)
    for expected in range(3, 20):
        assert torch.equal(captured(torch.ones(2)), torch.full((2,), float(expected)))
    assert bd.counters["graphs"] == 3  # class attribute, then an instance attribute, then a symbol


def test_strides_are_guarded():
    captured = bd.optimize("eager", fullgraph=True, dynamic=True)(lambda x: (x + 1).stride())
    assert captured(torch.randn(4, 6)) == (6, 1)
    assert captured(torch.randn(6, 4).t()) == (1, 4)
    assert captured(torch.randn(5, 12)[:, ::2]) == (6, 1)


def test_item_as_unbacked_number():
    def f(x, i):
        return x * i.item()

    with bd.config.patch(capture_scalar_outputs=True):
        captured = bd.optimize("eager", fullgraph=True)(f)
        for value in (2, 5):
            assert torch.equal(
                captured(torch.ones(2), torch.tensor(value)), torch.full((2,), float(value))
            )
    assert bd.counters["graphs"] == 1


FLOATS = {
    "scaled": lambda x, v: x * v,
    "alpha": lambda x, v: torch.add(x, x, alpha=v),
    "arithmetic": lambda x, v: x * (v * 2 + 1) / (v + 3) - v // 2 + v % 2,
    "returned": lambda x, v: (x * v, v * 3, -v, v),
    "branch": lambda x, v: x + 1 if v > 2 else x - 1,
    "bounds": lambda x, v: x.clamp(max=v).masked_fill(x > v, v),
    "minimum": lambda x, v: x * min(v, 3.0) + float(v),
    "in a container": lambda x, v: {"a": [v, v + 1], "b": torch.full((2,), v)},
    "nan": lambda x, v: x + 1 if v == v else x,
    "difference": lambda x, v: x * (v - v),
    "inner function": lambda x, v: (lambda q: q.clone().mul_(v))(x),
}


@pytest.mark.parametrize("name", FLOATS)
def test_a_float_that_changes_is_an_input(name, alike):
    f = FLOATS[name]
    captured, x = bd.optimize("eager", fullgraph=True)(f), torch.tensor([1.0, -2.0, 3.0])
    for v in (2.5, 3.5, 4.5, 7.25, 0.1 + 0.2 + 2.0, 1e10):
        assert alike(f(x, v), captured(x, v)), v
    assert bd.counters["graphs"] == 2
    for v in (float("nan"), 0.0, -0.0, float("inf"), 3, 2.75):
        assert alike(f(x, v), captured(x, v)), v


SPECIALISING = {
    "text": lambda x, v: (x + 1, f"{v}"),
    "key": lambda x, v: x * {2.5: 1}.get(v, 3),
    "computed branch": lambda x, v: x + 1 if v * 2 > 6 else x - 1,
    "int": lambda x, v: x * int(v),
    "math": lambda x, v: x * math.sqrt(v),
    "eps": lambda x, v: torch.nn.functional.layer_norm(x, (3,), eps=v),
}


@pytest.mark.parametrize("name", SPECIALISING)
def test_a_float_whose_value_counts_is_specialised(name, alike):
    f = SPECIALISING[name]
    captured, x = bd.optimize("eager", fullgraph=True)(f), torch.tensor([1.0, -2.0, 3.0])
    for v in (2.5, 3.5, 4.5, 2.5):
        assert alike(f(x, v), captured(x, v)), v


def test_a_backend_without_floats_gets_a_graph_per_value():
    def backend(gm, inputs):
        if any(type(value) is float for value in inputs):
            raise ValueError("no floats")
        return gm.forward

    captured, x = bd.optimize(backend, fullgraph=True)(lambda x, v: x * v), torch.ones(2)
    for v in (2.5, 3.5, 4.5):
        assert torch.equal(captured(x, v), x * v)
    assert bd.counters["graphs"] == 3


def test_an_attribute_that_changes_is_one_recompile():
    class Schedule:
        rate = 0.5

    schedule, x = Schedule(), torch.ones(2)
    captured = bd.optimize("eager", fullgraph=True)(lambda x: x - schedule.rate * x)
    for k in range(1, 8):
        schedule.rate = 1 / (k + 2)
        assert torch.equal(captured(x), x - schedule.rate * x)
    assert bd.counters["graphs"] == 2


def test_checks_on_unbacked_numbers_are_in_the_graph():
    def f(x):
        n = x.sum().int().item()
        torch._check(n >= 0, lambda: "a count is not negative")
        torch._check(n < 100)
        return torch.zeros(n) + 1

    with bd.config.patch(capture_scalar_outputs=True):
        captured = bd.optimize("eager", fullgraph=True)(f)
        for size in (5, 7, 1, 0):
            assert captured(torch.ones(size)).shape == (size,)
        for x in (-torch.ones(3), torch.full((2,), 70.0)):
            with pytest.raises(RuntimeError) as expected:
                f(x)
            with pytest.raises(RuntimeError) as raised:
                captured(x)
            assert (
                str(raised.value).splitlines()[0]
                == str(expected.value).splitlines()[0][: len(str(raised.value))]
            )


def test_tolist_and_nonzero_with_unbacked_numbers(alike):
    def f(x):
        a, b, c = x.tolist()
        return x.nonzero() * 2, x * a + b, c

    captured = bd.optimize("eager", fullgraph=True)(f)  # which is to say that numbers are symbols
    for values in ([1, 0, 2], [0, 0, 3], [4, 5, 6]):
        assert alike(f(torch.tensor(values)), captured(torch.tensor(values)))


def test_tensors_and_floats_of_sizes_are_symbolic():
    def f(x):
        n = x.size(0)
        return (
            torch.tensor(n),
            torch.tensor(n, dtype=torch.float64),
            torch.sym_float(n),
            torch.tensor(n > 2),
            x + n,
        )

    captured = bd.optimize("eager", fullgraph=True, dynamic=True)(f)
    for n in (4, 5, 9):
        assert repr(captured(torch.ones(n))) == repr(f(torch.ones(n)))
    assert bd.counters["graphs"] == 1


def test_a_condition_on_sizes_is_the_reason_of_a_recompile():
    reasons = []
    captured = bd.optimize(
        "eager", dynamic=True, on_capture=lambda found: reasons.append(found.recompiled)
    )(lambda x: x + 1 if x.size(0) > 5 else x - 1)
    for n in (4, 7):
        captured(torch.ones(n))
    assert reasons[0] is None
    assert "5" in reasons[1] and "size(0) is 7" in reasons[1]
