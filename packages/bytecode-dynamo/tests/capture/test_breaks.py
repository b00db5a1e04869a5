"""Programs that break graphs: results, output, order of effects and tracebacks are those of eager
mode.
"""

from __future__ import annotations

import contextlib
import io
import traceback
from collections.abc import Callable
from typing import Any

import bytecode_dynamo as bd
import numpy as np
import pytest
import torch

LOG: list[Any] = []
PROGRAMS: list[Callable[..., Any]] = []


def program(function: Callable[..., Any]) -> Callable[..., Any]:
    PROGRAMS.append(function)
    return function


def log(*values: Any) -> None:
    LOG.append(values)


quiet_log = bd.disable(log)


class Counter:
    def __init__(self):
        self.n = 0
        self.h = []

    def step(self, x):
        self.n += 1
        self.h.append(self.n)
        quiet_log("s")
        self.n += 1
        return x * self.n


COUNTER = Counter()


class Manager:
    def __init__(s, v):
        s.v = v

    def __enter__(s):
        LOG.append(("enter", s.v))
        return s

    def __exit__(s, *a):
        LOG.append(("exit", s.v, a[0]))
        return s.v == "swallow"


def print_inside(x):
    y = x + 1
    print("print_inside")
    return y * 2


def log_and_raise(y):
    LOG.append("in")
    raise KeyError("zz")


@program
def branch_on_a_sum(x):
    y = x + 1
    if y.sum() > 0:
        y = y * 2
    else:
        y = y - 1
    return y + 1


@program
def print_between(x):
    y = x * 2
    print("hi")
    z = y + x
    return z, y


@program
def through_numpy(x):
    y = (x * 2).numpy()
    z = np.sin(y)
    return torch.from_numpy(z) + x


@program
def item_scales(x):
    s = (x + 1).sum().item()
    return x * s


@program
def print_in_a_loop(x):
    out = []
    for i in range(4):
        x = x + i
        print(i)
        out.append(x * 2)
    return out, x


@program
def print_under_no_grad(x):
    with torch.no_grad():
        y = x * 2
        print("in")
        z = y + 1
    return y, z, torch.is_grad_enabled()


@program
def callee_breaks_twice(x):
    a = x * 3
    return print_inside(a) + print_inside(x)


@program
def shared_list_across_a_break(x):
    l = [x]
    d = {"k": l}
    l.append(x + 1)
    quiet_log(len(l))
    d["k"].append(x * 2)
    return d, l is d["k"]


@program
def break_in_try_finally(x):
    try:
        y = x + 1
        print("t")
        if y.sum() > 1e9:
            raise ValueError("big")
        y = y * 2
    except ValueError:
        y = x
    finally:
        y = y + 5
    return y


@program
def break_in_a_handler(x):
    try:
        y = x + 1
        int("zz")
    except ValueError as e:
        print("caught", e)
        y = x * 3
    return y + 1


@program
def cell_across_a_break(x):
    c = 0

    def inc(n):
        nonlocal c
        c += n
        return x * c

    a = inc(1)
    print("q")
    b = inc(2)
    return a, b, c


@program
def while_on_a_tensor(x):
    while x.sum() < 50:
        x = x * 2
    return x


@program
def comprehension_with_condition(x):
    r = [v * 2 for v in [x, x + 1] if v.sum() > 0]
    return r


@program
def explicit_breaks(x, flag=True):
    bd.graph_break()
    y = x + 1
    bd.graph_break()
    return y


@program
def attribute_counts_once(x):
    return COUNTER.step(x), COUNTER.n, list(COUNTER.h)


@program
def user_context_managers(x):
    with Manager("a") as c:
        y = x + 1
        print(c.v)
        y = y * 2
    with Manager("swallow"):
        y = y + 1
        raise KeyError("k")
    return y


@program
def branch_in_a_loop(x):
    for i, v in enumerate([x, x * 2]):
        if v.sum() > i:
            x = x + v
    return x


@program
def variadic_arguments_survive(x, *a, k=3, **kw):
    y = x + k
    print(a, kw)
    return y + sum(a) + kw.get("z", 0)


@program
def format_of_a_tensor(x):
    return f"{x.sum()}", x + 1


@program
def tolist(x):
    y = x.tolist()
    return torch.tensor(y) * 2, len(y)


@program
def raises(x):
    raise RuntimeError(f"bad {tuple(x.shape)}")


@program
def callee_raises_after_effects(x):
    LOG.append("pre")
    y = x + 1
    log_and_raise(y)


@program
def torch_raises(x):
    return x.view(7, 7)


@program
def iterator_across_a_break(x):
    it = iter([1, 2, 3])
    a = next(it)
    print(a)
    return x + next(it) + sum(it)


@program
def generator_across_a_break(x):
    g = (v * 2 for v in [1, 2, 3])
    a = next(g)
    y = x * a
    print("g")
    return y + next(g)


@program
def zip_across_a_break(x):
    z = zip([1, 2], [x, x + 1])
    print("z")
    return [a * b for a, b in z]


@program
def recursive_closure_after_a_break(x):
    def rec(n):
        return x if n == 0 else rec(n - 1) + 1

    print("r")
    return rec(3)


@program
def break_under_autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x[None] @ x[:, None]
        print("ac")
        z = y @ y
    return y, z, x @ x


