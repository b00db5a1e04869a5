"""One row per kind of state: compiled, run, state changed, run, state restored, run; each result is eager's."""

from __future__ import annotations

import abc
import builtins
import collections
import contextlib
import dataclasses
import enum
import functools
import gc
import itertools
import os
import sys
import tracemalloc
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest.mock import patch

import bytecode_dynamo as bd
import numpy as np
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

X = torch.tensor([1.0, -2.0, 3.0])
M = torch.arange(12.0).reshape(3, 4)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    yield
    bd.reset()


def outcome(f: Callable[..., Any], *arguments: Any) -> Any:
    """What a call gives; an exception as its type and text."""
    try:
        return f(*arguments)
    except Exception as error:
        return type(error).__name__, str(error)


# Arguments: (program of x and v, values of v). A value that is a zero-argument lambda makes a fresh one for each call.


class Named(NamedTuple):
    a: int
    b: float


@dataclasses.dataclass
class Data:
    a: int
    b: Any = 2.0


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: int


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Flag(enum.IntFlag):
    A = 1
    B = 2


class Int(int):
    pass


class List(list):
    pass


class Sub(torch.Tensor):
    pass


class Doubling(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {})) * 2


class Sized:
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n


class Truth:
    def __init__(self, v):
        self.v = v

    def __bool__(self):
        return self.v


class Meta(type):
    def __instancecheck__(cls, other):
        return getattr(other, "n", 0) > 2


class Checked(metaclass=Meta):
    pass


class Hooked(abc.ABC):  # noqa: B024
    @classmethod
    def __subclasshook__(cls, other):
        return hasattr(other, "marker") or NotImplemented


def box(**fields: Any) -> types.SimpleNamespace:
    return types.SimpleNamespace(**fields)


def counted(n):
    yield from range(n)


def started(n):
    it = counted(n)
    next(it)
    return it


