"""Results that are written back to inputs are stored in their memory where nothing can tell:
values, versions and errors.
"""

from __future__ import annotations

import pytest
import torch
import torchstrata

from integration_tests.repros.outcome import outcome


def _swap(x, y, w):
    old = x.clone()
    x.copy_(y)
    y.copy_(old)


def _read_by_a_product(x, y, w):
    x.add_(1)
    return x @ w


def _read_before(x, y, w):
    before = x * 2
    x.mul_(y).add_(1)
    return before


def _transposed(x, y, w):
    x.copy_(y.t() + 1)


def _reversed(x, y, w):
    x.copy_(x.flip(0) + y)


def _reduced(x, y, w):
    x.sub_(x.mean(0)).div_(x.square().sum())


def _returned(x, y, w):
    x.mul_(3)
    return x, x.t(), x + 1


def _twice(x, y, w):
    x.add_(y)
    y.add_(x)
    x.add_(y)


def _refused_later(x, y, w):
    x.add_(1)
    y.mul_(2)
    return y[w.int() + 100]


PROGRAMS = [
    _swap, _read_by_a_product, _read_before, _transposed, _reversed, _reduced, _returned, _twice,
    _refused_later,
]  # fmt: skip


def _apart():
    return [torch.arange(16.0).reshape(4, 4) + n for n in range(3)]


def _parts_of_one():
    base = torch.arange(32.0)
    return [base[:16].view(4, 4), base[8:24].view(4, 4), torch.ones(4, 4)]


def _neighbours():
    base = torch.arange(48.0)
    return [base[:16].view(4, 4), base[16:32].view(4, 4), base[32:].view(4, 4)]


def _one():
    x = torch.arange(16.0).reshape(4, 4)
    return [x, x, x]


@pytest.mark.parametrize("make", [_apart, _parts_of_one, _neighbours, _one])
@pytest.mark.parametrize("program", PROGRAMS)
def test_values_and_versions(program, make):
    torchstrata.reset()
    compiled = torchstrata.compile(program)
    states = []
    for call in (program, compiled):
        inputs = make()
        results = [outcome(call, *inputs) for _ in range(3)]
        states.append(([*inputs, *results], [t._version for t in inputs]))
    (eager, versions), (ours, our_versions) = states
    for a, b in zip(ours, eager, strict=True):
        assert (
            (a is b) if isinstance(b, type) or b is None else not torch.testing.assert_close(a, b)
        )
    assert our_versions == versions


def test_parameters_that_backward_reads():
    """A write to what backward reads is an error there, as in eager mode."""

    def step(w, x):
        y = (w * x).exp()
        with torch.no_grad():
            x.add_(y.detach())
        return y

    found = []
    for call in (step, torchstrata.compile(step)):
        w, x = torch.full((3,), 0.5, requires_grad=True), torch.ones(3)
        found.append(
            (outcome(lambda call=call, w=w, x=x: call(w, x).sum().backward()), x, x._version)
        )
    assert found[0][0] is found[1][0] is RuntimeError
    torch.testing.assert_close(found[0][1:], found[1][1:])


@pytest.mark.parametrize("n", [0, 1, 2])
def test_polygamma(n):
    """torch's functionalisation has no kernel for it."""

    def program(w, x):
        x[1:].polygamma_(n=n)
        return (w * 1.5).polygamma_(n) * 2

    found = []
    for call in (program, torchstrata.compile(program, fullgraph=True)):
        w, x = torch.tensor([1.0, 2.5], requires_grad=True), torch.tensor([1.0, 2.0])
        y = call(w, x)
        y.sum().backward()
        found.append((y, w.grad, x))
    torch.testing.assert_close(found[1], found[0])


def test_steps_take_no_other_memory():
    parameters = [torch.full((64, 64), float(n), requires_grad=True) for n in range(20)]
    for p in parameters:
        p.grad = torch.ones_like(p)
    optimizer = torch.optim.SGD(parameters, momentum=0.9, foreach=True)
    step = torchstrata.compile(lambda: optimizer.step())
    for _ in range(3):
        step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        step()
    calls = {event.key for event in seen.key_averages()}
    assert not calls & {"aten::copy_", "aten::_foreach_copy_", "aten::empty_strided"}


@pytest.mark.parametrize("count", [3, 20])
def test_inputs_that_are_all_written(count, monkeypatch):
    """Gradients that are clipped; a call hands many inputs on as one tuple."""
    monkeypatch.setattr(torchstrata.config, "fallback", "error")
    gradients = []
    for wrap in (lambda f: f, lambda f: torchstrata.compile(f, fullgraph=True)):
        parameters = [torch.full((3, 4), float(n), requires_grad=True) for n in range(count)]
        for p in parameters:
            p.grad = p.detach() + 1
        wrap(
            lambda parameters=parameters: torch.nn.utils.clip_grad_norm_(
                parameters, 1.0, foreach=True
            )
        )()
        gradients.append([p.grad for p in parameters])
    torch.testing.assert_close(*gradients)
