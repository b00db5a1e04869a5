"""What a graph makes under ``torch.inference_mode()`` are inference tensors, as in eager mode."""

from __future__ import annotations

import pytest
import torch
import torchstrata

from .outcome import outcome


@torch.inference_mode()
def decorated(x):
    return x * 2, x[1:], (x + 1)[:2], x.t()


def inside(x):
    with torch.inference_mode():
        y = x * 2
        views = y.view(-1), x.view(-1)
    return y, *views, x + 1, y + 1


def two_views(x):
    with torch.inference_mode():
        y = x + 1
        return y[:1], y[1:], x.add_(1)


def facts(tensor):
    return (
        tensor.is_inference(),
        tensor.requires_grad,
        tensor.shape,
        tensor.stride(),
        tensor.storage_offset(),
        tensor.tolist(),
    )


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("f", [decorated, inside, two_views], ids=lambda f: f.__name__)
def test_equal_to_eager(f, requires_grad, dynamic):
    torchstrata.reset()
    compiled = torchstrata.compile(f, dynamic=dynamic, fullgraph=True)
    for _ in range(2):
        x = torch.arange(9.0).view(3, 3) * 1
        x = x.requires_grad_() if requires_grad and f is not two_views else x
        found, expected = compiled(x.clone()), f(x.clone())
        assert [facts(t) for t in found] == [facts(t) for t in expected]
        shared = [
            [a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() for b in side]
            for side in (found, expected)
            for a in side
        ]
        assert shared[: len(found)] == shared[len(found) :]
    assert not torchstrata.counters["fallbacks"]


def test_later_writes_raise():
    y, *_ = torchstrata.compile(inside)(torch.ones(3, 3))
    with pytest.raises(
        RuntimeError, match="Inplace update to inference tensor outside InferenceMode"
    ):
        y.add_(1)


INPUTS = {
    "written": lambda y, w: y.add_(1),
    "a view, written": lambda y, w: y[0].add_(1),
    "detached, written": lambda y, w: y.detach().add_(1),
    "an array, written": lambda y, w: y.detach().numpy().fill(2),
    "written in the mode": lambda y, w: torch.inference_mode()(y.add_)(1),
    "one of a list, written": lambda y, w: torch._foreach_add_([w.detach(), y], 1.0),
    "asked for gradients": lambda y, w: y.requires_grad_(),
    "saved": lambda y, w: (w * y).sum(),
    "added": lambda y, w: w + y,
    "copied, written": lambda y, w: y.clone().add_(1),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "torchstrata"])
@pytest.mark.parametrize("name", INPUTS)
def test_inputs_made_in_inference_mode(name, backend):
    """Fakes accepted writes that eager refuses: the write happened, or effects before it were
    lost.
    """

    def function(y, w, log):
        log.append("before")
        result = INPUTS[name](y, w)
        log.append("after")
        return result

    def observe(call):
        with torch.inference_mode():
            y = torch.ones(3, 4)
        w, log = torch.ones(3, 4, requires_grad=True), []
        result = outcome(call, y, w, log)
        return facts(result) if isinstance(result, torch.Tensor) else result, log, y.tolist()

    assert observe(torchstrata.compile(function, backend=backend)) == observe(function)


def on_the_cpu(x):
    return x.to("cpu", torch.float64), x.to("cpu", torch.float32) is x


def a_number(x):
    return x * torch.tensor(2.0)


def indexed(x):
    y = x.index_put((torch.tensor([0, 2]),), torch.tensor(1.0))
    y[:, [0, 1]] = torch.tensor(2.0)
    return y[[0, 2]], y


def a_loss(x):
    return torch.nn.functional.cross_entropy(x, torch.tensor([0, 1, 2]))


def split(x):
    return torch.tensor_split(x, torch.tensor([1, 2]))


def conjugated(x):
    y = torch.fft.ifft(x)
    return y, y.imag, torch.fft.ihfft(x)


COMPOSITES = [on_the_cpu, a_number, indexed, a_loss, split, conjugated]


@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("f", COMPOSITES, ids=lambda f: f.__name__)
def test_composite_operators(f, inner):
    """They reach fakes and functionalisation whole: nothing decomposed them."""

    def run(x):
        with torch.inference_mode():
            return f(x)

    compiled = torchstrata.compile(run if inner else f, fullgraph=True)
    with torch.inference_mode(not inner):
        x = torch.arange(9.0).view(3, 3)
        found, expected = ((r if isinstance(r, tuple) else (r,)) for r in (compiled(x), run(x)))
    for ours, eager in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, eager)
        if isinstance(eager, torch.Tensor):
            assert ours.is_inference() == eager.is_inference()
            assert ours.is_conj() == eager.is_conj()


def test_statistics_are_written():
    def normalised(x, mean, var):
        with torch.inference_mode():
            return torch.nn.functional.batch_norm(x, mean, var, training=True)

    found = []
    for call in (normalised, torchstrata.compile(normalised, fullgraph=True)):
        mean, var = torch.zeros(3), torch.ones(3)
        found.append((call(torch.arange(9.0).view(3, 3), mean, var), mean, var))
    torch.testing.assert_close(found[1], found[0])


def enlarged(x):
    with torch.inference_mode():
        return torch.nn.functional.interpolate(x[None], scale_factor=2.0)[0]


def test_composite_operators_of_any_size():
    """Functionalisation, without autograd, took C++ forms that fix the sizes."""
    torchstrata.reset()
    compiled = torchstrata.compile(enlarged, fullgraph=True, dynamic=True)
    for size in (3, 5, 8):
        x = torch.randn(size, size + 1)
        torch.testing.assert_close(compiled(x), enlarged(x))
    assert torchstrata.counters["graphs"] == 1


def left_inside(x, w):
    with torch.inference_mode(False):
        y = x * w
    return y, x + 1


def test_leaving_inference_mode():
    """The result of such a call was an inference tensor without a gradient."""
    with torch.inference_mode():
        with torch.inference_mode(False):
            x, w = torch.ones(3), torch.ones(3, requires_grad=True)
        y, z = torchstrata.compile(left_inside, fullgraph=True)(x, w)
    assert (y.is_inference(), z.is_inference()) == (False, True)
    y.sum().backward()
    assert w.grad.tolist() == [1, 1, 1]


def indexed_past_the_end(x, i):
    with torch.inference_mode():
        y = x * 2
        return y[i] + 1


def test_a_call_that_raises_leaves_the_mode():
    compiled = torchstrata.compile(indexed_past_the_end, fullgraph=True)
    compiled(torch.ones(3), torch.tensor([1]))
    with pytest.raises(IndexError) as error:
        compiled(torch.ones(3), torch.tensor([5]))
    assert not torch.is_inference_mode_enabled(), error
    assert torch.is_grad_enabled()
