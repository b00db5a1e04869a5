"""Programs of many kinds, each captured in one graph, give what eager mode gives."""

from __future__ import annotations

import collections
import collections.abc
import contextlib
import dataclasses
import enum
import functools
import itertools
import math
import numbers
import operator
import types
import typing
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

PROGRAMS: list[Callable[..., Any]] = []


def program(function: Callable[..., Any]) -> Callable[..., Any]:
    PROGRAMS.append(function)
    return function


NT = collections.namedtuple("NT", "u v")


def with_keywords(x, *args, k=2, **kw):
    return x * k + sum(args) + kw.get("z", 0)


@dataclasses.dataclass
class Pair:
    a: object
    b: int = 2

    def m(self):
        return self.a * self.b


class Scaled:
    K = 5

    def __init__(self, v):
        self.v = v

    @property
    def p(self):
        return self.v * 2

    @staticmethod
    def s(x):
        return x + 1

    @classmethod
    def c(cls, x):
        return x * cls.K

    def __add__(self, o):
        return Scaled(self.v + o.v)

    def __getitem__(self, i):
        return self.v[i]

    def __len__(self):
        return 7

    def __call__(self, z):
        return self.v * z


class Shifted(Scaled):
    def __init__(self, v):
        super().__init__(v)
        self.w = v + 1


def count_up(n):
    yield from range(n)
    return 5


def count_twice(n):
    r = yield from count_up(n)
    yield r


class Color(enum.Enum):
    A = 1
    B = 2

    @property
    def dbl(self):
        return self.value * 2


class Point:
    __slots__ = ("x", "y")

    def __init__(s, x, y):
        s.x = x
        s.y = y

    def __eq__(s, o):
        return s.y == o.y

    def __lt__(s, o):
        return s.y < o.y

    def __hash__(s):
        return hash(s.y)

    def __iter__(s):
        yield s.x
        yield s.y

    def __contains__(s, i):
        return i == s.y

    def __bool__(s):
        return s.y > 0

    def __repr__(s):
        return f"V({s.y})"

    def __neg__(s):
        return Point(-s.x, -s.y)

    def __enter__(s):
        return s.x

    def __exit__(s, *a):
        return False


@contextlib.contextmanager
def doubled(n):
    yield n * 2


class Doubling:
    def __get__(s, o, t=None):
        return 5 if o is None else o._v * 2

    def __set__(s, o, v):
        o._v = v


class Descriptive:
    d = Doubling()

    def __init__(s, v):
        s.d = v

    @functools.cached_property
    def cp(s):
        return s._v + 100

    def __getattr__(s, n):
        if n.startswith("dyn_"):
            return n[4:]
        raise AttributeError(n)

    def __setattr__(s, n, v):
        object.__setattr__(s, n, v)


def twice(f):
    @functools.wraps(f)
    def w(*a, **k):
        return f(*a, **k) * 2

    return w


@twice
def plus(x, k=1):
    return x + k


@functools.lru_cache(None)
def double(n):
    return n * 2


class CodedError(Exception):
    def __init__(s, code):
        super().__init__(f"code {code}")
        s.code = code


class Total(typing.NamedTuple):
    a: int
    b: object = 3

    def tot(self):
        return self.a + self.b


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: object
    b: list = dataclasses.field(default_factory=list)

    def __post_init__(self):
        object.__setattr__(self, "c", len(self.b))


@program
def keyword_and_variadic_arguments(x):
    return with_keywords(x, 1, 2, k=3, z=5)


@program
def nested_functions_and_lambdas(x):
    def inner(y, s=2):
        return y * s + x

    return inner(x) + (lambda q: q - 1)(x)


@program
def lists_and_tuples(x):
    l = [x, x + 1]
    l.append(x * 2)
    l[0] = l[1]
    return l, tuple(l[1:]), {"a": l[0], "b": 3}


