"""Mutations, aliases and views: each program behaves as in eager, aliases and version counters
included.
"""

from __future__ import annotations

import pytest
import torch
from aotgrad import Unsupported, aot_function, run_eager
from aotgrad.testing import check_against_eager

F64 = torch.float64


def plain():
    return torch.randn(3, 4, dtype=F64), torch.randn(3, 4, dtype=F64)


def leaves():
    return tuple(t.requires_grad_() for t in plain())


def mixed():
    x, w = plain()
    return x, w.requires_grad_()


def non_leaves():
    x, w = leaves()
    return x * 1, w * 1


INPUTS = {"plain": plain, "leaves": leaves, "mixed": mixed, "non_leaves": non_leaves}
PROGRAMS = {}


def program(*kinds):
    def register(f):
        PROGRAMS[f.__name__] = (f, kinds or tuple(INPUTS))
        return f

    return register


@program()
def returns_input(x, w):
    return x, w + x


@program()
def returns_same_twice(x, w):
    y = x * w
    return y, y


@program()
def returns_view_of_input(x, w):
    return x[0], w.t(), x.view(-1)[2:5], x + w


@program()
def returns_input_and_views(x, w):
    return x, x[1], x[1][2], x.t()[0]


@program()
def returns_views_of_intermediate(x, w):
    y = x * w
    return y[0], y[1:], y.t()


@program()
def returns_value_and_view(x, w):
    y = x * w
    return y, y[0], y.view(-1)


@program()
def returns_detached(x, w):
    y = x * w
    return y, y.detach(), y.detach()[0]


@program()
def returns_only_detached_views(x, w):
    return (x * w).detach(), x.detach(), w.detach()[0]


@program()
def returns_split_parts(x, w):
    return (x * w).split(2, dim=1)


@program()
def returns_split_of_input(x, w):
    return (*x.chunk(2, dim=1), x * w)


@program()
def returns_constants(x, w):
    return x + w, None, 3, "text"


@program()
def returns_new_constant(x, w):
    return torch.tensor([1.0, 2.0]), torch.zeros(2), x * w


@program()
def returns_equal_values(x, w):
    return x * w, x * w, (x * w).clone()


@program()
def returns_clone_of_input(x, w):
    return x.clone(), x * w


@program()
def returns_expanded(x, w):
    return (x * w).sum(0).expand(2, 4), x.sum()


@program()
def returns_integer(x, w):
    return (x * w).argmax(1), (x > 0), x * w


@program("plain", "mixed", "non_leaves")
def adds_in_place(x, w):
    x.add_(1)
    return x * w


@program("plain", "mixed", "non_leaves")
def adds_in_place_and_returns_it(x, w):
    x.add_(w)
    x.mul_(2)
    return x


@program("plain", "mixed", "non_leaves")
def adds_in_place_and_returns_view(x, w):
    x.mul_(w)
    return x[0], x.t()


@program("plain", "mixed", "non_leaves")
def writes_through_view(x, w):
    x.view(-1)[3:7].mul_(2)
    return x * w


@program("plain", "mixed", "non_leaves")
def writes_through_view_and_returns_it(x, w):
    v = x.view(-1)
    v.add_(1)
    return v, w * v.view(3, 4)


@program("plain", "mixed", "non_leaves")
def assigns_slice(x, w):
    x[1:, ::2] = w[:2, :2]
    return x.sum() * w


@program("plain", "mixed", "non_leaves")
def assigns_index(x, w):
    x[torch.tensor([0, 2]), torch.tensor([1, 3])] = 5.0
    return x * w


@program("plain", "mixed", "non_leaves")
def copies_into(x, w):
    x.copy_(w)
    return w.sin()


@program("plain", "mixed", "non_leaves")
def copies_into_and_returns_source(x, w):
    y = w * 2
    x.copy_(y)
    return y


@program("plain")
def fills_and_zeroes(x, w):
    x.fill_(2)
    y = x * w
    x.zero_()
    return y


@program()
def writes_under_no_grad(x, w):
    with torch.no_grad():
        x.add_(1)
    return x * w


@program("plain", "mixed")
def writes_under_no_grad_and_uses_before(x, w):
    y = x.sum() * w
    with torch.no_grad():
        w.mul_(0.5)
    y = y + w
    return y.sum(0)


@program("plain", "mixed", "non_leaves")
def writes_to_intermediate(x, w):
    y = x * w
    y.add_(1)
    v = y[0]
    v.mul_(3)
    return y, v


@program()
def writes_to_view_of_intermediate(x, w):
    y = x * w
    y.t()[1].fill_(0)
    y[:, 2:].add_(w[:, :2])
    return y.exp()


@program("plain")
def writes_twice_with_use_between(x, w):
    a = x * w
    x.add_(1)
    b = x * w
    x.mul_(2)
    return a, b, x * w


@program("plain")
def swaps(x, w):
    t = x.clone()
    x.copy_(w)
    w.copy_(t)


@program("plain")
def transposes_in_place(x, w):
    x.t_()
    return x + 1, w


@program("plain")
def unsqueezes_in_place(x, w):
    x.unsqueeze_(0)
    return x * w


@program("plain")
def transposes_and_writes(x, w):
    x.transpose_(0, 1)
    x.add_(1)
    return w * 2


