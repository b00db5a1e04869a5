"""One row per kind of argument: a program called with each of several values, forwards and
backwards, beside eager mode.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import types
import weakref
from collections.abc import Callable
from typing import Any

import bytecode_dynamo as bd
import numpy as np
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

from .changing import (
    Checked,
    Colour,
    Data,
    Doubling,
    Flag,
    Frozen,
    Hooked,
    Int,
    List,
    M,
    Named,
    Sized,
    Sub,
    Truth,
    X,
    box,
    counted,
    outcome,
    started,
    with_grad,
)


def strided(t):
    return torch.as_strided(torch.arange(40.0), t, tuple(reversed(range(3, 3 + len(t)))))


def add_method(x):
    return x + 1


FIRST, SECOND = (X * k for k in (2, 3))

ARGUMENTS: dict[str, tuple[Callable[[Any, Any], Any], list[Any]]] = {
    "int": (lambda x, v: x * v, [2, 3, 0, 1, -1, 2**40]),
    "int branch": (lambda x, v: x + 1 if v > 3 else x - 1, [1, 5, 3, 4]),
    "int division": (lambda x, v: x * (v // 3) + v % 3, [7, -7, 1, 0]),
    "float": (lambda x, v: x * v, [2.0, 3.5, float("inf"), float("nan"), 0.0, -0.0]),
    "float sign of zero": (lambda x, v: x * 0 + str(v).count("-"), [0.0, -0.0]),
    "float branch": (lambda x, v: x + 1 if v == v else x - 1, [1.0, float("nan")]),
    "bool": (lambda x, v: x + 1 if v else x - 1, [True, False]),
    "bool and int": (lambda x, v: (x + v, type(v) is bool), [True, 1, False, 0]),
    "int and float": (lambda x, v: (x.int() * v, isinstance(v, int)), [2, 2.0, 3, 3.0]),
    "complex": (lambda x, v: x * v, [1j, 2j, 1 + 0j]),
    "str": (lambda x, v: x + len(v) if v.startswith("a") else x, ["a", "ab", "b"]),
    "bytes": (lambda x, v: x + v[0], [b"a", b"b"]),
    "None": (lambda x, v: x if v is None else x + v, [None, 1, X]),
    "Ellipsis": (lambda x, v: x[v], [..., None, 0]),
    "truth of a container": (
        lambda x, v: x + 1 if v else x - 1,
        [[], [1], {}, {1: 2}, (), (0,), "", "a"],
    ),
    "list contents": (lambda x, v: x * v[0] + v[-1], [[1, 2], [2, 1], [3, 4, 5], [1]]),
    "list of tensors": (lambda x, v: sum(v, x), [[X], [X, X], [X, M[:, 0]], []]),
    "list or tuple": (lambda x, v: (x + len(v), type(v).__name__, v + v), [[1], (1,), List([1])]),
    "tuple contents": (lambda x, v: x * v[0], [(1, 2), (2, 2), (2.0, 2), (X, 2)]),
    "dict contents": (lambda x, v: x * v["a"], [{"a": 1}, {"a": 2}, {"b": 1}, {"a": X}]),
    "dict order": (
        lambda x, v: [x * k for k in v.values()],
        [{"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1}],
    ),
    "dict keys of other types": (
        lambda x, v: x + v[1] + len(str(next(iter(v)))),
        [{1: 1}, {True: 1}, {1.0: 1}],
    ),
    "dict membership": (lambda x, v: x + 1 if "k" in v else x, [{}, {"k": 1}, {"j": 1}]),
    "dict get": (lambda x, v: x + v.get("k", 5), [{}, {"k": 1}]),
    "set contents": (
        lambda x, v: x + 1 if 3 in v else x + len(v),
        [{1}, {3}, {1, 2}, frozenset({3}), set()],
    ),
    "nested": (
        lambda x, v: x * v["k"][0]["j"][1],
        [{"k": [{"j": (1, 2)}]}, {"k": [{"j": (1, 3)}]}, {"k": ({"j": [0, X]},)}],
    ),
    "OrderedDict": (
        lambda x, v: [x * k for k in v.values()],
        [collections.OrderedDict(a=1, b=2), collections.OrderedDict(b=2, a=1), {"a": 1, "b": 2}],
    ),
    "defaultdict": (
        lambda x, v: x + v["z"],
        [
            lambda: collections.defaultdict(lambda: 3),
            lambda: collections.defaultdict(lambda: 4),
            lambda: {"z": 1},
        ],
    ),
    "deque": (
        lambda x, v: x * v[0] + len(v),
        [collections.deque([1, 2]), collections.deque([2, 1]), collections.deque([1])],
    ),
    "Counter": (lambda x, v: x * v["a"], [collections.Counter("aab"), collections.Counter("b")]),
    "ChainMap": (
        lambda x, v: x * v["a"],
        [collections.ChainMap({"a": 1}, {"a": 2}), collections.ChainMap({}, {"a": 2})],
    ),
    "namedtuple": (
        lambda x, v: x * v.a + v.b,
        [Named(1, 2.0), Named(2, 2.0), Named(1, 3.0), Data(1, 2.0)],
    ),
    "dataclass": (lambda x, v: x * v.a + v.b, [Data(1), Data(2), Data(1, X), Data(1, 3)]),
    "frozen dataclass": (lambda x, v: x * v.a + hash(v) % 1, [Frozen(1), Frozen(2)]),
    "dataclass equality": (
        lambda x, v: x + 1 if v == Data(1) else x,
        [Data(1), Data(2), Data(1, 3)],
    ),
    "dataclass replace": (lambda x, v: x * dataclasses.replace(v, b=3).a, [Data(1), Data(2)]),
    "enum": (lambda x, v: x * v.value if v is not Colour.RED else x, [Colour.RED, Colour.BLUE]),
    "int flag": (lambda x, v: x + 1 if v & Flag.A else x - v, [Flag.A, Flag.B, Flag.A | Flag.B, 1]),
    "class argument": (lambda x, v: x + v(3), [int, float, Int, str]),
    "subclass of int": (lambda x, v: (x * v, type(v).__name__), [2, Int(2), Int(3)]),
    "type": (lambda x, v: type(v).__name__ + str(x.shape), [1, 1.0, "a", Int(1), X, None, box()]),
    "isinstance": (
        lambda x, v: x + 1 if isinstance(v, (list, int)) else x,
        [1, "a", [], List(), (), True],
    ),
    "isinstance by metaclass": (
        lambda x, v: x + 1 if isinstance(v, Checked) else x,
        [Sized(1), Sized(5), Sized(2)],
    ),
    "function": (
        lambda x, v: v(x),
        [torch.relu, torch.sin, F.relu, add_method, lambda x: x * 3, nn.ReLU()],
    ),
    "bound method": (lambda x, v: x + v(), [Sized(2).__len__, Sized(3).__len__]),
    "builtin method": (lambda x, v: x + v("a"), ["abc".find, "bac".find, "abca".count]),
    "partial": (
        lambda x, v: v(x),
        [functools.partial(torch.add, alpha=a, other=o) for a, o in ((1, X), (2, X), (2, 1))],
    ),
    "partial positional": (
        lambda x, v: v(x),
        [
            functools.partial(torch.sub, 1),
            functools.partial(torch.sub, 2),
            functools.partial(torch.mul, 2),
        ],
    ),
    "range": (
        lambda x, v: sum((x * k for k in v), x),
        [range(3), range(1, 3), range(3, 0, -1), range(0)],
    ),
    "slice": (lambda x, v: x[v], [slice(0, 2), slice(1, 2), slice(None, None, 2), slice(None)]),
    "Size": (
        lambda x, v: x.expand(v) + v[0] + v.numel(),
        [torch.Size([2, 3]), torch.Size([4, 3]), torch.Size([3])],
    ),
    "dtype": (lambda x, v: x.to(v), [torch.float32, torch.float64, torch.int32]),
    "dtype property": (
        lambda x, v: x + 1 if v.is_floating_point else x,
        [torch.float32, torch.int32],
    ),
    "device": (
        lambda x, v: torch.zeros(2, device=v),
        [torch.device("cpu"), torch.device("meta"), "cpu", "meta"],
    ),
    "memory format": (
        lambda x, v: torch.ones(2, 3, 4, 5).contiguous(memory_format=v).stride(),
        [torch.contiguous_format, torch.channels_last],
    ),
    "numpy scalar": (
        lambda x, v: x * v,
        [np.float32(2), np.float64(2), np.int64(3), np.float32(3), np.bool_(True)],
    ),
    "numpy scalar branch": (
        lambda x, v: x + 1 if v > 2 else x - 1,
        [np.float32(2), np.float32(3), np.int64(2), 3],
    ),
    "numpy array": (
        lambda x, v: x + torch.from_numpy(v),
        [np.ones(3, "f4"), np.zeros(3, "f4"), np.ones(1, "f8")],
    ),
    "numpy dtype": (
        lambda x, v: x + torch.from_numpy(np.ones(3, v)),
        [np.float32, np.float64, np.int64],
    ),
    "generator argument": (
        lambda x, v: [x * k for k in v],
        [lambda: counted(3), lambda: started(3), lambda: started(1), lambda: iter([5])],
    ),
    "iterator argument": (
        lambda x, v: (x * next(v), list(v)),
        [lambda: iter([1, 2]), lambda: iter([3]), lambda: iter([]), lambda: iter((1, 2))],
    ),
    "zip argument": (
        lambda x, v: [x * a + b for a, b in v],
        [lambda: zip([1, 2], [3, 4], strict=False), lambda: zip([1], [3, 4], strict=False)],
    ),
    "count argument": (
        lambda x, v: (x * next(v), next(v)),
        [
            lambda: itertools.count(1),
            lambda: itertools.count(5, 2),
            lambda: itertools.cycle([1, 2]),
        ],
    ),
    "len of an object": (
        lambda x, v: x + len(v) if v else x - 1,
        [Sized(0), Sized(1), Sized(2), [1]],
    ),
    "bool of an object": (lambda x, v: x + 1 if v else x, [Truth(True), Truth(False)]),
    "attributes": (
        lambda x, v: x * v.a if hasattr(v, "a") else x,
        [box(a=1), box(a=2), box(b=1), box(a=X)],
    ),
    "nested attributes": (
        lambda x, v: x * v.a.b,
        [box(a=box(b=1)), box(a=box(b=2)), box(a=Data(1, 5))],
    ),
    "vars": (
        lambda x, v: [x * k for k in vars(v).values()],
        [box(a=1, b=2), box(b=2, a=1), box(a=1)],
    ),
    "exception argument": (lambda x, v: x + v.args[0], [ValueError(1), ValueError(2), KeyError(1)]),
    "raised": (lambda x, v: x[v], [0, 5, -1, -4, (0, 0)]),
    "raises": (lambda x, v: x / (1 // v), [1, 0]),
    "caught": (lambda x, v: caught(x, v), [{"a": 1}, {}, {"a": "s"}, None]),
    "module argument": (
        lambda x, v: v(x),
        [
            nn.Linear(3, 3),
            nn.Linear(3, 3, bias=False),
            nn.Linear(3, 2),
            nn.Identity(),
            nn.Sequential(),
        ],
    ),
    "sliced sizes": (
        lambda x, v: v.view(-1)[: v.shape[0]],
        [M, M[:2], torch.ones(5, 1), torch.ones(1, 5), torch.ones(0, 3)],
    ),
    "tensor dtype": (
        lambda x, v: v * 2 + (v.dtype is torch.float32),
        [M, M.double(), M.int(), M.bool(), M.half(), M.to(torch.complex64)],
    ),
    "tensor rank": (lambda x, v: v * v.dim(), [X, M, M[None], torch.tensor(1.0)]),
    "tensor sizes": (
        lambda x, v: v * v.shape[0] if v.size(0) > 3 else v,
        [torch.ones(n) for n in (3, 4, 5, 1, 0, 100)],
    ),
    "tensor sizes equal": (
        lambda x, v: v + v.t() if v.shape[0] == v.shape[1] else v,
        [torch.ones(s) for s in ((2, 3), (3, 3), (4, 4), (4, 2), (1, 1))],
    ),
    "tensor broadcast": (
        lambda x, v: x + v,
        [torch.ones(s) for s in ((3,), (1,), (2, 3), (3, 1), (2,))],
    ),
    "tensor strides": (
        lambda x, v: v.stride(),
        [M, M.t(), strided((3, 4)), M[:, :2], M.expand(2, 3, 4)],
    ),
    "tensor contiguity": (
        lambda x, v: v.view(-1) if v.is_contiguous() else v.reshape(-1) + 1,
        [M, M.t(), M[:, 1:2], M[1:]],
    ),
    "tensor offset": (lambda x, v: v.storage_offset(), [M, M[1:], M[2:]]),
    "tensor channels last": (
        lambda x, v: v.is_contiguous(memory_format=torch.channels_last),
        [torch.ones(2, 3, 4, 5), torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last)],
    ),
    "tensor requires grad": (lambda x, v: (v * 2).requires_grad, [M, with_grad(M)]),
    "tensor is leaf": (lambda x, v: x + 1 if v.is_leaf else x, [M, with_grad(M), with_grad(M) * 2]),
    "tensor grad": (
        lambda x, v: x + 1 if v.grad is None else x + v.grad,
        [with_grad(X), with_grad(X, True)],
    ),
    "tensor grad fn": (
        lambda x, v: x + 1 if v.grad_fn is None else x,
        [with_grad(X), with_grad(X) * 2, X],
    ),
    "tensor device": (
        lambda x, v: v * 2 if v.device.type == "cpu" else v + 1,
        [M, M.to("meta"), M[1:]],
    ),
    "tensor is meta": (lambda x, v: v.is_meta, [M, M.to("meta")]),
    "tensor subclass": (
        lambda x, v: (type(v).__name__, type(v * 2).__name__),
        [M, M.as_subclass(Sub), nn.Parameter(M)],
    ),
    "tensor function subclass": (
        lambda x, v: v + 1,
        [M, M.as_subclass(Doubling), M.as_subclass(Sub)],
    ),
    "tensor isinstance": (
        lambda x, v: x + 1 if isinstance(v, nn.Parameter) else x,
        [M, nn.Parameter(M), nn.Buffer(M)],
    ),
    "tensor layout": (lambda x, v: x + 1 if v.is_sparse else v * 2, [M, M.to_sparse()]),
    "tensor compressed": (lambda x, v: str(v.layout), [M, M.to_sparse(), M.to_sparse_csr()]),
    "tensor conjugate": (
        lambda x, v: (v.is_conj(), v * 2),
        [M + 1j, (M + 1j).conj(), (M + 1j).conj().resolve_conj()],
    ),
    "tensor negative": (lambda x, v: (v.is_neg(), v * 2), [M, (M + 1j).conj().imag]),
    "tensor is inference": (
        lambda x, v: v.is_inference(),
        [M, torch.inference_mode()(lambda: M.clone())()],
    ),
    "tensor version": (
        lambda x, v: x + v._version,
        [X, X.clone().add_(1), X.clone().add_(1).add_(1)],
    ),
    "conjugate of a view": (lambda x, v: torch.is_conj(v[0]), [M + 1j, (M + 1j).conj()]),
    "two objects written": (
        lambda x, v: (setattr(v[0], "n", 5), x + v[1].n)[1],
        [lambda: (Sized(1),) * 2, lambda: (Sized(1), Sized(1))],
    ),
    "two dicts written": (
        lambda x, v: (v[0].update(a=5), x + v[1]["a"])[1],
        [lambda: ({"a": 1}, {"a": 1}), lambda: ({"a": 1},) * 2],
    ),
    "tensor value": (lambda x, v: x + 1 if v > 0 else x, [torch.tensor(1.0), torch.tensor(-1.0)]),
    "tensor item": (
        lambda x, v: x * v.item(),
        [torch.tensor(2), torch.tensor(3), torch.tensor(2.5)],
    ),
    "aliased inputs": (
        lambda x, v: (v[0].clone().add_(v[1]), v[0] is v[1]),
        [(FIRST, FIRST), (FIRST, SECOND), (SECOND, SECOND)],
    ),
    "aliased mutation": (
        lambda x, v: (v[0].add_(1), v[1] * 2),
        [lambda: (X.clone(),) * 2, lambda: (X.clone(), X.clone()), lambda: views(X.clone())],
    ),
    "alias of the other": (lambda x, v: (x is v, x + v), [FIRST, X, FIRST]),
    "same list twice": (
        lambda x, v: (v[0].append(3), x + len(v[1]))[1],
        [lambda: ([1],) * 2, lambda: ([1], [1])],
    ),
    "identity of constants": (
        lambda x, v: x + 1 if v[0] is v[1] else x,
        [lambda: (box(),) * 2, lambda: (box(), box())],
    ),
    "self containing": (lambda x, v: x + (v[0] is v), [lambda: looped(), lambda: [[]]]),
}


def caught(x, v):
    try:
        return x + v["a"]
    except KeyError:
        return x - 1
    except TypeError as error:
        return x, str(error)


def views(t):
    return t, t[:2]


def looped():
    v: list[Any] = []
    v.append(v)
    return v


def tagged(n):
    t = X.clone()
    t.tag = n
    return t


ALIVE = [Sized(3), Sized(4)]
ARGUMENTS["weak reference"] = (lambda x, v: x + v().n, [weakref.ref(s) for s in ALIVE])
ARGUMENTS["tensor attribute"] = (
    lambda x, v: v + v.tag if hasattr(v, "tag") else v,
    [X, tagged(1), tagged(2)],
)
ARGUMENTS["register"] = (
    lambda x, v: x + 1 if isinstance(v, Hooked) else x,
    [box(), type("Marked", (), {"marker": 1})()],
)


def made(value: Any) -> Any:
    return (
        value()
        if isinstance(value, types.FunctionType)
        and value.__name__ == "<lambda>"
        and not value.__code__.co_argcount
        else value
    )


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments(name, alike):
    program, values = ARGUMENTS[name]
    captured = bd.optimize("eager")(program)
    for k in [0, *range(len(values)), *reversed(range(len(values)))]:
        expected = outcome(program, X, made(values[k]))
        assert alike(expected, outcome(captured, X, made(values[k]))), f"value {k}: {values[k]}"