@program
def loop_over_enumerate_and_zip(x):
    out = 0
    for i, (a, b) in enumerate(zip([1, 2, 3], (4, 5, 6))):
        out = out + a * b * x + i
    return out


@program
def dict_changed_while_iterated(x):
    d = {"a": x, "b": x + 1}
    for k, v in d.items():
        d[k] = v * 2
    return d, [v for v in d.values()], {k: v for k, v in d.items()}, sorted(d)


@program
def unpacking_and_format(x):
    a, *b = [x, 1, 2, 3]
    (c, d), e = (1, 2), 3
    return a + sum(b) + c + d + e, f"{c}-{d:>3}", f"{c}"


@program
def try_except_finally(x):
    try:
        raise ValueError("hi")
    except (TypeError, ValueError) as e:
        y = x + len(str(e))
    finally:
        y = y * 2
    return y


@program
def grad_modes(x):
    with torch.no_grad():
        y = x * 2
    with torch.enable_grad():
        z = y + 1
    return y, z, torch.is_grad_enabled()


@program
def dataclass_and_named_tuple(x):
    d = Pair(x, 3)
    n = NT(x, v=4)
    return d.m(), n, n.u + n.v


@program
def user_classes_with_special_methods(x):
    b = Shifted(x)
    c = b + Scaled(x)
    return b.p + b.w + Scaled.s(x) + Shifted.c(x) + c.v, b[0], len(b), b(3), b


@program
def shape_queries(x):
    return (
        torch.cat([x, x]).view(2, -1).sum(0),
        x.shape,
        x.size(0),
        x.dtype,
        x.device,
        x.dim(),
        x.numel(),
    )


@program
def isinstance_and_hasattr(x):
    if (
        x.shape[0] > 2
        and isinstance(x, torch.Tensor)
        and hasattr(x, "shape")
        and not hasattr(x, "foo")
    ):
        return x * x.ndim
    return x


@program
def sets_and_builtins(x):
    s = {1, 2}
    s.add(3)
    t = s | {4}
    return (
        x * len(t),
        sorted(t),
        2 in s,
        max(3, 4),
        min([5, 6]),
        abs(-3),
        any(v > 2 for v in s),
        all([True]),
        list(map(lambda v: v + 1, [1, 2])),
        list(reversed([1, 2])),
    )


@program
def while_with_break_and_continue(x):
    i = 0
    while i < 5:
        i += 1
        if i == 2:
            continue
        if i == 4:
            break
        x = x + i
    else:
        x = x * 100
    return x


@program
def generators_and_yield_from(x):
    return x * sum(count_up(4)), list(count_twice(3)), [a for a in count_up(2)]


@program
def in_place_on_argument(x):
    return x.add_(1), x


@program
def indexing_and_assignment(x):
    x[0] = 5.0
    x[1:] = x[1:] * 2
    return x[None], x[..., 0], x[[0, 2]], x[x > 0] if False else x[-1]


@program
def tensor_operators(x):
    y = x.clone()
    y += 1
    y *= x
    return y**2 / 3 // 1 % 2 - -y, y @ y, y > 1, (y == y).all(), y.max(dim=0), torch.topk(y, 2)


@program
def partial_and_einsum(x):
    return (
        functools.partial(with_keywords, k=4)(x),
        math.sqrt(4) * x,
        x.T,
        torch.einsum("i,i->", x, x),
    )


@program
def match_statement(x):
    match (1, x):
        case (2, _):
            return x
        case (1, y):
            return y + 1


@program
def nonlocal_counter(x):
    count = 0

    def inc():
        nonlocal count
        count += 1
        return count

    inc()
    inc()
    return x * count, inc


@program
def functional_calls(x):
    return (
        F.softmax(x, dim=0) + F.relu(x) + F.dropout(x, 0.5, False),
        F.layer_norm(x, (3,)),
        x.new_zeros(2, 2),
        torch.arange(4),
        torch.zeros_like(x),
    )


