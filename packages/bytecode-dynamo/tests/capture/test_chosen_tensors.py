"""``max`` and ``min`` of tensors: the program gets the tensor that eager mode chooses."""

from __future__ import annotations

import bytecode_dynamo as bd
import pytest
import torch

NAN = float("nan")


def largest(x, y):
    return max(x, y) * 2 + min(x, y)


def of_a_list(x, y):
    return max([x, y, x * 3, y.exp()]) - 1


def by_key(x, y):
    return min([x, y, x + y], key=lambda v: -v) * 2


def of_rows(x, y):
    return min(torch.stack([x, y, x * 2])) + 1


def kept_over_a_break(x, y):
    chosen = max(x, y)
    bd.graph_break()
    return chosen * 2, chosen is x


@pytest.mark.parametrize("program", [largest, of_a_list, by_key, of_rows, kept_over_a_break])
def test_values(program):
    captured = bd.optimize("eager")(program)
    for a, b in ((1.0, 2.0), (2.0, 1.0), (1.0, 1.0), (0.0, -0.0), (NAN, 1.0), (1.0, NAN)):
        x, y = torch.tensor(a), torch.tensor(b)
        assert repr(captured(x, y)) == repr(program(x, y))
    assert bd.counters["graph_breaks"] == (program is kept_over_a_break)


def itself(x, y):
    return max(x, y), x + 1


def in_a_dict(x, y):
    return {"best": min(x, y)}, x + 1


@pytest.mark.parametrize("program", [itself, in_a_dict])
def test_the_result_is_one_of_the_tensors(program):
    captured = bd.optimize("eager", fullgraph=True)(program)
    for x, y in ((torch.zeros(()), torch.ones(())), (torch.ones(1), torch.zeros(1))):
        (mine, _), (theirs, _) = captured(x, y), program(x, y)
        for best, other in zip(
            *(found.values() if isinstance(found, dict) else [found] for found in (mine, theirs))
        ):
            assert best is other


def compared(x, y):
    return max(x, y) is y, x + 1


def written_later(x, y):
    chosen = max(x, y)
    x.add_(5)
    return chosen + 1


def written_itself(x, y):
    chosen = max(x, y)
    chosen.mul_(3)
    return x + y


def written_as_output(x, y):
    torch.add(x, 1, out=min(x, y))
    return x + y


def viewed(x, y):
    view = max(x, y).view(1)
    return view, x + 1


def with_gradients(x, y):
    return max(x.requires_grad_(), y) * 2


PROGRAMS = [compared, written_later, written_itself, written_as_output, viewed, with_gradients]


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_tells_a_copy_breaks_the_graph(program):
    captured = bd.optimize("eager")(program)
    for a, b in ((1.0, 2.0), (2.0, 1.0), (3.0, 3.0)):
        mine, theirs = (
            [torch.tensor(a), torch.tensor(b)],
            [torch.tensor(a), torch.tensor(b)],
        )
        found, expected = captured(*mine), program(*theirs)
        assert repr((found, mine)) == repr((expected, theirs))
        if program is viewed:
            mine[a < b].add_(1)
            theirs[a < b].add_(1)
            assert torch.equal(found[0], expected[0])
    assert bd.counters["graph_breaks"]


def test_an_extreme_of_a_tensor_and_a_number_names_the_line():
    text = str(bd.explain(lambda x: min(x, 0) + 1)(torch.tensor(1.0)))
    assert "BD001" in text and "min(x, 0)" in text


@pytest.mark.parametrize("pick", [max, min])
def test_the_gradient_of_an_extreme_goes_to_it_alone(pick):
    def program(x, y):
        return pick([x, y * 2, x.sqrt()], key=lambda t: t + 1) * 3

    for values in ((1.5, 2.0), (3.0, 0.5), (0.0, 0.0)):
        found = []
        for call in (program, bd.optimize("eager")(program)):
            inputs = [torch.tensor(value, requires_grad=True) for value in values]
            call(*inputs).backward()
            found.append([t.grad for t in inputs])
        assert repr(found[1]) == repr(found[0])
    text = str(bd.explain(program)(*inputs))
    assert f"{pick.__name__}() of tensors that require gradients" in text and "pick(" in text
