"""Attributes, methods and operators that a program puts on torch.Tensor."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import bytecode_dynamo as bd
import pytest
import torch

from .changing import M, States, check_state, setting


def on_tensor(program: Callable[[Any], Any], **new: Any) -> Callable[[], Any]:
    return lambda: (program, setting(torch.Tensor, **new))


STATES: States = {
    "shape": on_tensor(lambda x: x * x.shape[0], shape=property(lambda t: torch.Size([7]))),
    "T": on_tensor(lambda x: M.T + 1, T=property(lambda t: t * 100)),
    "requires_grad": on_tensor(
        lambda x: x + 1 if x.requires_grad else x, requires_grad=property(lambda t: True)
    ),
    "size": on_tensor(lambda x: x * x.size(0), size=lambda t, d=None: 9),
    "ndim": on_tensor(lambda x: x * x.ndim, ndim=property(lambda t: 9)),
    "__add__": on_tensor(lambda x: x + 1, __add__=lambda t, o: t * 50),
    "__radd__": on_tensor(lambda x: 1 + x, __radd__=lambda t, o: t * 50),
    "__len__": on_tensor(lambda x: x * len(x), __len__=lambda t: 8),
    "__neg__": on_tensor(lambda x: -x, __neg__=lambda t: t),
    "__matmul__": on_tensor(lambda x: M @ M.t(), __matmul__=lambda t, o: t),
    "__lt__": on_tensor(lambda x: x < 2, __lt__=lambda t, o: t),
    "__bool__": on_tensor(lambda x: x.sum() + 1 if x.sum() > 0 else x, __bool__=lambda t: False),
    "add_": on_tensor(lambda x: x.clone().add_(1), add_=lambda t, o: t * 50),
    "grad": on_tensor(lambda x: x + 1 if x.grad is None else x, grad=property(lambda t: 1)),
    "method of a builtin": on_tensor(lambda x: x.sin(), sin=torch.Tensor.cos),
    "new attribute": on_tensor(lambda x: x + getattr(x, "zork", 1), zork=50),
    "new method": on_tensor(
        lambda x: x.zork() if hasattr(x, "zork") else x + 1, zork=lambda t: t * 50
    ),
    "new property": on_tensor(lambda x: x + getattr(x, "zork", 1), zork=property(lambda t: t * 2)),
    "__getattr__": on_tensor(lambda x: getattr(x, "zork", 1) + x, __getattr__=lambda t, n: 50),
    "__torch_function__": on_tensor(
        lambda x: x.sin(), __torch_function__=classmethod(lambda c, f, t, a=(), k=None: 3)
    ),
}


@pytest.mark.parametrize("name", STATES)
def test_state(name, alike):
    with bd.config.patch(fallback="eager"):  # tensors are looked at by torch itself too
        check_state(*STATES[name](), alike)


SUBSCRIPTS = """
import torch, bytecode_dynamo as bd
call, x = bd.optimize("eager")(lambda x: x[0]), torch.arange(3.0)
assert call(x) == 0
torch.Tensor.__getitem__ = lambda t, k: 5
assert call(x) == 5
del torch.Tensor.__getitem__
assert call(x) == 0
"""


def test_subscripts():
    """In a process of its own: a class that once had ``__getitem__`` stays a sequence for CPython,
    and torch.tensor differs.
    """
    subprocess.run([sys.executable, "-W", "ignore", "-c", SUBSCRIPTS], check=True)
