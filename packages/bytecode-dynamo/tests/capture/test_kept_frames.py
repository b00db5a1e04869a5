"""Frames kept for other processes: what may change is seen, and the rest is not captured again."""

from __future__ import annotations

import json
import random

import bytecode_dynamo
import pytest
import torch
from bytecode_dynamo import counters
from bytecode_dynamo.function_table import FUNCTIONS
from hypothesis import given, settings
from hypothesis import strategies as st

from .kept_programs import Backend, loaded, run


@pytest.fixture(autouse=True)
def without_rules_of_users(monkeypatch):
    """Other tests choose rules for functions, and with any nothing is kept."""
    monkeypatch.setattr(FUNCTIONS, "_overrides", {})


PROGRAM = """
import functools
import torch
from torch import nn
import torch.nn.functional as F

SCALE = {scale}
TABLE = {{"a": {table}, "b": 2}}
NAMES = {names}

def helper(x, by={default}, *, more={keyword}):
    return x * by + more * {callee}

def made(value):
    def inner(x):
        return x + value
    return inner

inner = made({closure})

def wrapped(f):
    @functools.wraps(f)
    def call(*args):
        return f(*args) * {wrapper}
    return call

@wrapped
def decorated(x):
    return x + 1

class Mixin:
    pass

class Base(nn.Module):
    constant = {constant}

    @property
    def doubled(self):
        return {property} * self.own

    @staticmethod
    def fixed(x):
        return x - {static}

    def finish(self, x):
        return x + {base}

class Model({bases}):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4, bias=False)
        self.drop = nn.Dropout(0.0)
        self.own = {own}
        self.layers = nn.ModuleList([{layers}])
        with torch.no_grad():
            self.linear.weight.copy_(torch.arange(16.).reshape(4, 4))

    def forward(self, x, flag=None):
        y = helper(self.linear(x)) * SCALE + TABLE["a"]
        y = self.fixed(inner(y)) + self.constant + self.doubled
        y = decorated(self.drop(y))
        for name in NAMES:
            y = y * 2 if name == "twice" else y + 1
        for layer in self.layers:
            y = layer(F.relu(y))
        if self.training:
            y = y + 100
        if torch.is_grad_enabled():
            y = y + 1000
        if flag:
            y = y - flag
        if isinstance(self, Mixin):
            y = -y
        return {{"result": self.finish(y), "facts": (self.own, y.shape[0], SCALE)}}

{end}
"""
USUAL = dict(
    scale=2, table=1, names=("twice", "once"), default=3, keyword=5, callee=7, closure=11,
    wrapper=13, constant=17, property=2, static=19, base=23, bases="Base", own=29,
    layers="nn.ReLU(), nn.Tanh()", end="",
)  # fmt: skip
OTHER = dict(
    scale=(3, 2.0), table=(4, True), names=(("once", "twice"), ("twice",), ["twice", "once"]),
    default=(4, None), keyword=(6,), callee=(8, "SCALE"), closure=(12, 11.0), wrapper=(14,),
    constant=(18, 17.5), property=(3, "SCALE"), static=(20,), base=(24,),
    bases=("Base, Mixin",), own=(30, 29.0),
    layers=("nn.Tanh(), nn.ReLU()", "nn.ReLU()", "nn.LeakyReLU(0.5), nn.Tanh()", "nn.ReLU6(), nn.Tanh()"),
    end=(
        "Mixin = Base",
        "Model.__bases__ = (Base, Mixin)",
        "Model.finish = lambda self, x: x * 31",
        "helper = made(37)",
        "Base.fixed = staticmethod(lambda x: x - 41)",
        "Model.__call__ = lambda self, *args, **kwargs: {'result': torch.zeros(3), 'facts': ()}",
        "Model.linear = property(lambda self: nn.Identity())",
        "Model.training = property(lambda self: True, lambda self, value: None)",
        "def isinstance(x, kind): return True",
        "Base.constant = property(lambda self: 43)",
        "helper.__defaults__ = (47,)",
        "helper.__kwdefaults__ = {'more': 53}",
        "inner.__closure__[0].cell_contents = 59",
        "F = nn",
        "TABLE = dict(b=2, a=61)",
        "helper.__code__ = (lambda x, by=1, *, more=2: x * 67).__code__",
    ),
)  # fmt: skip
CALLS = ("usual", "double", "other size", "transposed", "needs grad", "no grad", "eval", "flag",
         "hook", "pre-hook", "frozen", "instance", "submodule", "global hook")  # fmt: skip


