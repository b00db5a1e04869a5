"""Torch function modes: around the call, entered inside, across breaks."""

from __future__ import annotations

import contextlib

import bytecode_dynamo as bd
import pytest
import torch
from torch.overrides import TorchFunctionMode


class Swap(TorchFunctionMode):
    """``add`` multiplies."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return (torch.mul if func is torch.add else func)(*args, **(kwargs or {}))


class Scale(TorchFunctionMode):
    """``sin`` is scaled."""

    def __init__(self, k):
        self.k = k

    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        return out * self.k if func is torch.sin else out


class Count(TorchFunctionMode):
    """Keeps the names of calls."""

    def __init__(self):
        self.names = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


class Quiet(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunction():
            return func(*args, **(kwargs or {})) + 1


class Refuse(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.sin:
            raise ValueError("no sin")
        return func(*args, **(kwargs or {}))


LINEAR = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())


def plain(x):
    return torch.sin(torch.add(x, x)) + torch.relu(x).sum()


def hidden(x):
    with torch._C.DisableTorchFunction():
        y = torch.sin(x)
    return y, torch.sin(x)


def nested(x):
    with Scale(2.0), Swap():
        y = torch.add(torch.sin(x), x)
    return y, torch.sin(x)


def by_stack(x):
    with contextlib.ExitStack() as stack:
        stack.enter_context(Scale(3.0))
        y = torch.sin(x)
    return y, torch.sin(x), len(torch.overrides._get_current_function_mode_stack())


def broken(x):
    y = torch.sin(x)
    bd.graph_break()
    return torch.sin(y)


def broken_inside(x):
    with Scale(2.0) as mode:
        y = torch.sin(x)
        bd.graph_break()
        z = torch.sin(y)
        mode.k = 5.0
    return torch.sin(z), mode.k


def broken_in_loop(x):
    for k in range(3):
        with Scale(k + 1.0), Swap():
            if k == 1:
                bd.graph_break()
            x = torch.add(torch.sin(x), x)
    return torch.sin(x)


def left_behind(x):
    with Scale(2.0):
        try:
            y = torch.sin(x)
            raise ValueError
        except ValueError:
            pass
    return y, torch.sin(x)


AROUND = {
    "one": lambda: [Scale(3.0)], "two": lambda: [Scale(3.0), Swap()], "counting": lambda: [Count()],
    "quiet": lambda: [Quiet()],
    "device": lambda: [torch.device("cpu"), Scale(2.0)], "none": list,
}  # fmt: skip
WHOLE = (plain, hidden, nested, by_stack, left_behind, lambda x: LINEAR(x))
CUT = (broken, broken_inside, broken_in_loop)


@pytest.mark.parametrize("make", AROUND.values(), ids=AROUND.keys())
@pytest.mark.parametrize("f", (*WHOLE, *CUT), ids=lambda f: f.__name__)
def test_modes(f, make, alike):
    x, runs = torch.randn(2, 3), []
    for call in (f, bd.optimize("eager", fullgraph=f in WHOLE)(f)):
        results, modes = [], make()
        with contextlib.ExitStack() as stack:
            for mode in modes:
                stack.enter_context(mode)
            for _ in range(3):
                results.append(call(x))
        assert torch._C._len_torch_function_stack() == 0
        runs.append((results, [getattr(mode, "names", None) for mode in modes]))
    assert alike(*runs)


def test_a_graph_per_mode_class_and_setting():
    x, f = (
        torch.randn(3),
        bd.optimize("eager", fullgraph=True, dynamic=False)(lambda x: torch.sin(x) + torch.ones(3)),
    )
    for k, graphs in ((2.0, 1), (2.0, 1), (3.0, 2), (2.0, 2), (3.0, 2)):
        with Scale(k):
            found = f(x)
        assert torch.allclose(found, torch.sin(x) * k + 1)
        assert bd.counters["graphs"] == graphs
    assert torch.allclose(f(x), torch.sin(x) + 1) and bd.counters["graphs"] == 3
    with Count() as mode:
        f(x)
        f(x)
    assert mode.names == ["sin", "ones", "add"] * 2


def test_default_device_is_compared_by_value():
    f = bd.optimize("eager", fullgraph=True)(lambda x: x + torch.ones(3))
    for _ in range(3):
        with torch.device("cpu"):
            f(torch.ones(3))
    assert bd.counters["graphs"] == 1
    with torch.device("meta"):
        assert f(torch.ones(3, device="meta")).is_meta


def test_a_mode_that_raises():
    f = bd.optimize("eager")(lambda x: torch.sin(x + 1))
    with pytest.raises(ValueError, match="no sin"), Refuse():
        f(torch.ones(3))
    assert torch._C._len_torch_function_stack() == 0