def with_grad(t, grad=False):
    t = t.clone().requires_grad_()
    if grad:
        t.grad = torch.ones_like(t)
    return t


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
    "truth of a container": (lambda x, v: x + 1 if v else x - 1, [[], [1], {}, {1: 2}, (), (0,), "", "a"]),
    "list contents": (lambda x, v: x * v[0] + v[-1], [[1, 2], [2, 1], [3, 4, 5], [1]]),
    "list of tensors": (lambda x, v: sum(v, x), [[X], [X, X], [X, M[:, 0]], []]),
    "list or tuple": (lambda x, v: (x + len(v), type(v).__name__, v + v), [[1], (1,), List([1])]),
    "tuple contents": (lambda x, v: x * v[0], [(1, 2), (2, 2), (2.0, 2), (X, 2)]),
    "dict contents": (lambda x, v: x * v["a"], [{"a": 1}, {"a": 2}, {"b": 1}, {"a": X}]),
    "dict order": (lambda x, v: [x * k for k in v.values()], [{"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1}]),
    "dict keys of other types": (lambda x, v: x + v[1] + len(str(next(iter(v)))), [{1: 1}, {True: 1}, {1.0: 1}]),
    "dict membership": (lambda x, v: x + 1 if "k" in v else x, [{}, {"k": 1}, {"j": 1}]),
    "dict get": (lambda x, v: x + v.get("k", 5), [{}, {"k": 1}]),
    "set contents": (lambda x, v: x + 1 if 3 in v else x + len(v), [{1}, {3}, {1, 2}, frozenset({3}), set()]),
    "nested": (lambda x, v: x * v["k"][0]["j"][1], [{"k": [{"j": (1, 2)}]}, {"k": [{"j": (1, 3)}]}, {"k": ({"j": [0, X]},)}]),
    "OrderedDict": (
        lambda x, v: [x * k for k in v.values()],
        [collections.OrderedDict(a=1, b=2), collections.OrderedDict(b=2, a=1), {"a": 1, "b": 2}],
    ),
    "defaultdict": (
        lambda x, v: x + v["z"],
        [lambda: collections.defaultdict(lambda: 3), lambda: collections.defaultdict(lambda: 4), lambda: {"z": 1}],
    ),
    "deque": (lambda x, v: x * v[0] + len(v), [collections.deque([1, 2]), collections.deque([2, 1]), collections.deque([1])]),
    "Counter": (lambda x, v: x * v["a"], [collections.Counter("aab"), collections.Counter("b")]),
    "ChainMap": (lambda x, v: x * v["a"], [collections.ChainMap({"a": 1}, {"a": 2}), collections.ChainMap({}, {"a": 2})]),
    "namedtuple": (lambda x, v: x * v.a + v.b, [Named(1, 2.0), Named(2, 2.0), Named(1, 3.0), Data(1, 2.0)]),
    "dataclass": (lambda x, v: x * v.a + v.b, [Data(1), Data(2), Data(1, X), Data(1, 3)]),
    "frozen dataclass": (lambda x, v: x * v.a + hash(v) % 1, [Frozen(1), Frozen(2)]),
    "dataclass equality": (lambda x, v: x + 1 if v == Data(1) else x, [Data(1), Data(2), Data(1, 3)]),
    "dataclass replace": (lambda x, v: x * dataclasses.replace(v, b=3).a, [Data(1), Data(2)]),
    "enum": (lambda x, v: x * v.value if v is not Colour.RED else x, [Colour.RED, Colour.BLUE]),
    "int flag": (lambda x, v: x + 1 if v & Flag.A else x - v, [Flag.A, Flag.B, Flag.A | Flag.B, 1]),
    "class argument": (lambda x, v: x + v(3), [int, float, Int, str]),
    "subclass of int": (lambda x, v: (x * v, type(v).__name__), [2, Int(2), Int(3)]),
    "type": (lambda x, v: type(v).__name__ + str(x.shape), [1, 1.0, "a", Int(1), X, None, box()]),
    "isinstance": (lambda x, v: x + 1 if isinstance(v, (list, int)) else x, [1, "a", [], List(), (), True]),
    "isinstance by metaclass": (lambda x, v: x + 1 if isinstance(v, Checked) else x, [Sized(1), Sized(5), Sized(2)]),
    "function": (lambda x, v: v(x), [torch.relu, torch.sin, F.relu, add_method, lambda x: x * 3, nn.ReLU()]),
    "bound method": (lambda x, v: x + v(), [Sized(2).__len__, Sized(3).__len__]),
    "builtin method": (lambda x, v: x + v("a"), ["abc".find, "bac".find, "abca".count]),
    "partial": (
        lambda x, v: v(x),
        [functools.partial(torch.add, alpha=a, other=o) for a, o in ((1, X), (2, X), (2, 1))],
    ),
    "partial positional": (
        lambda x, v: v(x),
        [functools.partial(torch.sub, 1), functools.partial(torch.sub, 2), functools.partial(torch.mul, 2)],
    ),
    "range": (lambda x, v: sum((x * k for k in v), x), [range(3), range(1, 3), range(3, 0, -1), range(0)]),
    "slice": (lambda x, v: x[v], [slice(0, 2), slice(1, 2), slice(None, None, 2), slice(None)]),
    "Size": (lambda x, v: x.expand(v) + v[0] + v.numel(), [torch.Size([2, 3]), torch.Size([4, 3]), torch.Size([3])]),
    "dtype": (lambda x, v: x.to(v), [torch.float32, torch.float64, torch.int32]),
    "dtype property": (lambda x, v: x + 1 if v.is_floating_point else x, [torch.float32, torch.int32]),
    "device": (lambda x, v: torch.zeros(2, device=v), [torch.device("cpu"), torch.device("meta"), "cpu", "meta"]),
    "memory format": (
        lambda x, v: torch.ones(2, 3, 4, 5).contiguous(memory_format=v).stride(),
        [torch.contiguous_format, torch.channels_last],
    ),
    "numpy scalar": (lambda x, v: x * v, [np.float32(2), np.float64(2), np.int64(3), np.float32(3), np.bool_(True)]),
    "numpy scalar branch": (lambda x, v: x + 1 if v > 2 else x - 1, [np.float32(2), np.float32(3), np.int64(2), 3]),
    "numpy array": (lambda x, v: x + torch.from_numpy(v), [np.ones(3, "f4"), np.zeros(3, "f4"), np.ones(1, "f8")]),
    "numpy dtype": (lambda x, v: x + torch.from_numpy(np.ones(3, v)), [np.float32, np.float64, np.int64]),
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
        [lambda: itertools.count(1), lambda: itertools.count(5, 2), lambda: itertools.cycle([1, 2])],
    ),
    "len of an object": (lambda x, v: x + len(v) if v else x - 1, [Sized(0), Sized(1), Sized(2), [1]]),
    "bool of an object": (lambda x, v: x + 1 if v else x, [Truth(True), Truth(False)]),
    "attributes": (lambda x, v: x * v.a if hasattr(v, "a") else x, [box(a=1), box(a=2), box(b=1), box(a=X)]),
    "nested attributes": (lambda x, v: x * v.a.b, [box(a=box(b=1)), box(a=box(b=2)), box(a=Data(1, 5))]),
    "vars": (lambda x, v: [x * k for k in vars(v).values()], [box(a=1, b=2), box(b=2, a=1), box(a=1)]),
    "exception argument": (lambda x, v: x + v.args[0], [ValueError(1), ValueError(2), KeyError(1)]),
    "raised": (lambda x, v: x[v], [0, 5, -1, -4, (0, 0)]),
    "raises": (lambda x, v: x / (1 // v), [1, 0]),
    "caught": (lambda x, v: caught(x, v), [{"a": 1}, {}, {"a": "s"}, None]),
    "module argument": (
        lambda x, v: v(x),
        [nn.Linear(3, 3), nn.Linear(3, 3, bias=False), nn.Linear(3, 2), nn.Identity(), nn.Sequential()],
    ),
    "sliced sizes": (lambda x, v: v.view(-1)[: v.shape[0]], [M, M[:2], torch.ones(5, 1), torch.ones(1, 5), torch.ones(0, 3)]),
    "tensor dtype": (
        lambda x, v: v * 2 + (v.dtype is torch.float32),
        [M, M.double(), M.int(), M.bool(), M.half(), M.to(torch.complex64)],
    ),
    "tensor rank": (lambda x, v: v * v.dim(), [X, M, M[None], torch.tensor(1.0)]),
    "tensor sizes": (lambda x, v: v * v.shape[0] if v.size(0) > 3 else v, [torch.ones(n) for n in (3, 4, 5, 1, 0, 100)]),
    "tensor sizes equal": (
        lambda x, v: v + v.t() if v.shape[0] == v.shape[1] else v,
        [torch.ones(s) for s in ((2, 3), (3, 3), (4, 4), (4, 2), (1, 1))],
    ),
    "tensor broadcast": (lambda x, v: x + v, [torch.ones(s) for s in ((3,), (1,), (2, 3), (3, 1), (2,))]),
    "tensor strides": (lambda x, v: v.stride(), [M, M.t(), strided((3, 4)), M[:, :2], M.expand(2, 3, 4)]),
    "tensor contiguity": (lambda x, v: v.view(-1) if v.is_contiguous() else v.reshape(-1) + 1, [M, M.t(), M[:, 1:2], M[1:]]),
    "tensor offset": (lambda x, v: v.storage_offset(), [M, M[1:], M[2:]]),
    "tensor channels last": (
        lambda x, v: v.is_contiguous(memory_format=torch.channels_last),
        [torch.ones(2, 3, 4, 5), torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last)],
    ),
    "tensor requires grad": (lambda x, v: (v * 2).requires_grad, [M, with_grad(M)]),
    "tensor is leaf": (lambda x, v: x + 1 if v.is_leaf else x, [M, with_grad(M), with_grad(M) * 2]),
    "tensor grad": (lambda x, v: x + 1 if v.grad is None else x + v.grad, [with_grad(X), with_grad(X, True)]),
    "tensor grad fn": (lambda x, v: x + 1 if v.grad_fn is None else x, [with_grad(X), with_grad(X) * 2, X]),
    "tensor device": (lambda x, v: v * 2 if v.device.type == "cpu" else v + 1, [M, M.to("meta"), M[1:]]),
    "tensor is meta": (lambda x, v: v.is_meta, [M, M.to("meta")]),
    "tensor subclass": (lambda x, v: (type(v).__name__, type(v * 2).__name__), [M, M.as_subclass(Sub), nn.Parameter(M)]),
    "tensor function subclass": (lambda x, v: v + 1, [M, M.as_subclass(Doubling), M.as_subclass(Sub)]),
    "tensor isinstance": (lambda x, v: x + 1 if isinstance(v, nn.Parameter) else x, [M, nn.Parameter(M), nn.Buffer(M)]),
    "tensor layout": (lambda x, v: x + 1 if v.is_sparse else v * 2, [M, M.to_sparse()]),
    "tensor compressed": (lambda x, v: str(v.layout), [M, M.to_sparse(), M.to_sparse_csr()]),
    "tensor conjugate": (lambda x, v: (v.is_conj(), v * 2), [M + 1j, (M + 1j).conj(), (M + 1j).conj().resolve_conj()]),
    "tensor negative": (lambda x, v: (v.is_neg(), v * 2), [M, (M + 1j).conj().imag]),
    "tensor is inference": (lambda x, v: v.is_inference(), [M, torch.inference_mode()(lambda: M.clone())()]),
    "tensor version": (lambda x, v: x + v._version, [X, X.clone().add_(1), X.clone().add_(1).add_(1)]),
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
    "tensor item": (lambda x, v: x * v.item(), [torch.tensor(2), torch.tensor(3), torch.tensor(2.5)]),
    "aliased inputs": (
        lambda x, v: (v[0].clone().add_(v[1]), v[0] is v[1]),
        [(FIRST, FIRST), (FIRST, SECOND), (SECOND, SECOND)],
    ),
    "aliased mutation": (
        lambda x, v: (v[0].add_(1), v[1] * 2),
        [lambda: (X.clone(),) * 2, lambda: (X.clone(), X.clone()), lambda: views(X.clone())],
    ),
    "alias of the other": (lambda x, v: (x is v, x + v), [FIRST, X, FIRST]),
    "same list twice": (lambda x, v: (v[0].append(3), x + len(v[1]))[1], [lambda: ([1],) * 2, lambda: ([1], [1])]),
    "identity of constants": (lambda x, v: x + 1 if v[0] is v[1] else x, [lambda: (box(),) * 2, lambda: (box(), box())]),
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
ARGUMENTS["tensor attribute"] = (lambda x, v: v + v.tag if hasattr(v, "tag") else v, [X, tagged(1), tagged(2)])
ARGUMENTS["register"] = (lambda x, v: x + 1 if isinstance(v, Hooked) else x, [box(), type("Marked", (), {"marker": 1})()])


def made(value: Any) -> Any:
    return (
        value()
        if isinstance(value, types.FunctionType) and value.__name__ == "<lambda>" and not value.__code__.co_argcount
        else value
    )


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments(name, alike):
    program, values = ARGUMENTS[name]
    captured = bd.optimize("eager")(program)
    for k in [0, *range(len(values)), *reversed(range(len(values)))]:
        expected = outcome(program, X, made(values[k]))
        assert alike(expected, outcome(captured, X, made(values[k]))), f"value {k}: {values[k]}"


# State: each row gives a program of x and a context manager that changes what the program reads.


STATES: dict[str, Callable[[], tuple[Callable[[Any], Any], Any]]] = {}


def row(f):
    STATES[f.__name__] = f
    return f


def rows(**made: Callable[[], tuple[Callable[[Any], Any], Any]]) -> None:
    STATES.update(made)


@contextlib.contextmanager
def changed(change: Callable[[], Any], restore: Callable[[], Any]):
    change()
    try:
        yield
    finally:
        restore()


ABSENT = object()


@contextlib.contextmanager
def setting(owner: Any, **new: Any):
    """Attributes set inside; the old ones restored after, or deleted where the object itself had none."""
    old = {name: vars(owner).get(name, ABSENT) if hasattr(owner, "__dict__") else ABSENT for name in new}
    seen = {name: getattr(owner, name, ABSENT) for name in new}
    for name, value in new.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name in new:
            if old[name] is ABSENT and seen[name] is not getattr(owner, name):
                with contextlib.suppress(AttributeError, TypeError):
                    delattr(owner, name)
            restored = seen[name] if old[name] is ABSENT else old[name]
            if restored is not ABSENT and getattr(owner, name, ABSENT) is not seen[name]:
                setattr(owner, name, restored)


def items(d: Any, new: Any = (), **more: Any) -> Any:
    return patch.dict(d, new, clear=more.pop("clear", False), **more)


G_INT, G_LIST, G_DICT, G_TENSOR, G_NONE = 2, [1, 2], {"a": 1}, X * 2, None
HERE = globals()


def helper(x, k=2, *, j=3):
    return x * k + j


def scaled(x):
    return x * G_INT


def g_int(x):
    return x * G_INT


def g_tensor(x):
    return x * G_TENSOR


def g_none(x):
    return x if G_NONE is None else x * G_NONE


def g_list(x):
    return [x * k for k in G_LIST]


def g_dict(x):
    return [x * v + len(k) for k, v in G_DICT.items()]


def g_missing(x):
    return x * G_MISSING  # noqa: F821


def calls_helper(x):
    return helper(x)


def calls_deeper(x):
    return scaled(x)


def calls_relu(x):
    return F.relu(x) + torch.nn.functional.relu(-x)


def calls_len(x):
    return x * len([1, 2])


def calls_abs(x):
    return x * abs(-2)


def calls_max(x):
    return x * max(1, 2)


def calls_tensor_method(x):
    return x.sin()


def reads_environ(x):
    return x * int(os.environ.get("GUARD_TABLE", "2"))


def reads_environ_item(x):
    return x + 1 if "GUARD_TABLE" in os.environ else x


def reads_getenv(x):
    return x * len(os.getenv("GUARD_TABLE", ""))


def reads_modules(x):
    return x * sys.modules[__name__].G_INT


def reads_imported(x):
    import math

    return x * math.pi


def reads_globals(x):
    return x * globals()["G_INT"]


rows(
    global_int=lambda: (g_int, setting(sys.modules[__name__], G_INT=5)),
    global_type=lambda: (g_int, setting(sys.modules[__name__], G_INT=2.5)),
    global_tensor=lambda: (g_tensor, setting(sys.modules[__name__], G_TENSOR=X + 1)),
    global_tensor_dtype=lambda: (g_tensor, setting(sys.modules[__name__], G_TENSOR=X.double())),
    global_tensor_to_int=lambda: (g_tensor, setting(sys.modules[__name__], G_TENSOR=4)),
    global_none=lambda: (g_none, setting(sys.modules[__name__], G_NONE=4)),
    global_list=lambda: (g_list, setting(sys.modules[__name__], G_LIST=[3])),
    global_list_append=lambda: (g_list, changed(lambda: G_LIST.append(4), G_LIST.pop)),
    global_list_item=lambda: (g_list, changed(lambda: G_LIST.__setitem__(0, 9), lambda: G_LIST.__setitem__(0, 1))),
    global_list_reversed=lambda: (g_list, changed(G_LIST.reverse, G_LIST.reverse)),
    global_dict_key=lambda: (g_dict, items(G_DICT, bb=2)),
    global_dict_value=lambda: (g_dict, items(G_DICT, a=2)),
    global_dict_cleared=lambda: (g_dict, items(G_DICT, {}, clear=True)),
    global_defined=lambda: (g_missing, setting(sys.modules[__name__], G_MISSING=3)),
    global_of_a_callee=lambda: (calls_deeper, setting(sys.modules[__name__], G_INT=5)),
    helper_replaced=lambda: (calls_helper, setting(sys.modules[__name__], helper=lambda x: x - 1)),
    defaults=lambda: (calls_helper, setting(helper, __defaults__=(7,))),
    kwdefaults=lambda: (calls_helper, setting(helper, __kwdefaults__={"j": 9})),
    kwdefaults_item=lambda: (calls_helper, items(helper.__kwdefaults__, j=8)),
    code=lambda: (calls_helper, setting(helper, __code__=(lambda x, k=1, *, j=1: x - k - j).__code__)),
    own_code=lambda: own_code(),
    relu=lambda: (calls_relu, setting(F, relu=lambda x: x * 3)),
    torch_function=lambda: (lambda x: torch.sin(x), setting(torch, sin=torch.cos)),
    tensor_method=lambda: (calls_tensor_method, setting(torch.Tensor, sin=lambda t: t * 3)),
    global_shadows_builtin=lambda: (calls_len, setting(sys.modules[__name__], len=lambda v: 7)),
    builtin_patched=lambda: (calls_max, setting(builtins, max=lambda *v: 7)),
    builtin_function_patched=lambda: (calls_abs, setting(builtins, abs=lambda v: v)),
    module_attribute=lambda: (lambda x: x * HELPERS.scale, setting(HELPERS, scale=5)),
    environ=lambda: (reads_environ, items(os.environ, GUARD_TABLE="5")),
    environ_membership=lambda: (reads_environ_item, items(os.environ, GUARD_TABLE="5")),
    getenv=lambda: (reads_getenv, items(os.environ, GUARD_TABLE="abc")),
    sys_modules=lambda: (reads_modules, setting(sys.modules[__name__], G_INT=6)),
    module_attribute_added=lambda: (lambda x: x + 1 if hasattr(HELPERS, "extra") else x, setting(HELPERS, extra=5)),
    module_attribute_default=lambda: (lambda x: x + getattr(HELPERS, "extra", 1), setting(HELPERS, extra=5)),
    imported=lambda: (reads_imported, setting(sys.modules["math"], pi=3.0)),
    imported_replaced=lambda: (reads_imported, items(sys.modules, math=box(pi=4.0))),
    globals_item=lambda: (reads_globals, setting(sys.modules[__name__], G_INT=6)),
)

HELPERS = types.ModuleType("helpers")
HELPERS.scale = 2  # type: ignore[attr-defined]


def own_code():
    def f(x):
        return x + 1

    def g(x):
        return x * 7

    return f, setting(f, __code__=g.__code__)


@row
def closure_cell():
    n = 2

    def set_to(v):
        nonlocal n
        n = v

    return (lambda x: x * n), changed(lambda: set_to(5), lambda: set_to(2))


@row
def closure_of_a_callee():
    n = 2

    def set_to(v):
        nonlocal n
        n = v

    def g(x):
        return x * n

    return (lambda x: g(x)), changed(lambda: set_to(X), lambda: set_to(2))


@row
def closure_unbound():
    n = 2

    def unset():
        nonlocal n
        del n

    def reset():
        nonlocal n
        n = 2

    def f(x):
        try:
            return x * n
        except NameError:
            return x

    return f, changed(unset, reset)


class Base:
    k = 3

    def m(self, x):
        return x * self.k

    @property
    def p(self):
        return self.k + 1

    @staticmethod
    def s(x):
        return x + 1

    @classmethod
    def c(cls, x):
        return x * cls.k

    @functools.cached_property
    def cached(self):
        return 10

    def __call__(self, x):
        return x - 1


class Derived(Base):
    def m(self, x):
        return super().m(x) + 1


class Other(Base):
    k = 9

    def m(self, x):
        return x - 5


def raising(self, x):
    raise ValueError(self.k)


def attempt(o, x):
    try:
        return o.m(x)
    except ValueError as error:
        return x, error.args


def between():
    parent = type("Parent", (Base,), {})

    class Child(parent):
        def m(self, x):
            return super().m(x) * 2

    return Child().m, setting(parent, m=lambda self, x: x + 30)


class MetaAttribute(type):
    kind = 3


class Slotted:
    __slots__ = ("a", "b")


class GetAttr:
    def __getattr__(self, name):
        return len(name)


class Descriptor:
    def __init__(self, n):
        self.n = n

    def __get__(self, obj, owner=None):
        return self.n


class Described:
    d = Descriptor(2)


def of(obj: Any, program: Callable[[Any, Any], Any], change: Callable[[Any], Any]):
    return lambda: (lambda o: ((lambda x: program(o, x)), change(o)))(obj())


def klass(base: type) -> type:
    """A fresh copy of a class, so that patches of it stay here."""
    return type(base.__name__, base.__bases__, {k: v for k, v in vars(base).items() if k not in ("__dict__", "__weakref__")})


def on_class(**new: Any) -> Callable[[Any], Any]:
    return lambda o: setting(type(o), **new)


def on_instance(**new: Any) -> Callable[[Any], Any]:
    return lambda o: setting(o, **new)


rows(
    class_attribute=of(lambda: klass(Base)(), lambda o, x: x * o.k, on_class(k=7)),
    class_attribute_shadowed=of(Base, lambda o, x: x * o.k, on_instance(k=7)),
    class_attribute_of_base=of(Derived, lambda o, x: x * o.k, lambda o: setting(Base, k=7)),
    class_attribute_read_of_class=of(lambda: klass(Base), lambda c, x: x * c.k, lambda c: setting(c, k=7)),
    instance_attribute=of(lambda: box(a=1), lambda o, x: x * o.a, on_instance(a=X)),
    instance_attribute_added=of(lambda: box(), lambda o, x: x + 1 if hasattr(o, "a") else x, on_instance(a=2)),
    instance_attribute_default=of(lambda: box(), lambda o, x: x * getattr(o, "a", 3), on_instance(a=2)),
    instance_method=of(Base, lambda o, x: o.m(x), on_instance(m=lambda x: x - 3)),
    class_method_replaced=of(lambda: klass(Base)(), lambda o, x: o.m(x), on_class(m=lambda self, x: x - 3)),
    super_method_replaced=of(Derived, lambda o, x: o.m(x), lambda o: setting(Base, m=lambda self, x: x - 3)),
    super_method_added_between=lambda: between(),
    setattr_added=of(
        lambda: klass(Base)(),
        lambda o, x: (setattr(o, "q", 1), x + o.q)[1],
        on_class(__setattr__=lambda o, n, v: vars(o).update(q=9)),
    ),
    exception_class=of(lambda: klass(Base)(), lambda o, x: attempt(o, x), on_class(m=raising)),
    property_raises=of(lambda: klass(Base)(), lambda o, x: x + getattr(o, "p", 3), on_class(p=property(lambda o: o.nothing))),
    metaclass_attribute_shadowed=of(lambda: MetaAttribute("C", (), {}), lambda c, x: x * c.kind, lambda c: setting(c, kind=8)),
    metaclass_attribute=of(
        lambda: MetaAttribute("C", (), {}), lambda c, x: x * c.kind, lambda c: setting(MetaAttribute, kind=8)
    ),
    function_name=of(lambda: klass(Base).m, lambda f, x: x * len(f.__name__), lambda f: setting(f, __name__="abcdef")),
    class_assigned=of(Base, lambda o, x: o.m(x), lambda o: setting(o, __class__=Other)),
    class_assigned_derived=of(Base, lambda o, x: o.m(x), lambda o: setting(o, __class__=Derived)),
    bases_assigned=of(Derived, lambda o, x: o.m(x), lambda o: setting(Derived, __bases__=(Other,))),
    property_replaced=of(lambda: klass(Base)(), lambda o, x: x * o.p, on_class(p=property(lambda self: 50))),
    property_to_value=of(lambda: klass(Base)(), lambda o, x: x * o.p, on_class(p=5)),
    property_reads=of(Base, lambda o, x: x * o.p, on_instance(k=5)),
    static_method=of(lambda: klass(Base)(), lambda o, x: o.s(x), on_class(s=staticmethod(lambda x: x * 6))),
    class_method=of(lambda: klass(Base)(), lambda o, x: o.c(x), on_class(k=11)),
    cached_property=of(Base, lambda o, x: x * o.cached, on_instance(cached=3)),
    call_replaced=of(lambda: klass(Base)(), lambda o, x: o(x), on_class(__call__=lambda self, x: x * 8)),
    call_on_instance=of(lambda: klass(Base)(), lambda o, x: o(x), on_instance(__call__=lambda x: x * 8)),
    getattr_replaced=of(lambda: klass(GetAttr)(), lambda o, x: x * o.abc, on_class(__getattr__=lambda self, n: 20)),
    getattr_shadowed=of(GetAttr, lambda o, x: x * o.abc, on_instance(abc=20)),
    getattr_added=of(lambda: klass(Base)(), lambda o, x: x * getattr(o, "zz", 1), on_class(__getattr__=lambda self, n: 20)),
    getattribute_added=of(lambda: klass(Base)(), lambda o, x: x * o.k, on_class(__getattribute__=lambda self, n: 20)),
    descriptor_state=of(Described, lambda o, x: x * o.d, lambda o: setting(vars(Described)["d"], n=8)),
    descriptor_replaced=of(lambda: klass(Described)(), lambda o, x: x * o.d, on_class(d=Descriptor(9))),
    descriptor_get_replaced=of(Described, lambda o, x: x * o.d, lambda o: setting(Descriptor, __get__=lambda *a: 70)),
    len_of_class=of(lambda: klass(Sized)(2), lambda o, x: x * len(o), on_class(__len__=lambda self: 9)),
    bool_added=of(lambda: klass(Base)(), lambda o, x: x + 1 if o else x, on_class(__bool__=lambda self: False)),
    len_added=of(lambda: klass(Base)(), lambda o, x: x + 1 if o else x, on_class(__len__=lambda self: 0)),
    eq_added=of(lambda: klass(Base)(), lambda o, x: x + 1 if o == 3 else x, on_class(__eq__=lambda self, other: True)),
    contains_added=of(
        lambda: klass(List)([1]), lambda o, x: x + 1 if 1 in o else x, on_class(__contains__=lambda self, v: False)
    ),
    getitem_added=of(lambda: klass(List)([1]), lambda o, x: x * o[0], on_class(__getitem__=lambda self, v: 12)),
    iter_added=of(lambda: klass(List)([1]), lambda o, x: [x * k for k in o], on_class(__iter__=lambda self: iter([5, 6]))),
    add_added=of(lambda: klass(Base)(), lambda o, x: o + 3, on_class(__add__=lambda self, v: 3)),
    enum_value=of(lambda: Colour.BLUE, lambda o, x: x * o.value, lambda o: setting(o, _value_=20)),
    dataclass_default=of(lambda: Data, lambda c, x: x * c(1).b, lambda c: setting(c.__init__, __defaults__=(50.0,))),
    new_added=of(lambda: klass(Base), lambda c, x: x * c().k, lambda c: setting(c, __new__=lambda cls: box(k=5))),
    init_replaced=of(
        lambda: klass(Sized), lambda c, x: x * c(3).n, lambda c: setting(c, __init__=lambda self, n: setattr(self, "n", 50))
    ),
    metaclass_call=of(
        lambda: Meta("C", (), {"__init__": lambda s: None}),
        lambda c, x: x + isinstance(x, c),
        lambda c: setting(Meta, __instancecheck__=lambda c, o: True),
    ),
    lru_cache_cleared=lambda: lru(),
    slot=lambda: slots(),
    slot_deleted=lambda: slots(True),
    abc_register=lambda: registered(),
    attribute_of_class_with_same_name=of(lambda: box(a=klass(Base)), lambda o, x: x * o.a.k, lambda o: setting(o, a=Other)),
    random_seed=lambda: (
        (lambda x: (torch.manual_seed(3), x + torch.rand(3))[1]),
        changed(lambda: torch.manual_seed(9), lambda: None),
    ),
    random_state=lambda: ((lambda x: x + torch.rand(3)), changed(lambda: torch.manual_seed(9), lambda: None)),
    threads=lambda: (
        (lambda x: x * torch.get_num_threads()),
        changed(lambda: torch.set_num_threads(2), lambda: torch.set_num_threads(1)),
    ),
)


def lru():
    calls = [1]

    @functools.lru_cache
    def cached(k):
        return k * calls[0]

    def change():
        calls[0] = 5

    return (lambda x: x * cached(2)), changed(
        lambda: (change(), cached.cache_clear()), lambda: (calls.__setitem__(0, 1), cached.cache_clear())
    )


def slots(deleted=False):
    s = Slotted()
    s.a = 2

    def f(x):
        return x * s.a if hasattr(s, "a") else x - 1

    return f, changed(lambda: s.__delattr__("a") if deleted else setattr(s, "a", 5), lambda: setattr(s, "a", 2))


def registered():
    abstract = abc.ABCMeta("Abstract", (), {})
    plain = type("Plain", (), {})()

    def program(x):
        return x + 1 if isinstance(plain, abstract) else x

    return program, changed(lambda: abstract.register(type(plain)), lambda: None)


# Modes and settings of the process.


def settings(get, put, new):
    def enter():
        enter.old = get()
        put(new)

    return changed(enter, lambda: put(enter.old))


class Tripled(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * 3 if func is torch.sin else result


class Logged(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result + 1 if func is torch.ops.aten.sin.default else result


W = M.clone().requires_grad_()

MODES: dict[str, tuple[Callable[[Any], Any], Callable[[], Any]]] = {
    "no_grad": (lambda x: (W * 2).requires_grad, torch.no_grad),
    "no_grad read": (lambda x: x + 1 if torch.is_grad_enabled() else x, torch.no_grad),
    "inference": (lambda x: (x * 2).is_inference(), torch.inference_mode),
    "autocast": (lambda x: W @ W.t(), lambda: torch.autocast("cpu", torch.bfloat16)),
    "autocast half": (lambda x: (W @ W.t()).dtype, lambda: torch.autocast("cpu", torch.float16)),
    "autocast off": (lambda x: torch.is_autocast_enabled("cpu"), lambda: torch.autocast("cpu", torch.bfloat16)),
    "default dtype": (
        lambda x: torch.zeros(2) + 1.5,
        lambda: settings(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    ),
    "default dtype of int division": (
        lambda x: torch.arange(3) / 2,
        lambda: settings(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    ),
    "default device": (lambda x: torch.zeros(2).device.type, lambda: torch.device("meta")),
    "default device set": (
        lambda x: torch.zeros(2).device.type,
        lambda: changed(lambda: torch.set_default_device("meta"), lambda: torch.set_default_device(None)),
    ),
    "deterministic": (
        lambda x: x + 1 if torch.are_deterministic_algorithms_enabled() else x,
        lambda: settings(torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True),
    ),
    "deterministic fill": (
        lambda x: torch.empty(3).isnan().all(),
        lambda: settings(torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True),
    ),
    "matmul precision": (
        lambda x: x + len(torch.get_float32_matmul_precision()),
        lambda: settings(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "medium"),
    ),
    "backend flag": (
        lambda x: x + 1 if torch.backends.mkldnn.enabled else x,
        lambda: torch.backends.mkldnn.flags(enabled=False),
    ),
    "cudnn flag": (
        lambda x: x + 1 if torch.backends.cudnn.benchmark else x,
        lambda: setting(torch.backends.cudnn, benchmark=True),
    ),
    "function mode": (lambda x: torch.sin(x), Tripled),
    "function modes disabled": (lambda x: x.as_subclass(Doubling) + 1, torch._C.DisableTorchFunctionSubclass),
    "dispatch mode": (lambda x: torch.sin(x), Logged),
    "anomaly": (lambda x: x + 1 if torch.is_anomaly_enabled() else x, torch.autograd.detect_anomaly),
    "saved tensor hooks": (
        lambda x: (W * W).sum().grad_fn is None,
        lambda: torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t),
    ),
    "grad modes nested": (
        lambda x: torch.is_grad_enabled() + 2 * torch.is_inference_mode_enabled(),
        lambda: torch.set_grad_enabled(False),
    ),
    "warn always": (
        lambda x: x + 1 if torch.is_warn_always_enabled() else x,
        lambda: settings(torch.is_warn_always_enabled, torch.set_warn_always, True),
    ),
    "flush denormal": (
        lambda x: x * 1e-38 * 1e-3,
        lambda: changed(lambda: torch.set_flush_denormal(True), lambda: torch.set_flush_denormal(False)),
    ),
}
for mode_name, (mode_program, mode) in MODES.items():
    STATES[mode_name] = lambda p=mode_program, m=mode: (p, m())


# Modules.


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.lin = nn.Linear(3, 3)
        self.bn = nn.BatchNorm1d(3)
        self.drop = nn.Dropout(1.0)
        self.register_buffer("buf", torch.ones(3))
        self.parts = nn.ModuleList([nn.Linear(3, 3), nn.Tanh()])
        self.table = nn.ParameterDict({"a": nn.Parameter(torch.ones(3))})
        self.flag = True

    def forward(self, x):
        x = self.drop(self.bn(self.lin(x[None].expand(2, 3) + self.table["a"])))
        for part in self.parts:
            x = part(x)
        for name, p in self.table.items():
            x = x + p + len(name)
        return x + (self.buf if self.buf is not None else 100) + (1 if self.flag else 2)


def removing(register: Callable[[Net], Any]) -> Callable[[Net], Any]:
    @contextlib.contextmanager
    def hooked(net):
        handle = register(net)
        yield
        handle.remove()

    return hooked


def training(net: nn.Module, to: bool) -> Any:
    return changed(lambda: net.train(to), lambda: net.train(not to))


def deleted(container: Callable[[Net], Any], key: Any) -> Callable[[Net], Any]:
    @contextlib.contextmanager
    def change(net):
        at = container(net)
        old = at[key]
        del at[key]
        yield
        at[key] = old

    return change


def param(*shape: int, dtype=torch.float32, **kw: Any) -> nn.Parameter:
    return nn.Parameter(torch.ones(shape, dtype=dtype) * 2, **kw)


MODULES: dict[str, Callable[[Net], Any]] = {
    "train": lambda n: training(n, True),
    "train of a child": lambda n: training(n.drop, True),
    "flag": lambda n: setting(n, flag=False),
    "submodule replaced": lambda n: items(n._modules, lin=nn.Identity()),
    "submodule set": lambda n: setting(n, lin=nn.Linear(3, 3, bias=False)),
    "submodule of a list replaced": lambda n: items(n.parts._modules, {"1": nn.ReLU()}),
    "submodule appended": lambda n: changed(lambda: n.parts.append(nn.ReLU()), lambda: n.parts.pop(-1)),
    "submodule removed": deleted(lambda n: n.parts._modules, "1"),
    "parameter replaced": lambda n: items(n.lin._parameters, weight=param(3, 3)),
    "parameter shape": lambda n: items(n.lin._parameters, weight=param(1, 3), bias=param(1)),
    "parameter dtype": lambda n: items(n.lin._parameters, weight=param(3, 3, dtype=torch.float64)),
    "parameter set to None": lambda n: items(n.lin._parameters, bias=None),
    "parameter frozen": lambda n: changed(lambda: n.requires_grad_(False), lambda: n.requires_grad_(True)),
    "parameter in place": lambda n: changed(lambda: n.lin.weight.data.mul_(2), lambda: n.lin.weight.data.div_(2)),
    "parameter data": lambda n: changed(
        lambda: setattr(n.lin.weight, "data", torch.ones(3, 3)), lambda: setattr(n.lin.weight, "data", torch.zeros(3, 3))
    ),
    "parameters tied": lambda n: items(n.parts[0]._parameters, weight=n.lin.weight),
    "parameter key added": lambda n: changed(lambda: n.table.update({"bb": param(3)}), lambda: n.table.pop("bb")),
    "parameter added": lambda n: changed(lambda: setattr(n.table, "a", param(3)), lambda: None),
    "buffer replaced": lambda n: items(n._buffers, buf=torch.ones(1)),
    "buffer dtype": lambda n: items(n._buffers, buf=torch.ones(3, dtype=torch.float64)),
    "buffer set to None": lambda n: items(n._buffers, buf=None),
    "buffer in place": lambda n: changed(lambda: n.buf.add_(1), lambda: n.buf.sub_(1)),
    "forward hook": removing(lambda n: n.lin.register_forward_hook(lambda m, i, o: o * 3)),
    "forward hook of the root": removing(lambda n: n.register_forward_hook(lambda m, i, o: o * 3)),
    "forward hook with kwargs": removing(lambda n: n.lin.register_forward_hook(lambda m, a, k, o: o * 5, with_kwargs=True)),
    "forward pre-hook": removing(lambda n: n.lin.register_forward_pre_hook(lambda m, i: (i[0] * 2,))),
    "global forward hook": removing(lambda n: nn.modules.module.register_module_forward_hook(lambda m, i, o: o * 3)),
    "global forward pre-hook": removing(lambda n: nn.modules.module.register_module_forward_pre_hook(lambda m, i: (i[0] * 2,))),
    "forward on the instance": lambda n: setting(n.lin, forward=lambda x: x * 3),
    "forward on the class": lambda n: setting(nn.Linear, forward=lambda self, x: x * 3),
    "forward of the root": lambda n: setting(Net, forward=lambda self, x: x * 3),
    "call on Module": lambda n: setting(nn.Module, __call__=lambda self, x: x * 3),
    "call_impl on Module": lambda n: setting(nn.Module, _call_impl=lambda self, x: x * 3),
    "call on the class": lambda n: setting(nn.Tanh, __call__=lambda self, x: x * 3),
    "momentum": lambda n: setting(n.bn, momentum=0.5),
    "eps": lambda n: setting(n.bn, eps=0.5),
    "dropout": lambda n: setting(n.drop, p=0.0),
    "class of a child": lambda n: setting(n.parts[1], __class__=nn.ReLU),
    "double": lambda n: changed(n.double, n.float),
    "functional": lambda n: setting(F, linear=lambda x, w, b=None: x * 2),
    "getattr of module": lambda n: setting(
        nn.Module, __getattr__=lambda self, name, real=nn.Module.__getattr__: 3 if name == "zz" else real(self, name)
    ),
}


def of_net(change: Callable[[Net], Any]) -> Callable[[], Any]:
    def make():
        net = Net().eval()
        return (lambda x: net(x)), change(net)

    return make


for module_name, module_change in MODULES.items():
    STATES[f"module: {module_name}"] = of_net(module_change)


@pytest.mark.parametrize("name", STATES)
def test_state(name, alike):
    program, change = STATES[name]()
    captured = bd.optimize("eager")(program)

    def compare(when):
        random = torch.get_rng_state()
        expected = outcome(program, X)
        torch.set_rng_state(random)
        assert alike(expected, outcome(captured, X)), when

    compare("first")
    compare("again")
    with change:
        compare("changed")
        compare("changed, again")
    compare("restored")


def test_a_dropped_model_is_freed():
    net = Net()
    captured = bd.optimize("eager")(net)
    captured(X)
    watched = weakref.ref(net), weakref.ref(net.lin.weight)
    del net, captured
    gc.collect()
    assert [w() for w in watched] == [None, None]


def test_a_model_dropped_by_its_closure_is_freed():
    def make():
        net = Net()
        return weakref.ref(net), bd.optimize("eager")(lambda x: net(x) * 2)

    watched, captured = make()
    captured(X)
    del captured
    gc.collect()
    assert watched() is None


def test_an_argument_is_not_kept():
    captured = bd.optimize("eager")(lambda x, o: x * o.n + o.t)
    o = Sized(3)
    o.t = X.clone()
    captured(X, o)
    watched = weakref.ref(o), weakref.ref(o.t)
    del o
    gc.collect()
    assert [w() for w in watched] == [None, None]


@pytest.mark.slow
def test_many_calls_leak_nothing():
    net = Net().eval()
    captured = bd.optimize("eager")(lambda x, k: net(x) if k else x + 1)

    def calls(n):
        for k in range(n):
            captured(X, k % 10 == 0)
        gc.collect()

    calls(1000)
    tracemalloc.start()
    try:
        calls(1000)
        objects, (memory, _) = len(gc.get_objects()), tracemalloc.get_traced_memory()
        calls(100_000)
        assert abs(len(gc.get_objects()) - objects) < 100
        assert abs(tracemalloc.get_traced_memory()[0] - memory) < 100_000
    finally:
        tracemalloc.stop()
