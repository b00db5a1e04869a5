"""Writes to views that autograd refuses, or whose histories a write makes anew."""

from __future__ import annotations

import pytest
import torch
import torchstrata
from torch import nn

from .outcome import outcome

BACKENDS = ["eager", "aot_eager", "torchstrata"]
SPLITS = {
    "split": lambda x: (x * 2).split(1)[1],
    "chunk": lambda x: (x * 2).chunk(3)[0],
    "unbind": lambda x: (x * 2).unbind(0)[2],
    "view of one": lambda x: (x * 2).chunk(3)[0].view(-1),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
@pytest.mark.parametrize("grad", [False, True])
def test_a_part_that_the_caller_writes_to(split, grad, backend):
    """A part of an intermediate came as a tensor of its own, to which the caller could write."""
    torchstrata.reset()
    found = []
    for function in (split, torchstrata.compile(split, backend=backend)):
        x = torch.arange(12.0).reshape(3, 4).requires_grad_(grad)
        part = function(x)
        found.append(
            (
                part._is_view() if grad else None,
                part.requires_grad,
                outcome(lambda p=part: p.mul_(3).tolist()),
            )
        )
        if grad:
            (gradient,) = torch.autograd.grad(function(x).sum(), x)
            found[-1] += (gradient.tolist(),)
    assert found[0] == found[1]


def test_a_part_that_is_written_after_a_break():
    def function(x, log):
        log.append("before")
        first, *_ = (x * 2).chunk(2)
        torch._dynamo.graph_break()
        first.mul_(3)
        log.append("after")
        return first

    for grad in (False, True):
        torchstrata.reset()
        outcomes = []
        for call in (function, torchstrata.compile(function)):
            log: list[str] = []
            x = torch.ones(4, 2, requires_grad=grad)
            outcomes.append((str(outcome(call, x, log)), log))
        assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_result_that_hooks_on_gradients_have_wrapped(backend):
    """The graph raised at the write, after which nothing could be undone: what came before was
    lost.
    """

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)
            self.inner.register_forward_hook(lambda module, args, result: log.append(len(args)))
            self.inner.register_full_backward_hook(lambda module, before, after: None)

        def forward(self, x):
            y = self.inner(x)
            z = self.inner(x)
            y[0] = 0.0
            return z

    torchstrata.reset()
    found = []
    for wrap in (
        lambda function: function,
        lambda function: torchstrata.compile(function, backend=backend),
    ):
        log: list[int] = []
        call = wrap(Model().forward)
        found.append(([outcome(call, torch.ones(3, 4)) for _ in range(2)], log))
    assert found[0] == found[1] == ([RuntimeError] * 2, [1] * 4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_a_branch_assumed_is_undone_in_a_view_of_a_leaf(backend):
    """Writing to a view makes its ``grad_fn`` anew, which looked like a change of history that
    can't be undone.
    """

    def function(x, limit, names):
        part = x[: names["rows"].pop()]
        torch._dynamo.graph_break()
        with torch.no_grad():
            part.add_(1)
        try:
            if torch.tensor(3) > limit:
                raise ValueError("large")
        except ValueError as error:
            names["error"] = str(error)
        return names.pop("a")

    torchstrata.reset()
    found = []
    for call in (function, torchstrata.compile(function, backend=backend)):
        x, names = torch.ones(3, 2, requires_grad=True), {"rows": [2], "a": 1}
        found.append((call(x, 0.5, names), names, x.tolist()))
    assert found[0] == found[1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_write_that_stops_half_way_beside_exchanged_data(backend):
    """Eager mode writes up to the index that is out of range."""

    def function(x, k, s):
        x[k] = 0.5
        s.data = s + 1
        y = torch.tensor(2.0)
        y.data = y + 1
        return y

    torchstrata.reset()
    found = []
    for call in (function, torchstrata.compile(function, backend=backend)):
        x, s = torch.zeros(3, 2), torch.tensor(1.0)
        found.append((outcome(call, x, torch.tensor([0, 1, 5]), s), x.tolist(), s.item()))
    assert found[0] == found[1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_caught_error_after_a_write_to_a_view_with_a_history(backend):
    """The write can't be undone, so the handler of the program has to run in eager mode."""

    def function(x, k):
        x.add_(1)
        try:
            return nn.functional.embedding(k, torch.eye(4))
        except IndexError:
            return "caught"

    torchstrata.reset()
    found = []
    for call in (function, torchstrata.compile(function, backend=backend)):
        x = (torch.ones(2, 3, requires_grad=True) * 2)[0]
        found.append((outcome(call, x, torch.tensor([1, 7])), x.tolist()))
    assert found[0] == found[1] == ("caught", [3.0] * 3)


LATE_HISTORIES = {
    "add": lambda view: view.add_(1),
    "foreach": lambda view: torch._foreach_add_([view], 1.0),
    "zero a part": lambda view: view[:1].zero_(),
}


@pytest.mark.parametrize("late", LATE_HISTORIES.values(), ids=LATE_HISTORIES)
def test_a_view_that_has_not_got_its_history_yet(late):
    """Eager refuses to write to it. The capture of what follows a break asked for the history, and
    so made it.
    """

    def function(view, weight, log):
        view[:, 1] = weight.sum()
        log.append("written")
        late(view)
        log.append("late")

    torchstrata.reset()
    compiled, outcomes = torchstrata.compile(function, backend="eager"), []
    for call in (function, compiled, compiled):
        log: list[str] = []
        view = torch.zeros(6, 4)[::2]
        outcomes.append(
            (outcome(call, view, torch.ones(3, requires_grad=True), log), log, view.tolist())
        )
    assert outcomes[0] == outcomes[1] == outcomes[2]


RESULTS = {
    "product": lambda x: ((x @ x.t()).t() > 0).float(),
    "sum of products": lambda x: (torch.einsum("ij,kj->ki", torch.eye(4), x) > 0).float(),
    "transposed": lambda x: x.detach().mm(x.detach().t()).t(),
    "part": lambda x: (x.detach() * 3)[1:],
}


@pytest.mark.parametrize("result", RESULTS.values(), ids=RESULTS)
def test_a_result_in_the_memory_of_another_value(result):
    """It was a view, made while gradients were off: to such a one nothing may be written that
    requires gradients.
    """
    torchstrata.reset()
    made = torchstrata.compile(result)(torch.ones(3, 4, requires_grad=True))
    assert (
        torch.equal(made.mul_(torch.ones(1, requires_grad=True)), result(torch.ones(3, 4)))
        and made.requires_grad
    )


def test_the_base_of_a_view_before_a_failure():
    """What was computed of the base and of the view could not be undone, so effects before the
    failure were lost.
    """

    def function(base, view, weight, state):
        state.append("before")
        base -= weight
        view.detach().add_(1)
        base[torch.tensor([7])]
        state.append("after")

    torchstrata.reset()
    outcomes = []
    for call in (function, torchstrata.compile(function, backend="eager")):
        state: list[str] = []
        base = torch.ones(3, 4)
        outcomes.append(
            (
                outcome(call, base, base[1:], torch.ones(4, requires_grad=True), state),
                state,
                base.tolist(),
            )
        )
    assert outcomes[0] == outcomes[1]


@pytest.mark.filterwarnings("ignore:a graph runs eagerly")
@pytest.mark.parametrize(
    "views", [lambda x: x.split(1), lambda x: x.unbind(0), lambda x: x.chunk(2)]
)
def test_views_of_several_that_may_no_longer_be_used(views):
    """They came back as leaves that require grad, to which backward led."""

    def function(x):
        found = list(views(x))
        x[0] = 1.0
        return found

    for call in (function, torchstrata.compile(function)):
        leaf = torch.arange(8.0).reshape(2, 4).requires_grad_()
        with pytest.raises(RuntimeError, match="is a view and its base"):
            call(leaf * 2)[0].sum().backward()


@pytest.mark.parametrize("backend", ["eager", "torchstrata"])
def test_views_of_what_was_written_since(backend):
    """Reading the history of one of several views raises once their base is written to: the
    compiler asked which values of the graph are leaves.
    """

    def function(x, index):
        stacked = torch.vstack(list(x))
        x += 1
        return stacked, x[index]

    def observe(call):
        leaf = torch.arange(12.0).reshape(3, 4).requires_grad_()
        results = call(leaf * 1, torch.tensor(1))
        sum(result.sum() for result in results).backward()
        return [result.tolist() for result in results], leaf.grad.tolist()

    compiled = torchstrata.compile(function, backend=backend, fullgraph=True)
    assert observe(compiled) == observe(function)