def call_of(kind: str, module):
    """The model and its arguments for a kind of call."""
    torch.manual_seed(0)
    model = module.Model()
    x = torch.arange(12.0).reshape(3, 4) / 8
    args = [x]
    match kind:
        case "double":
            model, args = model.double(), [x.double()]
        case "other size":
            args = [x[:2]]
        case "transposed":
            args = [x.t().contiguous().t()]
        case "needs grad":
            args = [x.requires_grad_()]
        case "eval":
            model.eval()
        case "flag":
            args = [x, 3]
        case "hook":
            model.linear.register_forward_hook(lambda module, args, out: out * 5)
        case "pre-hook":
            model.register_forward_pre_hook(lambda module, args: (args[0] * 7, *args[1:]))
        case "frozen":
            model.requires_grad_(False)
        case "instance":
            model.finish = lambda x: x * 3
        case "submodule":
            model.drop = torch.nn.ReLU()
    return model, args


def check(backend: Backend, source: str, kind: str) -> int:
    """Compares a first call with eager; how many kept frames it used."""
    module = loaded(source)
    try:
        model, args = call_of(kind, module)
    except Exception:
        return 0  # no program
    handle = None
    if kind == "global hook":
        hook = lambda module, args, out: out * 3 if isinstance(out, torch.Tensor) else out  # noqa: E731
        handle = torch.nn.modules.module.register_module_forward_hook(hook)
    try:
        with torch.set_grad_enabled(kind != "no grad"):
            try:
                expected = model(*args)
            except Exception as error:
                with pytest.raises(type(error)):
                    run(backend, model, *args)
                return 0
            found, hits = run(backend, model, *args)
    finally:
        if handle is not None:
            handle.remove()
    assert found["facts"] == expected["facts"]
    assert list(map(type, found["facts"])) == list(map(type, expected["facts"]))
    assert torch.equal(found["result"], expected["result"])
    assert found["result"].requires_grad == expected["result"].requires_grad
    return hits


def changed(name: str, value: object) -> str:
    return PROGRAM.format(**{**USUAL, name: value})


SOURCES = [
    PROGRAM.format(**USUAL),
    *(changed(name, value) for name, values in OTHER.items() for value in values),
]


def test_a_kept_frame_is_not_captured_again():
    backend = Backend()
    assert check(backend, SOURCES[0], "usual") == 0
    assert backend.refusals == []
    assert check(backend, SOURCES[0], "usual") == 1


@pytest.mark.parametrize("source", SOURCES[1:], ids=range(1, len(SOURCES)))
def test_changed_programs_are_seen(source):
    backend = Backend()
    check(backend, SOURCES[0], "usual")
    assert check(backend, source, "usual") == 0
    assert check(backend, SOURCES[0], "usual") in (0, 1)


@pytest.mark.parametrize("kind", CALLS[1:])
def test_other_calls_are_seen(kind):
    backend = Backend()
    check(backend, SOURCES[0], "usual")
    assert check(backend, SOURCES[0], kind) == 0
    check(backend, SOURCES[0], kind)
    assert check(backend, SOURCES[0], "usual") == (kind != "global hook")


class Everywhere(Backend):
    """Gives whatever was kept last, as if all keys were equal: only guards tell frames apart."""

    def frames(self, names):
        slot = super().frames({})
        return slot


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(SOURCES), st.sampled_from(CALLS)), min_size=2, max_size=5)
)
def test_no_order_of_changes_gives_a_wrong_result(steps):
    for backend in (Backend(), Everywhere()):
        for source, kind in steps:
            check(backend, source, kind)