@program("plain", "mixed")
def squeezes_intermediate_in_place(x, w):
    y = (x * w).unsqueeze(0)
    y.squeeze_(0)
    y.t_()
    return y


@program()
def relu_in_place_on_intermediate(x, w):
    return torch.relu_(x * w)


@program("plain", "mixed", "non_leaves")
def scatter_add_in_place(x, w):
    x.scatter_add_(1, torch.tensor([[0, 1, 2, 3]] * 3), w)
    return x.cos()


@program("plain", "mixed", "non_leaves")
def index_put_accumulates(x, w):
    x.index_put_((torch.tensor([0, 0, 1]),), w, accumulate=True)
    return x * 2


@program("plain", "mixed", "non_leaves")
def masked_fill_in_place(x, w):
    x.masked_fill_(w > 0, 0.5)
    return x * w


@program()
def no_outputs_at_all(x, w):
    return ()


@program()
def unused_input(x, w):
    return (x.sin(),)


@program()
def foreach_in_place(x, w):
    a, b = x * 1, w * 2
    torch._foreach_add_([a, b], 1.0)
    return a * b


@program()
def no_grad_region(x, w):
    with torch.no_grad():
        scale = (x * w).std()
    return x * w / scale, scale


@program()
def views_under_no_grad(x, w):
    y = x * w
    with torch.no_grad():
        a, b = x[0], y[1]
    return y, a, b


@program()
def enable_grad_inside_no_grad(x, w):
    with torch.no_grad():
        a = x * w
        with torch.enable_grad():
            b = x * w
    return a, b


@program()
def gradient_inside(x, w):
    with torch.enable_grad():
        p = w.detach().requires_grad_()
        (g,) = torch.autograd.grad((p * x.detach()).sin().sum(), p)
    return g * x


@program()
def complex_views(x, w):
    c = torch.view_as_complex(torch.stack([x, w], -1))
    return c, torch.view_as_real(c * 2)


@program("plain", "mixed", "non_leaves")
def sets_diagonal(x, w):
    x[:, :3].diagonal().copy_(w[0, :3])
    return x.sum(0)


@program("plain", "mixed", "non_leaves")
def cumulates_in_place(x, w):
    x.cumsum_(0)
    return x.mul(w)


@pytest.mark.parametrize(
    ("name", "kind"), [(n, k) for n, (_, kinds) in PROGRAMS.items() for k in kinds]
)
def test_effect(name, kind):
    f, _ = PROGRAMS[name]
    check_against_eager(f, INPUTS[kind])


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_effect_under_no_grad(name):
    f, kinds = PROGRAMS[name]

    def guarded(*inputs):
        with torch.no_grad():
            return f(*inputs)

    compiled = aot_function(f, forward_compiler=run_eager)

    def guarded_compiled(*inputs):
        with torch.no_grad():
            return compiled(*inputs)

    check_against_eager(guarded, INPUTS[kinds[-1]], compiled=guarded_compiled)


def overlapping():
    base = torch.randn(4, 4, dtype=F64)
    return base, base[1]


@pytest.mark.filterwarnings("ignore::aotgrad.FallbackWarning")
@pytest.mark.parametrize("write_first", [True, False])
def test_inputs_that_overlap_and_are_written(write_first):
    def f(x, y):
        (x if write_first else y).mul_(2)
        return x.sum(0) + y

    check_against_eager(f, overlapping)


@pytest.mark.filterwarnings("ignore::aotgrad.FallbackWarning")
def test_overlap_that_appears_after_compilation():
    def f(x, y):
        x.mul_(2)
        return x + y

    compiled = aot_function(f, forward_compiler=run_eager)
    check_against_eager(f, lambda: (torch.randn(4), torch.randn(4)), compiled=compiled)

    def make():
        x = torch.randn(4)
        return x, x.view(4)

    check_against_eager(f, make, compiled=compiled)


def test_same_tensor_twice():
    def make():
        x = torch.randn(3, dtype=F64)
        return x, x

    def f(x, y):
        x.add_(1)
        return x * y

    check_against_eager(f, make)


@pytest.mark.parametrize(
    ("f", "id"),
    [
        (lambda x, w: x.set_(torch.zeros(2)), "AG020"),
        (lambda x, w: x.resize_(7), "AG026"),
        (lambda x, w: x.add_(1).requires_grad_(), "AG021"),
        (lambda x, w: x[1:].copy_(x[:-1]), "AG029"),
        (lambda x, w: torch.unsafe_split(x, 1)[0].mul_(2), "AG029"),
        (lambda x, w: w.register_hook(print), "AG028"),
        (lambda x, w: w.grad, "AG028"),
        (lambda x, w: (x * w).sum().backward(), "AG028"),
        (lambda x, w: torch.ones(2, requires_grad=True), "AG025"),
    ],
)
def test_refused_with_an_id(f, id):
    with pytest.raises(Unsupported) as caught:
        aot_function(f, forward_compiler=run_eager)(
            torch.zeros(3), torch.ones(3, requires_grad=True)
        )
    assert caught.value.id == id
    assert caught.value.user_line.startswith(f'File "{__file__}"') or id in ("AG020", "AG025")