@program
def list_methods(x):
    a = [1, 2, 3]
    a.insert(1, 9)
    a.remove(2)
    a.sort(reverse=True)
    a.extend((4,))
    b = a[::-1]
    a[1:2] = [7, 8]
    del a[0]
    return x * sum(a), a, b, a.index(8), a.count(1), a * 2, [*a, 1], 3 in a, a == b, a != b


@program
def dict_methods(x):
    d = dict(a=1, b=2)
    d.update(c=3)
    d.pop("a")
    d.setdefault("z", x)
    e = {**d, "q": 1}
    del e["b"]
    return (
        d,
        e,
        list(d.keys()),
        "c" in d,
        len(d),
        d.get("nope", 5),
        dict(zip("ab", [1, 2])),
        d | {"m": 1},
    )


@program
def strings(x):
    s = ["a", "b", "c"]
    t = "-".join(s).upper()
    u = f"{len(t)=} {1.5:.2f} {'x':>4}" + "%d %s" % (3, "q")  # noqa: UP031
    return (
        x + len(u),
        s,
        t,
        u,
        t.replace("-", "+"),
        "abc"[1],
        "b" in "abc",
        t.startswith("A"),
        str(3),
        repr("x"),
        int("4"),
        float("2.5"),
    )


@program
def collections_types(x):
    c = collections.defaultdict(list)
    c["a"].append(x)
    c["b"].append(1)
    o = collections.OrderedDict()
    o["x"] = 1
    o["y"] = 2
    o.move_to_end("x")
    q = collections.deque([1, 2])
    q.append(3)
    q.appendleft(0)
    q.popleft()
    return dict(c), list(o.items()), list(q), len(q)


@program
def itertools_functions(x):
    r = []
    for a, b in itertools.product([1, 2], [3, 4]):
        r.append(a * b)
    for i in itertools.count(2):
        if i > 4:
            break
        r.append(i)
    r += list(itertools.islice(itertools.chain([1], [2, 3]), 2))
    r += [*itertools.repeat(1, 2)]
    return (
        x * sum(r),
        r,
        functools.reduce(operator.mul, [1, 2, 3]),
        list(itertools.accumulate([1, 2, 3])),
        list(filter(None, [0, 1, 2])),
    )


@program
def enumerations(x):
    out = 0
    for e in Color:
        out += e.value * e.dbl
    return x * out, Color(1), Color["B"], Color.A == Color.A, Color.A is Color.B, Color.A.name


@program
def objects_with_protocols(x):
    v = Point(x, 1)
    w = Point(x, 2)
    a, b = v
    with v as z:
        q = z * 2
    return (
        v == w,
        v < w,
        a * b,
        1 in v,
        bool(v),
        repr(v),
        -v.y,
        q,
        (-v).x,
        not v,
        max([v, w], key=lambda k: k.y).y,
    )


@program
def generator_context_manager(x):
    with doubled(3) as k:
        y = x * k
    return y


@program
def descriptors_and_getattr(x):
    h = Descriptive(3)
    h.e = 4
    return (
        x * h.d,
        h.cp,
        h.cp,
        h.dyn_foo,
        getattr(h, "zz", 7),
        hasattr(h, "qq"),
        h.__dict__,
        vars(h),
        type(h).__name__,
        h.__class__ is Descriptive,
    )


@program
def wrapped_function(x):
    return plus(x), plus(x, k=3), plus.__name__


@program
def lru_cached_function(x):
    return x * double(3)


@program
def argument_kinds(x):
    def f(a, /, b, *, c=3, **kw):
        return a + b + c + len(kw)

    return f(x, 1), f(x, b=2, c=4, z=1), f(*[x, 1], **{"c": 0})


