"""Runs a function on real tensors and on fakes and compares the metadata of all results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from symshapes import FakeTensorMode, ShapeEnv, expr_of
from torch.utils import _pytree as pytree


def describe(value: Any, sizes: dict[Any, int] | None = None) -> Any:
    """Shape, strides, dtype, device and requires_grad of every tensor in a pytree; symbols evaluated by ``sizes``."""

    def number(x: Any) -> int:
        if sizes is None:
            return int(x)
        expr = expr_of(x)
        return int(expr.xreplace(sizes))

    def one(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x if x is None else number(x)
        strides = [number(s) for s in x.stride()]
        shape = [number(s) for s in x.shape]
        return shape, strides, str(x.dtype), str(x.device), x.requires_grad

    return pytree.tree_leaves(pytree.tree_map(one, value), is_leaf=lambda x: isinstance(x, tuple) and len(x) == 5)


def with_gradients(function: Callable) -> Callable:
    """``function`` followed by the gradients of the sum of its floating outputs."""

    def run(*inputs: Any) -> Any:
        out = function(*inputs)
        floats = [o for o in pytree.tree_leaves(out) if isinstance(o, torch.Tensor) and o.requires_grad]
        wanted = [i for i in inputs if isinstance(i, torch.Tensor) and i.requires_grad]
        if not floats or not wanted:
            return out, None
        tangents = [torch.ones_like(o) for o in floats]
        return out, torch.autograd.grad(floats, wanted, tangents, allow_unused=True)

    return run


def fakes_of(mode: FakeTensorMode, tensors: Sequence[Any], batch: Any = None) -> list[Any]:
    """Fakes for real inputs; dimension 0 of tensors marked ``_batched`` is ``batch``."""
    out = []
    for i, t in enumerate(tensors):
        if not isinstance(t, torch.Tensor):
            out.append(t)
        elif batch is not None and getattr(t, "_batched", False):
            out.append(mode.from_real(t, source=f"L[{i}]", symbols={0: batch}))
        else:
            out.append(mode.from_real(t, source=f"L[{i}]"))
    return out


def batched(t: torch.Tensor) -> torch.Tensor:
    """Marks dimension 0 of an input as the batch."""
    t._batched = True  # type: ignore[attr-defined]
    return t


def check_static(function: Callable, make: Callable[[int], Sequence[Any]], batch: int = 4) -> None:
    """Fakes with plain sizes give the metadata of real execution."""
    real = function(*make(batch))
    mode = FakeTensorMode()
    with mode:
        fake = function(*fakes_of(mode, make(batch)))
    assert describe(fake) == describe(real)
    assert not mode.shape_env.guards


def check_symbolic(
    function: Callable, make: Callable[[int], Sequence[Any]], batch: int = 4, others: Sequence[int] = (2, 7)
) -> ShapeEnv:
    """One symbolic run gives the metadata of real execution at every batch size that its guards admit."""
    env = ShapeEnv()
    mode = FakeTensorMode(env)
    size = env.create_symbol(batch, "batch")
    inputs = fakes_of(mode, make(batch), size)
    with mode:
        fake = function(*inputs)
    symbol = expr_of(size)
    for b in (batch, *others):
        if env.failing_guards({s: b for s in env.hints}):
            assert b != batch
            continue
        values = {s: b for s in env.hints}
        assert describe(fake, values) == describe(function(*make(b))), f"batch {b}, {symbol}"
    return env