@program
def missing_attribute(x):
    e = None
    try:
        x.foo
    except AttributeError as err:
        e = str(err)
    return x + 1, e


@program
def containers_across_a_break(x):
    a = {}
    a["s"] = a.get("s", 0) + 1
    s = set()
    s.add("q")
    print(a)
    s.add("r")
    a["t"] = x
    return a, s


@program
def backward_inside(x):
    if x.requires_grad:
        return x
    x.requires_grad_(True)
    y = (x * x).sum()
    y.backward()
    return x.grad


def outcomes(f: Callable[..., Any]) -> list[Any]:
    """Three calls with different inputs: result or exception with its frames, printed text,
    argument, log.
    """
    LOG.clear()
    COUNTER.__init__()
    found = []
    for i in range(3):
        x = torch.tensor([1.0, 2.0, 3.0]) * (1 if i < 2 else -1) + i
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            try:
                result = f(x)
            except Exception as error:
                frames = [
                    frame.name
                    for frame in traceback.extract_tb(error.__traceback__)
                    if frame.filename == __file__
                ]
                result = (type(error), str(error), frames)
        found.append((result, out.getvalue(), x, list(LOG)))
    return found


@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
def test_broken_program_equals_eager(f, alike):
    expected = outcomes(f)
    assert alike(expected, outcomes(bd.optimize("eager")(f)))


def inside_blocks(f):
    def inner(x):
        before = x.shape[0]
        with torch.no_grad(), Manager("inner"):
            y = f(x)
        return y, before

    def outer(x):
        kept = [x.shape]
        try:
            kept.append(inner(x))
        finally:
            LOG.append("left")
        return kept

    return outer


def in_a_loop(f):
    def inner(x, k):
        return [f(x), k]

    def outer(x):
        cell = 0

        def count():
            nonlocal cell
            cell += 1
            return cell

        found = []
        for _ in range(2):
            found.append(inner(x, count()))
        return found, cell

    return outer


def caught(f):
    def inner(*args, **named):
        return f(*args, **named)

    def outer(x):
        try:
            return inner(x)
        except Exception as error:
            return type(error), str(error)

    return outer


@pytest.mark.parametrize("around", [inside_blocks, in_a_loop, caught])
@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
def test_callees_that_break_equal_eager(f, around, alike):
    g = around(f)
    expected = outcomes(g)
    assert alike(expected, outcomes(bd.optimize("eager")(g)))


COUNTS = {
    branch_on_a_sum: (1, 2),
    print_between: (1, 2),
    callee_breaks_twice: (2, 4),
    explicit_breaks: (2, 1),
    cell_across_a_break: (1, 2),
}


@pytest.mark.parametrize("f", COUNTS, ids=lambda f: f.__name__)
def test_number_of_breaks_and_graphs(f):
    outcomes(bd.optimize("eager")(f))
    assert (bd.counters["graph_breaks"], bd.counters["graphs"]) == COUNTS[f]


def test_loop_with_a_break_compiles_a_bounded_number_of_graphs():
    def f(x):
        for i in range(50):
            x = x + 1
            quiet_log(i)
        return x

    captured = bd.optimize("eager")(f)
    assert torch.equal(captured(torch.zeros(2)), torch.full((2,), 50.0))
    assert bd.counters["graphs"] <= 8


def test_break_in_deep_loop_needs_no_stack():
    def f(x):
        for i in range(3000):
            quiet_log(i)
        return x + 1

    assert torch.equal(bd.optimize("eager")(f)(torch.zeros(2)), torch.ones(2))


def test_breaks_have_ids_reasons_lines_and_hints():
    found = bd.explain(print_between)(torch.ones(2))
    (record,) = found.break_reasons
    assert record.id == "BD003"
    assert 'print("hi")' in record.format()
    assert record.hint


def test_in_place_calls_undone_at_a_break_leave_no_trace(alike):
    class Changed:  # what a class makes is not entered in the middle: the call is undone
        def __init__(self, x, w):
            x.mul_(w)
            x.t_()
            quiet_log("changed")
            self.x = x

    def f(x, w):
        z = x * 1
        y = Changed(z, w).x
        return y, y.requires_grad, y.shape

    graphs = []

    def backend(gm, example_inputs):
        graphs.append(gm)
        return gm.forward

    arguments = (torch.ones(2, 3), torch.ones(3, requires_grad=True))
    assert alike(f(*arguments), bd.optimize(backend)(f)(*arguments))
    product = next(node for node in graphs[0].graph.nodes if node.op == "call_function")
    assert (tuple(product.meta["val"].shape), product.meta["val"].requires_grad) == ((2, 3), False)


class Tagged(torch.Tensor):
    pass


@pytest.mark.parametrize(
    "s",
    [torch.eye(3).to_sparse(), torch.ones(3, 3).as_subclass(Tagged)],
    ids=["sparse", "subclass"],
)
def test_unmodelled_tensors_pass_through(s):
    def f(s, x):
        y = x + 1
        z = s.to_dense() if s.is_sparse else s * 2
        return z + y

    x = torch.ones(3, 3)
    expected, result = f(s, x), bd.optimize("eager")(f)(s, x)
    assert type(expected) is type(result)
    assert torch.equal(expected, result)
    assert bd.counters["graphs"] >= 1