@program
def exceptions_of_builtins(x):
    try:
        [].pop()
    except IndexError:
        a = 1
    try:
        {}["q"]
    except KeyError as e:
        b = e.args
    try:
        int("x")
    except ValueError:
        c = 3
    try:
        a.foo
    except AttributeError:
        d = 4
    else:
        d = 5
    try:
        try:
            raise RuntimeError("a")
        finally:
            f = 6
    except RuntimeError as e:
        g = str(e)
    try:
        raise KeyError("q") from ValueError("z")
    except KeyError as e:
        h = type(e.__cause__).__name__
    return x + a, b, c, d, f, g, h


@program
def own_exception_class(x):
    try:
        raise CodedError(3)
    except CodedError as e:
        return x * e.code, str(e)


@program
def unpacking_a_tensor(x):
    assert x.shape[0] == 3, "no"
    a, b, c = x
    (p, q), r = x[:2], x[2]
    return a + b + c, p, q, r, [i * 2 for i in x], len(x)


@program
def views_and_sizes(x):
    y = x.reshape(1, 3)
    z = y.expand(2, -1)
    i = z.shape
    n = i.numel()
    h, w = z.shape[-2:]
    return (
        z.view(*i[:-1], 1, 3),
        n,
        h * w,
        i[0],
        tuple(i),
        list(i),
        i == (2, 3),
        torch.Size([1, 2]) + i,
        z.stride(),
        z.is_contiguous(),
        x.type(),
        x.is_floating_point(),
        torch.is_tensor(x),
        torch.finfo(x.dtype).max,
    )


@program
def comprehensions(x):
    g = (i for i in range(3))
    a = list(g)
    b = tuple(i * j for i in a for j in a if j)
    c = {i: j for i, j in enumerate("ab")}
    s = {i % 2 for i in a}
    return (
        x * len(b),
        b,
        c,
        s,
        sum(i for i in a),
        any(i > 1 for i in a),
        min(a, default=0),
        dict(sorted(c.items(), key=lambda k: -k[0])),
    )


@program
def many_torch_functions(x):
    f = torch.nn.functional.pad(x, (1, 1))
    m = torch.triu(torch.ones(3, 3), diagonal=1).bool()
    s = x[None].masked_fill(m, float("-inf"))
    u, i = torch.sort(x, descending=True)
    v = torch.max(x[None], dim=1)
    w = torch.where(x > 1, x, torch.zeros_like(x))
    return (
        f,
        s,
        u,
        i,
        v.values,
        v[1],
        w,
        torch.split(x, 1),
        x.chunk(3),
        torch.unbind(x),
        torch.meshgrid(x, x, indexing="ij"),
        torch.stack([x, x]).mean(dim=(0, 1)),
        torch.tensor([1, 2]),
        torch.full((2,), 3.0),
        torch.linspace(0, 1, 3),
    )


@program
def writes_through_views(x):
    x = x.clone()
    y = x[1:]
    y.mul_(2)
    x[0] += 1
    x.add_(y.sum())
    z = x
    z += 1
    x.data.zero_() if False else None
    return x, y, z is x


@program
def scalar_arithmetic(x):
    w: int | None = None
    r = x if w is None else x * w
    n = (k := 3) + k
    return (
        r * n,
        1 if x.ndim == 1 else 2,
        None is None,
        not None,
        (1 < 2 < 3),
        ~5,
        5 // 2,
        -7 % 3,
        2**10,
        7 / 2,
        1_000,
        0x10,
        round(2.567, 1),
        divmod(7, 2),
        complex(1, 2).real if False else 0,
        int(3.7),
        float(3),
        bool([]),
        str(1.5),
        hex(255),
        chr(65),
        ord("a"),
    )


@program
def shared_containers(x):
    a = [x]
    b = a
    b.append(x + 1)
    c = (a, b)
    d = {"l": a}
    return c, d, c[0] is c[1], d["l"] is a


@program
def closures_and_operator_getters(x):
    fns = [lambda v, i=i: v * i for i in range(3)]

    def outer():
        z = 10

        def inner():
            nonlocal z
            z += 1
            return z

        return inner

    f = outer()
    f()
    return (
        [g(x) for g in fns],
        f(),
        operator.itemgetter(1)([1, 2]),
        operator.attrgetter("ndim")(x),
        operator.methodcaller("sum")(x),
    )