def test_contents_alone_tell_frames_apart():
    order = [(source, kind) for source in SOURCES for kind in ("usual", "eval")]
    order += [(SOURCES[0], kind) for kind in CALLS]
    random.Random(0).shuffle(order)
    backend = Everywhere()
    for source, kind in order:
        check(backend, source, kind)


NOT_KEPT = {
    "a graph break": "def f(x):\n    x = x + 1\n    print(end='')\n    return x * 2",
    "the order of a set": (
        "def f(x):\n    for name in {'a', 'b', 'c'}:\n        x = x * 2 + len(name)\n    return x"
    ),
    "a hash": "def f(x):\n    return x + hash('abc') % 7",
}


@pytest.mark.parametrize("reason", NOT_KEPT)
def test_what_another_process_can_not_check_is_not_kept(reason):
    source, backend, x = f"import torch\n{NOT_KEPT[reason]}", Backend(), torch.ones(3)
    for _ in range(2):
        program = loaded(source).f
        found, hits = run(backend, program, x)
        assert torch.equal(found, program(x)) and hits == 0
        assert backend.refusals == [reason]


def test_a_refusal_holds_until_the_code_changes():
    backend, x = Backend(), torch.ones(3)
    source = "def g(x):\n    {}\n    return x + 1\ndef f(x):\n    return g(x * 2) * 3"
    run(backend, loaded(source.format("print(end='')")).f, x)
    assert backend.refusals == ["a graph break"]
    run(backend, loaded(source.format("pass")).f, x)
    assert backend.refusals == []
    assert run(backend, loaded(source.format("pass")).f, x)[1] == 1


def test_patched_functions_of_torch_are_seen(monkeypatch):
    source = "import torch\nimport torch.nn.functional as F\ndef f(x):\n    return F.gelu(x.relu())"
    backend, x = Backend(), torch.arange(3.0) - 1
    run(backend, loaded(source).f, x)
    assert run(backend, loaded(source).f, x)[1] == 1
    for owner, name in ((torch.nn.functional, "gelu"), (torch.Tensor, "relu")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, lambda x: x * 5)
            found, hits = run(backend, loaded(source).f, x)
            assert hits == 0 and torch.equal(found, loaded(source).f(x))
    layer = torch.nn.LayerNorm(3)
    run(backend, layer, x)
    assert run(backend, layer, x)[1] == 1
    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.LayerNorm, "forward", lambda self, x: x * 7)
        found, hits = run(backend, torch.nn.LayerNorm(3), x)
        assert hits == 0 and torch.equal(found, x * 7)
    assert run(backend, layer, x)[1] == 0
    assert run(backend, layer, x)[1] == 1


def test_effects_and_inputs_by_name_are_kept():
    source = """
import torch
class Count:
    calls = 0
COUNT = Count()
BIAS = torch.ones(3)
def f(x, into, *rest, scale=2, **named):
    COUNT.calls += 1
    into.append(x * scale)
    x.add_(BIAS)
    return [x, rest, named["last"] + 1], into
"""
    backend = Backend()
    for hits in (0, 1, 1):
        module, eager = loaded(source), []
        x, into = torch.zeros(3), []
        expected = module.f(x.clone(), eager, 4, last=torch.ones(1))
        found, kept = run(backend, module.f, x, into, 4, last=torch.ones(1))
        assert kept == hits, backend.refusals
        assert module.COUNT.calls == 2
        assert torch.equal(x, torch.ones(3)) and found[0][0] is x and found[1] is into
        assert torch.equal(into[0], eager[0]) and found[0][1] == expected[0][1] == (4,)
        assert torch.equal(found[0][2], expected[0][2])


def test_guards_of_kept_frames_work_on_later_calls():
    backend = Backend()
    source = SOURCES[0]
    check(backend, source, "usual")
    module = loaded(source)
    model, args = call_of("usual", module)
    compiled = bytecode_dynamo.optimize(backend)(model)
    before = counters["kept_frames"]
    compiled(*args)
    assert counters["kept_frames"] == before + 1
    for change in (
        lambda: model.eval(),
        lambda: setattr(module, "SCALE", 71),
        lambda: setattr(module.Base, "constant", 73),
        lambda: setattr(module, "helper", lambda x: x * 79),
        lambda: args.__setitem__(0, args[0].double()) or model.double(),
        lambda: model.register_forward_hook(
            lambda m, a, out: {**out, "result": out["result"] * 83}
        ),
        lambda: args.__setitem__(0, args[0][:2]),
    ):
        change()
        assert torch.equal(compiled(*args)["result"], model(*args)["result"])


