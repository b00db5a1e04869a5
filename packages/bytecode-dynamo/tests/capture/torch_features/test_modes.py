"""Modes of torch around and inside captured code, control flow operators, queries, random
generators.
"""

from __future__ import annotations

import bytecode_dynamo as bd
import pytest
import torch
from torch.autograd.graph import disable_saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel


def inference(x):
    with torch.inference_mode():
        y = x * 2
        inside = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
    with torch.inference_mode(False):
        z = x * 3
    return y.is_inference(), z, inside, y.clone()


def autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x
        with torch.autocast("cpu", enabled=False):
            z = x @ x
        of_any = torch._C._is_any_autocast_enabled()
        return y, z, of_any, torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")


def grad_modes(x):
    with torch.no_grad():
        y = x * 2
        with torch.enable_grad():
            inner = x * 5
    torch.set_grad_enabled(False)
    w = x * 4
    torch.set_grad_enabled(True)
    return y, inner, w, torch.is_grad_enabled()


@torch.inference_mode()
def decorated(x):
    return x * 2


def labels(x):
    with torch.profiler.record_function("outer"), torch.autograd.profiler.record_function("inner"):
        return x * 2


def anomaly(x):
    with torch.autograd.set_detect_anomaly(False), torch.autograd.set_grad_enabled(True):
        return x * 2


def attention(x):
    with sdpa_kernel([SDPBackend.MATH]):
        return torch.nn.functional.scaled_dot_product_attention(x, x, x)


def devices(x):
    with torch.device("meta"):
        meta = torch.ones(3)
    with torch.device("cpu"):
        return x + torch.ones(3), meta.device.type


def compiling(x):
    if torch.compiler.is_compiling() and bd.is_compiling() and not torch.compiler.is_exporting():
        return x + 0
    return x + 0


def distributed(x):
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        x = x / torch.distributed.get_world_size()
    return x + 1


@torch.jit.script
def scripted(x):
    return x * 2 if x.dim() > 1 else x * 3


def branch_on_a_number(x, k):
    return torch.cond(k > 2, lambda a: a.sin(), lambda a: a.cos(), (x,))


PROGRAMS = {
    "inference_mode": (inference, lambda: (torch.randn(3),)),
    "inference_mode as decorator": (decorated, lambda: (torch.randn(3),)),
    "autocast": (autocast, lambda: (torch.randn(3, 3),)),
    "grad modes": (grad_modes, lambda: (torch.randn(3).requires_grad_(),)),
    "record_function": (labels, lambda: (torch.randn(3),)),
    "anomaly": (anomaly, lambda: (torch.randn(3).requires_grad_(),)),
    "sdpa_kernel": (attention, lambda: (torch.randn(1, 2, 4, 8),)),
    "device": (devices, lambda: (torch.randn(3),)),
    "is_compiling": (compiling, lambda: (torch.randn(3),)),
    "distributed": (distributed, lambda: (torch.randn(3),)),
    "script": (lambda x: scripted(x) + 1, lambda: (torch.randn(3),)),
    "cond on a number": (branch_on_a_number, lambda: (torch.randn(3), 3)),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
@pytest.mark.parametrize("name", PROGRAMS)
def test_program_is_captured(name, check_gradients):
    check_gradients(*PROGRAMS[name])


MANAGERS = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu"),
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True),
    "sdpa_kernel": lambda: sdpa_kernel(SDPBackend.MATH),
    "no saved-tensor hooks": lambda: disable_saved_tensors_hooks("not here"),
}
UNREADABLE = {"inference_mode", "anomaly"}  # settings cannot be read from the manager


def _state():
    return (
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.is_anomaly_enabled(),
        torch.backends.cuda.flash_sdp_enabled(),
        torch._C._autograd._saved_tensors_hooks_get_disabled_error_message(),
    )


@pytest.mark.parametrize("name", MANAGERS)
@pytest.mark.filterwarnings("ignore:Anomaly")
def test_break_inside_a_mode(name, alike):
    manager = MANAGERS[name]

    def f(x):
        with manager():
            y = x @ x
            bd.graph_break()
            z = y @ x
            state = _state()
        return y.clone(), z.clone(), state, x @ x, _state()

    x = torch.randn(3, 3)
    before, expected = _state(), f(x)
    assert alike(expected, bd.optimize("eager")(f)(x))
    assert bd.counters["graph_breaks"] == 1 + (name in UNREADABLE)
    assert _state() == before
    with manager():
        assert alike(f(x), bd.optimize("eager")(f)(x))