@program
def decorated_by_no_grad(x):
    @torch.no_grad()
    def f(y):
        return y * 2, torch.is_grad_enabled()

    return f(x), torch.is_grad_enabled()


@program
def typed_named_tuple(x):
    n = Total(x)
    m = n._replace(b=4)
    a, b = m
    return n.tot(), m, a * b, n._fields, n[1], isinstance(n, tuple), n._asdict()


@program
def simple_namespace(x):
    ns = types.SimpleNamespace(a=1, b=x)
    ns.c = ns.a + 1
    return ns.b * ns.c, ns.a


@program
def frozen_dataclass(x):
    f = Frozen(x, [1, 2])
    g = dataclasses.replace(f, b=[3])
    return (
        f.a * f.c,
        g.b,
        f == f,
        dataclasses.is_dataclass(f),
        [k.name for k in dataclasses.fields(f)],
    )


@program
def torch_queries(x):
    if torch.jit.is_scripting() or torch.compiler.is_compiling():
        y = x * 1
    else:
        y = x
    return (
        y,
        torch.promote_types(torch.int32, torch.float16),
        torch.get_default_dtype(),
        torch.cuda.is_available(),
    )


@program
def nested_loops(x):
    a = 0
    for i in range(10):
        for j in range(i):
            if j == 3:
                break
            a += j
        else:
            a += 100
        if i == 5:
            continue
    while True:
        a -= 1
        if a < 50:
            break
    return x + a


@program
def tensor_methods(x):
    return (
        torch.cat((x,) * 2),
        x.new_ones(2),
        x.to(torch.float64),
        x.to("cpu"),
        x.float(),
        x.long(),
        x.view(torch.int32),
        x.item if False else 0,
        x.unsqueeze(0).squeeze(),
        x.norm(),
        x.std(),
        x.argmax(),
        x.cumsum(0),
        x.flip(0),
        torch.bincount(x.long(), minlength=5) if False else 0,
    )


@program
def type_questions(x):
    return (
        x + 1,
        isinstance(3, numbers.Number),
        isinstance([], collections.abc.Sequence),
        issubclass(bool, int),
        isinstance(x, (list, torch.Tensor)),
        callable(len),
        type(x) is torch.Tensor,
        int == int,  # noqa: E721
        isinstance(x, nn.Parameter),
    )


@program
def losses_and_layers(x):
    return (
        F.cross_entropy(x[None], torch.tensor([1])),
        F.mse_loss(x, x),
        F.softplus(x),
        F.normalize(x, dim=0),
        F.one_hot(x.long(), 4),
        F.embedding(x.long() - 1, torch.eye(3)),
        F.conv1d(x[None, None], torch.ones(1, 1, 2)),
        F.max_pool1d(x[None], 2),
        F.log_softmax(x, -1),
        F.multi_head_attention_forward if False else 0,
    )


@program
def imports_inside(x):
    import collections as cc
    from math import sqrt as sq

    return x * sq(4), cc.Counter if False else 0


@program
def sequence_builtins(x):
    l = [3, 1, 2]
    l2 = sorted(l)
    a, *m, z = l
    first = next(iter(l))
    e = list(enumerate(l, 1))
    zz = list(zip(*[(1, 2), (3, 4)]))
    return (
        x,
        l2,
        a,
        m,
        z,
        first,
        e,
        zz,
        [*l, *l2],
        {*l},
        (*l,),
        max(l),
        min(*l),
        functools.reduce(operator.iadd, [[1], [2]], []),
        all(l),
        list(range(5))[1:3],
        range(10)[2],
        3 in range(5),
        len(range(3)),
    )


@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
def test_program_equals_eager_in_one_graph(f, check):
    check(f, lambda: (torch.tensor([1.0, 2.0, 3.0]),))