def test_sizes_that_change_after_a_kept_call_become_symbolic():
    source, backend = "def f(x):\n    return x * 2 + 1", Backend()
    run(backend, loaded(source).f, torch.ones(4, 3))
    compiled = bytecode_dynamo.optimize(backend)(loaded(source).f)
    before = counters["graphs"]
    for size in (4, 5, 6, 7):
        x = torch.ones(size, 3)
        assert torch.equal(compiled(x), x * 2 + 1)
    assert counters["graphs"] == before + 2


SIZED = """
import torch

def f(x, y, n):
    if x.shape[0] > 8:
        return x * 3 + n
    if x.shape[0] == y.shape[0]:
        x = x + y
    out = x.reshape(-1) * x.shape[0] + y.sum() * n
    return out, x.shape[0] * n, [x.t(), x.stride(0)]

def g(x, y, n):
    return torch.cat((x, y)).view(-1, 3).sum(0) * (x.numel() // max(n, 1)), n / 2
"""
SIZES = st.tuples(
    st.integers(0, 12), st.integers(1, 6), st.sampled_from([0, 1, 2, 3, 7]), st.booleans()
)


def call_with_sizes(program, sizes, mark):
    """Calls a program with tensors of these sizes, and compares with eager mode."""
    rows, others, n, transposed = sizes
    x, y = torch.arange(rows * 3.0).reshape(rows, 3), torch.ones(others, 3)
    x = x.t().contiguous().t() if transposed else x
    if mark is not None and rows > 1:
        bytecode_dynamo.maybe_mark_dynamic(x, mark)
    compiled, plain = program
    torch.testing.assert_close(compiled(x, y, n), plain(x, y, n))


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.lists(SIZES, min_size=1, max_size=4), min_size=2, max_size=3),
    st.sampled_from([None, True, False]),
    st.sampled_from([None, 0, 1]),
    st.sampled_from(["f", "g"]),
)
def test_no_order_of_sizes_gives_a_wrong_result(processes, dynamic, mark, name):
    for backend in (Backend(), Everywhere()):
        for calls in processes:
            plain = getattr(loaded(SIZED), name)
            program = bytecode_dynamo.optimize(backend, dynamic=dynamic)(plain), plain
            for sizes in calls:
                call_with_sizes(program, sizes, mark)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", ["f", "g"])
def test_later_entries_with_symbolic_sizes_are_not_captured_again(dynamic, name):
    backend = Backend()
    captured = []
    for _ in range(2):
        plain = getattr(loaded(SIZED), name)
        program = bytecode_dynamo.optimize(backend, dynamic=dynamic)(plain), plain
        before = counters["graphs"] - counters["kept_frames"]
        for rows in (3, 4, 5, 6, 9, 10):
            call_with_sizes(program, (rows, 2, 7, False), None)
        captured.append(counters["graphs"] - counters["kept_frames"] - before)
    assert captured[0] > 1 - bool(dynamic) and captured[1] == 0 and not backend.refusals


def test_a_damaged_frame_is_captured_again():
    source, x = "def f(x):\n    return x * 2 + 1", torch.ones(3)
    backend = Backend()
    run(backend, loaded(source).f, x)
    ((key, text),) = backend.kept.items()
    stored = json.loads(text)
    for name in ("records", "body", "table", "rerun", "inputs"):
        backend.kept[key] = json.dumps({**stored, name: [] if name == "table" else {"x": 1}})
        found, hits = run(backend, loaded(source).f, x)
        assert torch.equal(found, x * 2 + 1) and hits == 0
    backend.kept[key] = json.dumps({**stored, "version": 2})
    assert run(backend, loaded(source).f, x)[1] == 0
