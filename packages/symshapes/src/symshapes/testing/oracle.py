"""An oracle for what runs on fakes: a function on real tensors and on fakes, and the metadata of
all results compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from symshapes.env import ShapeEnv
from symshapes.fake.mode import FakeTensorMode
from symshapes.value_expr import expr_of

Make = Callable[[int], Sequence[Any]]


def check_static(function: Callable[..., Any], make: Make, size: int = 4) -> None:
    """Raises AssertionError unless fakes with plain sizes give the metadata of real execution,
    without a guard.

    Args:
        function: any pytree of tensors and numbers as result.
        make: makes fresh inputs of a size.
    """
    real = function(*make(size))
    mode = FakeTensorMode()
    with mode:
        fake = function(
            *(mode.from_real(x) if isinstance(x, torch.Tensor) else x for x in make(size))
        )
    assert describe(fake) == describe(real)
    assert not mode.shape_env.guards, mode.shape_env.guards


def check_symbolic(
    function: Callable[..., Any], make: Make, size: int = 4, others: Sequence[int] = (2, 7)
) -> ShapeEnv:
    """Raises AssertionError unless one symbolic run gives the metadata of real execution at every
    size that its guards admit.

    Args:
        function: any pytree of tensors and numbers as result.
        make: makes fresh inputs of a size; the dimensions that are ``size`` long and change with it
            share one symbol.
        size: the example; ``others``: sizes to compare, too.

    Returns the environment with the guards that were recorded: none, if the function never asked
    about the size.
    """
    mode = FakeTensorMode(ShapeEnv())
    env = mode.shape_env
    inputs = fake_inputs(mode, make, size)
    with mode:
        fake = function(*inputs)
    for value in (size, *others):
        values = {symbol: value for symbol in env.hints}
        if env.failing_guards(values):
            assert value != size, f"the guards refuse their own example: {env.guards}"
            continue
        assert describe(fake, values) == describe(function(*make(value))), f"size {value}"
    return env


def fake_inputs(mode: FakeTensorMode, make: Make, size: int) -> list[Any]:
    """Fakes of ``make(size)``; one symbol stands for the dimensions that are ``size`` long and
    change with it.
    """
    symbol = mode.shape_env.create_symbol(size, "size")
    fakes = []
    for i, (x, larger) in enumerate(zip(make(size), make(size + 1))):
        if isinstance(x, torch.Tensor):
            symbols = {
                d: symbol
                for d, sizes in enumerate(zip(x.shape, larger.shape))
                if sizes == (size, size + 1)
            }
            fakes.append(mode.from_real(x, source=f"L[{i}]", symbols=symbols))
        else:
            fakes.append(x)
    return fakes


def with_gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` followed by the gradients of the sum of its differentiable outputs, so that
    backward is compared, too.
    """

    def run(*inputs: Any) -> Any:
        out = function(*inputs)
        floats = [
            o for o in pytree.tree_leaves(out) if isinstance(o, torch.Tensor) and o.requires_grad
        ]
        wanted = [i for i in inputs if isinstance(i, torch.Tensor) and i.requires_grad]
        if not floats or not wanted:
            return out, None
        tangents = [torch.ones_like(o) for o in floats]
        return out, torch.autograd.grad(floats, wanted, tangents, allow_unused=True)

    return run


def describe(value: Any, sizes: Mapping[Any, int] | None = None) -> list[Any]:
    """Shape, strides, dtype, device and requires_grad of every tensor in a pytree, and its numbers.

    ``sizes`` gives symbols their values; without it sizes must be plain.
    """

    def number(x: Any) -> int:
        return int(x) if sizes is None else int(expr_of(x).xreplace(sizes))

    def one(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x if x is None else number(x)
        shape, strides = [number(s) for s in x.shape], [number(s) for s in x.stride()]
        return shape, strides, str(x.dtype), str(x.device), x.requires_grad

    return [one(x) for x in pytree.tree_leaves(value)]
