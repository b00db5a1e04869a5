"""Everything that a module consists of."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

from .changing import States, changed, check_state, items, rows_of, setting

STATES: States = {}
row, rows = rows_of(STATES)


# Modules.


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.lin = nn.Linear(3, 3)
        self.bn = nn.BatchNorm1d(3)
        self.drop = nn.Dropout(1.0)
        self.register_buffer("buf", torch.ones(3))
        self.parts = nn.ModuleList([nn.Linear(3, 3), nn.Tanh()])
        self.table = nn.ParameterDict({"a": nn.Parameter(torch.ones(3))})
        self.flag = True

    def forward(self, x):
        x = self.drop(self.bn(self.lin(x[None].expand(2, 3) + self.table["a"])))
        for part in self.parts:
            x = part(x)
        for name, p in self.table.items():
            x = x + p + len(name)
        return x + (self.buf if self.buf is not None else 100) + (1 if self.flag else 2)


def removing(register: Callable[[Net], Any]) -> Callable[[Net], Any]:
    @contextlib.contextmanager
    def hooked(net):
        handle = register(net)
        yield
        handle.remove()

    return hooked


def training(net: nn.Module, to: bool) -> Any:
    return changed(lambda: net.train(to), lambda: net.train(not to))


def deleted(container: Callable[[Net], Any], key: Any) -> Callable[[Net], Any]:
    @contextlib.contextmanager
    def change(net):
        at = container(net)
        old = at[key]
        del at[key]
        yield
        at[key] = old

    return change


def param(*shape: int, dtype=torch.float32, **kw: Any) -> nn.Parameter:
    return nn.Parameter(torch.ones(shape, dtype=dtype) * 2, **kw)


MODULES: dict[str, Callable[[Net], Any]] = {
    "train": lambda n: training(n, True),
    "train of a child": lambda n: training(n.drop, True),
    "flag": lambda n: setting(n, flag=False),
    "submodule replaced": lambda n: items(n._modules, lin=nn.Identity()),
    "submodule set": lambda n: setting(n, lin=nn.Linear(3, 3, bias=False)),
    "submodule of a list replaced": lambda n: items(n.parts._modules, {"1": nn.ReLU()}),
    "submodule appended": lambda n: changed(
        lambda: n.parts.append(nn.ReLU()), lambda: n.parts.pop(-1)
    ),
    "submodule removed": deleted(lambda n: n.parts._modules, "1"),
    "parameter replaced": lambda n: items(n.lin._parameters, weight=param(3, 3)),
    "parameter shape": lambda n: items(n.lin._parameters, weight=param(1, 3), bias=param(1)),
    "parameter dtype": lambda n: items(n.lin._parameters, weight=param(3, 3, dtype=torch.float64)),
    "parameter set to None": lambda n: items(n.lin._parameters, bias=None),
    "parameter frozen": lambda n: changed(
        lambda: n.requires_grad_(False), lambda: n.requires_grad_(True)
    ),
    "parameter in place": lambda n: changed(
        lambda: n.lin.weight.data.mul_(2), lambda: n.lin.weight.data.div_(2)
    ),
    "parameter data": lambda n: changed(
        lambda: setattr(n.lin.weight, "data", torch.ones(3, 3)),
        lambda: setattr(n.lin.weight, "data", torch.zeros(3, 3)),
    ),
    "parameters tied": lambda n: items(n.parts[0]._parameters, weight=n.lin.weight),
    "parameter key added": lambda n: changed(
        lambda: n.table.update({"bb": param(3)}), lambda: n.table.pop("bb")
    ),
    "parameter added": lambda n: changed(lambda: setattr(n.table, "a", param(3)), lambda: None),
    "buffer replaced": lambda n: items(n._buffers, buf=torch.ones(1)),
    "buffer dtype": lambda n: items(n._buffers, buf=torch.ones(3, dtype=torch.float64)),
    "buffer set to None": lambda n: items(n._buffers, buf=None),
    "buffer in place": lambda n: changed(lambda: n.buf.add_(1), lambda: n.buf.sub_(1)),
    "forward hook": removing(lambda n: n.lin.register_forward_hook(lambda m, i, o: o * 3)),
    "forward hook of the root": removing(lambda n: n.register_forward_hook(lambda m, i, o: o * 3)),
    "forward hook with kwargs": removing(
        lambda n: n.lin.register_forward_hook(lambda m, a, k, o: o * 5, with_kwargs=True)
    ),
    "forward pre-hook": removing(
        lambda n: n.lin.register_forward_pre_hook(lambda m, i: (i[0] * 2,))
    ),
    "global forward hook": removing(
        lambda n: nn.modules.module.register_module_forward_hook(lambda m, i, o: o * 3)
    ),
    "global forward pre-hook": removing(
        lambda n: nn.modules.module.register_module_forward_pre_hook(lambda m, i: (i[0] * 2,))
    ),
    "forward on the instance": lambda n: setting(n.lin, forward=lambda x: x * 3),
    "forward on the class": lambda n: setting(nn.Linear, forward=lambda self, x: x * 3),
    "forward of the root": lambda n: setting(Net, forward=lambda self, x: x * 3),
    "call on Module": lambda n: setting(nn.Module, __call__=lambda self, x: x * 3),
    "call_impl on Module": lambda n: setting(nn.Module, _call_impl=lambda self, x: x * 3),
    "call on the class": lambda n: setting(nn.Tanh, __call__=lambda self, x: x * 3),
    "momentum": lambda n: setting(n.bn, momentum=0.5),
    "eps": lambda n: setting(n.bn, eps=0.5),
    "dropout": lambda n: setting(n.drop, p=0.0),
    "class of a child": lambda n: setting(n.parts[1], __class__=nn.ReLU),
    "double": lambda n: changed(n.double, n.float),
    "functional": lambda n: setting(F, linear=lambda x, w, b=None: x * 2),
    "getattr of module": lambda n: setting(
        nn.Module,
        __getattr__=lambda self, name, real=nn.Module.__getattr__: (
            3 if name == "zz" else real(self, name)
        ),
    ),
}


def of_net(change: Callable[[Net], Any]) -> Callable[[], Any]:
    def make():
        net = Net().eval()
        return (lambda x: net(x)), change(net)

    return make


for module_name, module_change in MODULES.items():
    STATES[f"module: {module_name}"] = of_net(module_change)


@pytest.mark.parametrize("name", STATES)
def test_state(name, alike):
    check_state(*STATES[name](), alike)
