"""An operator that refuses its data in a graph that also does what can't be undone: effects before
it, none after it.
"""

from __future__ import annotations

import pytest
import torch
import torchstrata

from .outcome import outcome

WEIGHT = torch.ones(3)
PARAMETER = torch.full((3,), 2.0, requires_grad=True)
FAR = torch.tensor([0, 7])


class Counter:
    made = 0


def written_unseen(x, log):
    log.append("before")
    y = x[FAR]
    WEIGHT.data.mul_(2)  # no version tells
    log.append("after")
    return y


def written_unseen_before(x, log):
    WEIGHT.data.mul_(2)
    Counter.made += 1
    y = x[FAR]
    Counter.made += 10
    return y


def seeded(x, log):
    log.append(torch.rand(2))
    torch.manual_seed(3)
    log.append(torch.rand(2))
    y = x[FAR]
    log.append("after")
    return y


def seeded_after(x, log):
    log.append("before")
    y = x[FAR]
    torch.manual_seed(3)
    return y


def made_to_require_gradients(x, log):
    x.tag = 1
    y = x[FAR]
    x.requires_grad_()
    x.tag = 2
    return y


def caught(x, log):
    torch.manual_seed(4)
    try:
        x = x[FAR]
    except IndexError as error:
        log.append(str(error))
    return x + torch.rand(3)


def exchanged(x, log):
    log.append("before")
    x.data = x * 3
    y = x[FAR]
    log.append("after")
    return y


def set_up(x, log):
    log.append(torch.get_num_threads())
    torch.set_num_threads(1)
    log.append(torch.get_num_threads())
    return x[FAR]


def given_a_history(x, log):
    """A view that did not require gradients does so afterwards."""
    log.append("before")
    x.mul_(PARAMETER)
    log.append("between")
    y = x[FAR]
    log.append("after")
    return y


def made_to_require_gradients_after(x, log):
    y = x[FAR]
    x.requires_grad_()
    return y


def written_with_a_hook(x, log):
    y = x * PARAMETER
    y.register_hook(log.append)
    log.append("before")
    y.squeeze_(0)
    return y[FAR]


PROGRAMS = [
    given_a_history,
    written_with_a_hook,
    written_unseen,
    written_unseen_before,
    seeded,
    seeded_after,
    made_to_require_gradients,
    made_to_require_gradients_after,
    caught,
    exchanged,
    set_up,
]


def observe(call):
    WEIGHT.fill_(1)
    Counter.made = 0
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    x, log = torch.ones(4).t()[:3], []
    try:
        result = outcome(call, x, log)
        return repr(
            (
                result,
                log,
                x,
                getattr(x, "tag", None),
                WEIGHT,
                Counter.made,
                torch.get_num_threads(),
                torch.rand(2),
            )
        )
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "torchstrata"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_effects_are_eagers(program, backend):
    expected = observe(program)
    options = {"fallback_random": True} if backend == "torchstrata" else None
    compiled = torchstrata.compile(program, backend=backend, options=options)
    assert [observe(compiled) for _ in range(2)] == [expected] * 2
