"""Wrapper subclasses through every stage: eager is the oracle for values, classes, gradients,
writes and aliases.
"""

from __future__ import annotations

import bytecode_dynamo
import pytest
import torch
import torchstrata
from torch import nn
from torchstrata import counters

from integration_tests.wrapper_classes import (
    Coerced,
    Dispatched,
    Pair,
    Scaled,
    assert_same,
    nested,
    ones_like,
    pair,
    scaled,
)

BACKENDS = ["eager", "aot_eager", "torchstrata"]


@pytest.fixture(params=BACKENDS)
def compiled(request):
    torchstrata.reset()
    return lambda f, **options: torchstrata.compile(
        f, backend=request.param, fullgraph=True, **options
    )


def written(x):
    x.mul_(2)
    return x + 1


def written_view(x):
    x[0].add_(1)
    return x * x


def written_result(x):
    y = x * 1
    y.mul_(2)
    return y


def inner_of_input(x):
    a = x.a
    return a * 2 + x.b


def by_class(x):
    return x * 2 if isinstance(x, Pair) and type(x) is Pair else x - 1


def plain(grad=False):
    return torch.linspace(-1, 1, 6).reshape(2, 3).requires_grad_(grad)


PROGRAMS = {
    "pointwise": (lambda x: x * 2 + 1, [pair]),
    "returned": (lambda x: (x, x + 1), [pair]),
    "product": (lambda x, y: (x @ y.t(), x.sin()), [pair, lambda: pair(1)]),
    "with plain": (lambda x, y: (x * y).relu(), [pair, plain]),
    "with plain gradient": (lambda x, y: (x * y).sigmoid(), [lambda: pair(grad=True),
    lambda: pair(3, grad=True)]),
    "gradient": (lambda x: x.sin().cos() * x, [lambda: pair(grad=True)]),
    "gradients": (lambda x: (x.view(-1), x * 3, x.sum()), [lambda: pair(grad=True)]),
    "linear": (lambda x, w: nn.functional.linear(x, w).tanh(), [plain, lambda: pair(grad=True)]),
    "normalised": (lambda x: nn.functional.layer_norm(x, (3,)), [lambda: pair(grad=True)]),
    "softmax": (lambda x: torch.softmax(x, -1).log(), [lambda: pair(grad=True)]),
    "views": (lambda x: (x.view(-1), x.t(), x[0]), [pair]),
    "written": (written, [pair]),
    "written view": (written_view, [pair]),
    "written result": (written_result, [lambda: pair(grad=True)]),
    "nested": (lambda x: (x * 2 + 1).sum(0), [nested]),
    "nested gradient": (lambda x: (x * 2).exp(), [lambda: nested(grad=True)]),
    "inner of input": (inner_of_input, [pair]),
    "inner of result": (lambda x: (x + 1).a * 2, [pair]),
    "inner of inner": (lambda x: (x + 1).b.a * 2, [nested]),
    "by class": (by_class, [pair]),
    "quantised": (lambda w, x: (x @ w.t()).relu(), [scaled, plain]),
    "quantised result": (lambda w: w * 2, [scaled]),
    "method": (lambda w: w.dequantize() + w, [scaled]),
    "conversion of equal type": (lambda w: w.to(torch.float64), [lambda: scaled(torch.float32)]),
    "function of the class": (lambda w, x: (nn.functional.linear(x, w).relu(), w * 2),
    [lambda: scaled(cls=Dispatched), plain]),
    "plain operator without change": (lambda w: w * torch.ones(()), [scaled]),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(compiled, name):
    f, makers = PROGRAMS[name]
    given, expected_inputs = [make() for make in makers], [make() for make in makers]
    g = compiled(f)
    before = counters["fallbacks"]
    for _ in range(2):
        result, expected = g(*given), f(*expected_inputs)
        assert_same(result, expected)
        assert_same(given, expected_inputs)
        for value, reference in zip(
            *(v if isinstance(v, tuple) else (v,) for v in (result, expected))
        ):
            if value.requires_grad and not value.is_leaf:
                value.backward(ones_like(value), retain_graph=True)
                reference.backward(ones_like(reference), retain_graph=True)
        for x, y in zip(given, expected_inputs):
            assert_same(x.grad, y.grad)
    assert counters["fallbacks"] == before
    assert counters["graph_breaks"] == 0


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.linear.weight = nn.Parameter(pair(4, (3, 3)))
        self.register_buffer("factor", pair(5, (3,)))

    def forward(self, x):
        return (self.linear(x) * self.factor).relu()


def test_training_of_parameters_that_are_pairs(compiled):
    torch.manual_seed(0)
    ours, reference = Layer(), Layer()
    reference.linear.bias.data.copy_(ours.linear.bias.data)
    calls = {ours: compiled(ours), reference: reference}
    steps = {module: torch.optim.SGD(module.parameters(), lr=0.1) for module in calls}
    x = torch.randn(2, 3)
    for _ in range(3):
        for module, call in calls.items():
            steps[module].zero_grad()
            loss = call(x).sum()
            loss.backward(ones_like(loss))
            steps[module].step()
    for one, other in zip(ours.parameters(), reference.parameters()):
        assert_same(one.detach(), other.detach())


def test_a_pair_is_a_parameter_where_torch_says_so(compiled):
    def f(x):
        return (
            (x * 2, isinstance(x, Pair))
            if isinstance(x, nn.Parameter)
            else (x * 3, isinstance(x, nn.Buffer))
        )

    call = compiled(f)
    for value in (nn.Parameter(pair(), requires_grad=False), pair()):
        assert_same(call(value), f(value))


@pytest.mark.parametrize("cls", [Scaled, Dispatched])
def test_quantised_weight(compiled, cls):
    torch.manual_seed(0)
    linear = nn.Linear(3, 4)
    linear.weight = nn.Parameter(scaled(cls=cls), requires_grad=False)
    x = torch.randn(5, 3, requires_grad=True)
    call = compiled(linear)
    assert_same(call(x), linear(x))
    found, expected = (torch.autograd.grad(f(x).sum(), [x, linear.bias]) for f in (call, linear))
    assert_same(found, expected)


def test_what_an_operator_leaves_alone_is_shared(compiled):
    w = scaled()
    assert compiled(lambda w: w * 2)(w).values.data_ptr() == w.values.data_ptr()


def test_guards_tell_classes_contexts_and_inner_tensors_apart(compiled):
    base = scaled()
    kinds = [
        [
            base,
            scaled(torch.float64),
            Scaled(base.values.to(torch.int16), base.scale, torch.float32),
            torch.ones(4, 3),
        ],
        [pair(0, (4, 3)), Pair(torch.ones(4, 3), torch.ones(4, 3, dtype=torch.float64)), nested()],
        [pair(0, (3, 4)).t(), pair(0, (5, 3)), pair(0, (6, 3)), pair(0, (5, 3), grad=True)],
    ]
    for values in kinds:
        call = compiled(lambda w: w + 1)
        for value in values * 2:
            assert_same(call(value), value + 1)


def test_a_dispatch_that_is_replaced_is_seen(compiled, monkeypatch):
    call = compiled(lambda x: x + 1)
    assert_same(call(pair()), pair() + 1)
    monkeypatch.setattr(
        Pair,
        "__torch_dispatch__",
        classmethod(lambda cls, func, types, args=(), kwargs=None: torch.zeros(1)),
    )
    assert_same(call(pair()), torch.zeros(1))


@pytest.mark.parametrize("cls", [Pair, Coerced])
def test_tangents_of_another_class(cls):
    call = torchstrata.compile(lambda x: x * 3, backend="aot_eager", fullgraph=True)
    held, bare = pair(grad=True), torch.ones(2, 3, requires_grad=True)
    tangent = pair(7, cls=cls)
    if cls is Coerced:
        call(held).backward(tangent)
        assert_same(held.grad, Pair(tangent.a * 3, tangent.b * 3))
        call(bare).backward(tangent)
        assert_same(bare.grad, tangent.a * 3)
        return
    with pytest.raises(RuntimeError, match="gradient of class Tensor .* compiled as Pair"):
        call(held).backward(torch.ones(2, 3))
    with pytest.raises(RuntimeError, match="gradient of class Pair.* compiled as Tensor"):
        call(bare).backward(tangent)


def test_absent_tangents(compiled):
    call = compiled(lambda x: (x * 3, x.sin(), x.sum()))
    x, y = pair(grad=True), pair(grad=True)
    loss = call(x)[1]
    loss.backward(ones_like(loss))
    y.sin().backward(ones_like(y))
    assert_same(x.grad, y.grad)


def test_double_backward(compiled):
    results = []
    for f in (compiled(lambda x: x.sin()), torch.sin):
        x = pair(grad=True)
        (gradient,) = torch.autograd.grad(f(x), x, pair(3), create_graph=True)
        (second,) = torch.autograd.grad(gradient, x, pair(4))
        results.append([gradient, second])
    assert_same(*results)


def test_write_to_an_input_with_history(compiled):
    results = []
    for f in (compiled(written), written):
        x = pair(grad=True)
        y = x * 1
        z = f(y)
        y.backward(pair(5))
        results.append([y, z, x.grad])
    assert_same(*results)


def both(x, y):
    x.add_(1)
    return y * 2


@pytest.mark.filterwarnings("ignore:a compiled graph runs eagerly")
@pytest.mark.parametrize(
    "share", [lambda x: (x[0], x[1]), lambda x: (x, x[0]), lambda x: (x, x.a), lambda x: (x.b, x)]
)
def test_inputs_that_share_memory(compiled, share):
    base, reference = pair(), pair()
    assert_same(compiled(both)(*share(base)), both(*share(reference)))
    assert_same(base, reference)


@pytest.mark.filterwarnings("ignore:a compiled graph runs eagerly")
def test_inner_tensor_of_an_input_that_is_written(compiled):
    def f(x):
        a = x.a
        x.add_(1)
        return a * 2

    base, reference = pair(), pair()
    assert_same(compiled(f)(base), f(reference))
    assert_same(base, reference)


def returned_with_inner(x):
    y = x + 1
    return y, y.a


def written_after_inner(x):
    y = x + 1
    a = y.a
    y.add_(1)
    return a * 2


@pytest.mark.parametrize("f", [returned_with_inner, written_after_inner])
def test_inner_tensors_whose_memory_matters_are_refused(f):
    with pytest.raises(Exception, match="AG034"):
        torchstrata.compile(f, backend="aot_eager", fullgraph=True)(pair())
    assert_same(torchstrata.compile(f, backend="eager", fullgraph=True)(pair()), f(pair()))


SIZES = {
    "product": lambda x: (x @ x.t()).sum(0),
    "reshaped": lambda x: x.reshape(-1) * x.shape[0],
    "several": lambda x: (x.t(), torch.cat([x, x]).sin()),
    "inner": lambda x: x.b + x.size(0) if isinstance(x, Pair) else x + x.size(0),
    "quantised": lambda x: torch.ones(2, 3) @ x.t(),
}


def rows_of(kind, rows):
    if kind == "scaled":
        return Scaled(
            torch.ones(rows, 3, dtype=torch.int8),
            torch.arange(1.0, rows + 1)[:, None],
            torch.float32,
        )
    made = pair(0, (rows, 3))
    return (Pair(made, made * 2) if kind == "nested" else made).requires_grad_(kind == "gradient")


@pytest.mark.parametrize("dynamic", [None, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["pair", "gradient", "nested", "scaled"])
@pytest.mark.parametrize("name", SIZES)
def test_sizes_that_change(compiled, name, kind, dynamic):
    if kind == "scaled" and name in ("reshaped", "several"):
        pytest.skip("the class has no such operator")
    f = SIZES[name]
    call, before = compiled(f, dynamic=dynamic), counters["graphs"]
    for rows in (4, 5, 6, 9):
        x, y = rows_of(kind, rows), rows_of(kind, rows)
        result, expected = call(x), f(y)
        assert_same(result, expected)
        if kind == "gradient" and name != "inner":
            for value in (result, expected):
                value = value[1] if isinstance(value, tuple) else value
                value.backward(ones_like(value))
            assert_same(x.grad, y.grad)
    assert counters["graphs"] - before <= (1 if dynamic else 2)


def test_sizes_of_inner_tensors_that_differ(compiled):
    call = compiled(lambda w: w + 1, dynamic=True)
    base = rows_of("scaled", 5)
    for scale in (base.scale, torch.ones(5, 3), torch.ones(1, 1)):
        value = Scaled(base.values, scale, torch.float32)
        assert_same(call(value), value + 1)


def test_marked_dimension(compiled):
    call, before = compiled(lambda x: x.relu() * 2), counters["graphs"]
    for rows in (4, 5):
        x = pair(0, (rows, 3))
        bytecode_dynamo.mark_dynamic(x, 0)
        assert_same(call(x), x.relu() * 2)
    assert counters["graphs"] - before == 1


CONSTRUCTED = {
    "used": (lambda x: Pair(x, x + 1) * 2, [plain]),
    "returned": (lambda x: Pair(x, x + 1), [plain]),
    "returned with inner": (lambda x: (lambda y: (Pair(y, x), y))(x + 1), [plain]),
    "inner": (lambda x: Pair(x, x + 1).b * 2 + (Pair(x, x * 2) * 2).a, [plain]),
    "nested": (lambda x: Pair(Pair(x, x * 2), Pair(x + 3, x * 3)).relu(), [plain]),
    "by a method": (lambda p: p.swapped() + p, [pair]),
    "from inner": (lambda p: Pair(p.b + 1, p.a), [pair]),
    "looked at": (lambda x: (lambda p: (p * p, isinstance(p, Pair), p.shape, p.a is x))(Pair(x,
    x * 2)), [plain]),
    "context": (lambda x: Scaled(x.to(torch.int8), x[:, :1] + 1, torch.float32) * 2 + 1, [plain]),
    "context returned": (lambda x: Scaled(x.to(torch.int8), x[:, :1] + 1, torch.float32) * 2,
    [plain]),
    "weight": (
        lambda x, y: nn.functional.linear(x, Scaled(y.to(torch.int8), y[:, :1], torch.float32)),
        [lambda: plain(True), plain]
    ),
}  # fmt: skip


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", CONSTRUCTED)
def test_constructed_inside(compiled, name, dynamic):
    f, makers = CONSTRUCTED[name]
    call = compiled(f, dynamic=dynamic)
    for _ in range(2):
        given, expected = [make() for make in makers], [make() for make in makers]
        assert_same(call(*given), f(*expected))
        assert_same(given, expected)


def constructed_and_written(x):
    y = x + 1
    p = Pair(y, x)
    y.add_(1)
    return p * 2


def test_writes_to_what_a_constructed_one_holds_are_refused():
    with pytest.raises(Exception, match="AG034"):
        torchstrata.compile(constructed_and_written, backend="aot_eager", fullgraph=True)(plain())
    call = torchstrata.compile(constructed_and_written, backend="eager", fullgraph=True)
    assert_same(call(plain()), constructed_and_written(plain()))


def test_constructed_around_what_requires_grad_breaks_the_graph():
    def f(x):
        return Pair(x, x * 2).a.sin()

    x = plain(True)
    assert_same(torchstrata.compile(f, backend="aot_eager")(x), f(x))


def written_to_plain(x, p):
    y = x * 2
    y.copy_(p)
    return y + 1


def test_writes_that_would_change_the_class_are_refused():
    with pytest.raises(Exception, match="AG034: copy_"):
        torchstrata.compile(written_to_plain, backend="aot_eager", fullgraph=True)(plain(), pair())
    for x, y in ((plain(), pair()), (pair(), plain())):
        assert_same(
            torchstrata.compile(written_to_plain, backend="eager", fullgraph=True)(x, y),
            written_to_plain(x, y),
        )
    call = torchstrata.compile(written_to_plain, backend="aot_eager", fullgraph=True)
    assert_same(call(pair(), plain()), written_to_plain(pair(), plain()))


def test_gradients_of_plain_inputs_whose_class_depends_on_the_tangents():
    call = torchstrata.compile(
        lambda x, w, q: (x * 2, x * w, q * 3), backend="aot_eager", fullgraph=True
    )
    x, q, w = plain(True), plain(True), pair()
    y, z, r = call(x, w, q)
    r.sum().backward(retain_graph=True)
    assert x.grad is None
    z.backward(pair(1), retain_graph=True)
    assert_same(x.grad, Pair(w.a * pair(1).a, w.b * pair(1).b))
    with pytest.raises(RuntimeError, match="through some results only"):
        y.sum().backward()


def _fail(*arguments):
    raise ZeroDivisionError("in the class")


MISFITS = {
    "names that are no attributes": ("flatten", lambda self: (["a", "zz"], None)),
    "no pair": ("flatten", lambda self: ["a", "b"]),
    "too few names": ("flatten", lambda self: (["a"], None)),
    "nothing": ("flatten", lambda self: None),
    "flatten raises": ("flatten", _fail),
    "a context unequal to itself": ("flatten", lambda self: (["a", "b"], object())),
    "unflatten raises": ("unflatten", staticmethod(_fail)),
    "unflatten takes too little": ("unflatten", staticmethod(lambda inner: None)),
    "unflatten gives nothing": ("unflatten", staticmethod(lambda *_: None)),
    "a plain tensor": ("unflatten", staticmethod(lambda inner, *_: inner["a"])),
    "another class": ("unflatten", staticmethod(lambda inner, *_: Pair(inner["a"], inner["b"]))),
    "another size": (
        "unflatten",
        staticmethod(lambda inner, *_: Coerced(inner["a"][:1], inner["b"][:1])),
    ),
}


@pytest.mark.parametrize("name", MISFITS)
def test_a_class_whose_methods_do_not_fit_is_not_captured(monkeypatch, name):
    def f(x):
        return x * 2

    method, written = MISFITS[name]
    expected = f(Coerced(torch.ones(3), torch.zeros(3)))
    monkeypatch.setattr(Coerced, f"__tensor_{method}__", written)
    x = Coerced(torch.ones(3), torch.zeros(3))
    torchstrata.reset()
    found = torchstrata.compile(f)(x)
    assert type(found) is type(expected)
    assert torch.equal(found.a, expected.a) and torch.equal(found.b, expected.b)
    with pytest.raises(Exception, match="__tensor_(un)?flatten__") as caught:
        torchstrata.compile(f, fullgraph=True)(x)
    assert "BD007" in str(caught.value) and f'File "{__file__}"' in str(caught.value)
