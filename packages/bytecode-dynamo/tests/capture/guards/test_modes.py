"""Modes and settings of the process and the thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from bytecode_dynamo import optimize
from bytecode_dynamo.graph import precision

from .changing import Doubling, M, States, changed, check_state, rows_of

STATES: States = {}
row, rows = rows_of(STATES)


# Modes and settings of the process.


def settings(get, put, new):
    def enter():
        enter.old = get()
        put(new)

    return changed(enter, lambda: put(enter.old))


class Tripled(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * 3 if func is torch.sin else result


class Logged(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result + 1 if func is torch.ops.aten.sin.default else result


W = M.clone().requires_grad_()

MODES: dict[str, tuple[Callable[[Any], Any], Callable[[], Any]]] = {
    "no_grad": (lambda x: (W * 2).requires_grad, torch.no_grad),
    "no_grad read": (lambda x: x + 1 if torch.is_grad_enabled() else x, torch.no_grad),
    "inference": (lambda x: (x * 2).is_inference(), torch.inference_mode),
    "autocast": (lambda x: W @ W.t(), lambda: torch.autocast("cpu", torch.bfloat16)),
    "autocast half": (lambda x: (W @ W.t()).dtype, lambda: torch.autocast("cpu", torch.float16)),
    "autocast off": (
        lambda x: torch.is_autocast_enabled("cpu"),
        lambda: torch.autocast("cpu", torch.bfloat16),
    ),
    "autocast of any device": (
        lambda x: torch._C._is_any_autocast_enabled(),
        lambda: torch.autocast("cpu", torch.bfloat16),
    ),
    "default dtype": (
        lambda x: torch.zeros(2) + 1.5,
        lambda: settings(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    ),
    "default dtype of int division": (
        lambda x: torch.arange(3) / 2,
        lambda: settings(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    ),
    "default device": (lambda x: torch.zeros(2).device.type, lambda: torch.device("meta")),
    "default device set": (
        lambda x: torch.zeros(2).device.type,
        lambda: changed(
            lambda: torch.set_default_device("meta"), lambda: torch.set_default_device(None)
        ),
    ),
    "deterministic": (
        lambda x: x + 1 if torch.are_deterministic_algorithms_enabled() else x,
        lambda: settings(
            torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True
        ),
    ),
    "deterministic fill": (
        lambda x: torch.empty(3).isnan().all(),
        lambda: settings(
            torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True
        ),
    ),
    "matmul precision": (
        lambda x: x + len(torch.get_float32_matmul_precision()),
        lambda: settings(
            torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "medium"
        ),
    ),
    "backend flag": (
        lambda x: x + 1 if torch.backends.mkldnn.enabled else x,
        lambda: torch.backends.mkldnn.flags(enabled=False),
    ),
    "cudnn flag": (  # set below the property, which torch's test tools freeze
        lambda x: x + 1 if torch.backends.cudnn.benchmark else x,
        lambda: settings(torch._C._get_cudnn_benchmark, torch._C._set_cudnn_benchmark, True),
    ),
    "function mode": (lambda x: torch.sin(x), Tripled),
    "function modes disabled": (
        lambda x: x.as_subclass(Doubling) + 1,
        torch._C.DisableTorchFunctionSubclass,
    ),
    "dispatch mode": (lambda x: torch.sin(x), Logged),
    "anomaly": (
        lambda x: x + 1 if torch.is_anomaly_enabled() else x,
        torch.autograd.detect_anomaly,
    ),
    "saved tensor hooks": (
        lambda x: (W * W).sum().grad_fn is None,
        lambda: torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t),
    ),
    "grad modes nested": (
        lambda x: torch.is_grad_enabled() + 2 * torch.is_inference_mode_enabled(),
        lambda: torch.set_grad_enabled(False),
    ),
    "warn always": (
        lambda x: x + 1 if torch.is_warn_always_enabled() else x,
        lambda: settings(torch.is_warn_always_enabled, torch.set_warn_always, True),
    ),
    "flush denormal": (
        lambda x: x * 1e-38 * 1e-3,
        lambda: changed(
            lambda: torch.set_flush_denormal(True), lambda: torch.set_flush_denormal(False)
        ),
    ),
}
for mode_name, (mode_program, mode) in MODES.items():
    STATES[mode_name] = lambda p=mode_program, m=mode: (p, m())


@pytest.mark.parametrize("name", STATES)
def test_state(name, alike):
    check_state(*STATES[name](), alike)


def test_precision_of_products_in_the_graph(monkeypatch):
    monkeypatch.setattr(precision, "DEVICES", ("cpu",))
    matmul, compiled = torch.backends.cuda.matmul, []

    def backend(gm, inputs):
        compiled.append(matmul.fp32_precision)
        return gm

    def calls(function, *args):
        compiled.clear()
        optimized = optimize(backend)(function)
        before = matmul.fp32_precision
        try:
            for precise in ("ieee", "tf32", "tf32", "ieee"):
                matmul.fp32_precision = precise
                optimized(*args)
        finally:
            matmul.fp32_precision = before
        return compiled

    x = torch.randn(4, 4)
    for product in (
        torch.mm,
        torch.nn.functional.linear,
        lambda a, b: a @ b,
        lambda a, b: a.matmul(b),
    ):
        assert calls(product, x, x) == ["ieee", "tf32"]
        assert calls(product, x.double(), x.double()) == ["ieee"]
    assert calls(torch.add, x, x) == ["ieee"]
    for precise in ("high", "highest"):
        torch.set_float32_matmul_precision(precise)
    assert calls(torch.mm, x, x) == ["ieee", "tf32"]
    compiled.clear()
    optimized = optimize(backend)(torch.mm)
    for allowed in (False, True, True, False):
        matmul.allow_tf32 = allowed
        optimized(x, x)
    assert compiled == ["ieee", "tf32"]