def test_breaks_inside_two_modes(alike):
    def f(x, n):
        with torch.autocast("cpu"):
            with sdpa_kernel([SDPBackend.MATH]):
                y = x @ x
                bd.graph_break()
                z = y @ x
            bd.graph_break()
            w = torch.ones(3)[n] + z
        return y, z, w, x @ x, _state()

    x, before = torch.randn(3, 3), _state()
    compiled = bd.optimize("eager")(f)
    assert alike(f(x, torch.tensor([1])), compiled(x, torch.tensor([1])))
    assert bd.counters["graph_breaks"] == 2
    with pytest.raises(IndexError):
        compiled(x, torch.tensor([7]))
    assert _state() == before


def test_disabled_saved_tensor_hooks_refuse_hooks():
    def f(x):
        with torch.autograd.graph.save_on_cpu():
            return x * 2

    x = torch.randn(3, requires_grad=True)
    compiled = bd.optimize("eager")(f)
    with disable_saved_tensors_hooks("not here"), pytest.raises(RuntimeError, match="not here"):
        compiled(x)
    assert torch.equal(compiled(x), f(x))


def test_mode_around_the_call_is_guarded(alike):
    def f(x):
        return x * 2, torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    captured = bd.optimize("eager", fullgraph=True)(f)
    x = torch.ones(3, requires_grad=True)
    for manager in (torch.no_grad, torch.enable_grad, torch.inference_mode):
        with manager():
            assert alike(f(x), captured(x))


def test_cond_on_a_tensor_runs_the_right_branch(alike):
    def f(x):
        return torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (x * 2,)) + 1

    def expected(x):
        return ((x * 2).sin() if x.sum() > 0 else (x * 2).cos()) + 1

    captured = bd.optimize("eager")(f)
    for x in (torch.ones(3), -torch.ones(3)):
        assert alike(expected(x), captured(x))


def test_while_loop_runs_its_body(alike):
    from torch._higher_order_ops.while_loop import while_loop

    def f(x):
        return while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a * 2), (torch.tensor(0), x))

    assert alike(bd.optimize("eager")(f)(torch.ones(2)), (torch.tensor(3), torch.full((2,), 8.0)))


def test_generators_break_and_advance(alike):
    def f(x, g):
        y = x + 1
        return y + torch.rand(3, generator=g), torch.rand(3, generator=g)

    def run(call):
        g = torch.Generator().manual_seed(3)
        return call(torch.ones(3), g), call(torch.ones(3), g), g.get_state()

    assert alike(run(f), run(bd.optimize("eager")(f)))


def test_seeds_inside(alike):
    def f(x):
        torch.manual_seed(5)
        a = torch.rand(3)
        state = torch.get_rng_state()
        b = torch.rand(3)
        torch.set_rng_state(state)
        return x + a, b, torch.rand(3)

    assert alike(f(torch.ones(3)), bd.optimize("eager")(f)(torch.ones(3)))


def test_default_dtype_inside(alike):
    def f(x):
        torch.set_default_dtype(torch.float64)
        try:
            y = torch.ones(3)
        finally:
            torch.set_default_dtype(torch.float32)
        return x + y, torch.ones(3)

    assert alike(f(torch.ones(3)), bd.optimize("eager")(f)(torch.ones(3)))


def test_saved_tensors_hooks_inside(alike):
    def run(wrap):
        log = []

        def f(x):
            with torch.autograd.graph.saved_tensors_hooks(
                lambda t: log.append("pack") or t * 2, lambda t: t
            ):
                return x * x

        x = torch.ones(3, requires_grad=True)
        wrap(f)(x).sum().backward()
        return x.grad, log

    assert alike(run(lambda f: f), run(bd.optimize("eager")))


class Logged(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        LOG.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


LOG: list[str] = []


def test_tensor_subclass_breaks_with_a_reason():
    x = torch.ones(3).as_subclass(Logged)

    def f(x):
        return x * 2 + 1

    LOG.clear()
    expected = f(x)
    names = list(LOG)
    LOG.clear()
    found = bd.explain(f)(x)
    assert type(found.result) is Logged
    assert torch.equal(found.result.as_subclass(torch.Tensor), expected.as_subclass(torch.Tensor))
    assert [name for name in LOG if name in names] == names
    assert "subclass" in str(found)
