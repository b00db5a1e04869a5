# ruff: noqa
"""Calls of every shape, closures, decorators, function objects."""

import bisect
import collections
import copy
import functools
import inspect
import operator
import typing

import torch


def _everything(a, /, b, *rest, c=3, d, **more):
    return a + b * c + sum(rest) - d + sum(more.values())


def positional_and_keyword(x):
    return _everything(x, 2, 3, 4, d=5, e=6)


def star_arguments(x):
    args, named = (x, 2), {"d": 1, "z": 9}
    return _everything(*args, *[7, 8], **named, **{"y": 1})


def star_of_generator(x):
    return torch.stack([*(x + i for i in range(3))]) + max(*(len(s) for s in ("a", "bb")))


def _defaults(x, scale=2.0, *, shift=1.0, names=("a", "b")):
    return x * scale + shift + len(names)


def defaults(x):
    return _defaults(x) + _defaults(x, 3.0, names=())


def defaults_changed_inside(x):
    def inner(a, b=1):
        return a + b

    inner.__defaults__ = (5,)
    return inner(x)


def missing_argument_is_caught(x):
    try:
        return _everything(x)
    except TypeError as error:
        return x + len(str(error)), str(error)


def too_many_arguments_is_caught(x):
    def one(a):
        return a

    try:
        return one(x, x)
    except TypeError as error:
        return x + 1, str(error).partition(".")[2]


def unexpected_keyword_is_caught(x):
    try:
        return _defaults(x, wrong=1)
    except TypeError as error:
        return x + 1, str(error)


def duplicate_keyword_is_caught(x):
    try:
        return _defaults(x, 1, **{"scale": 2})
    except TypeError as error:
        return x + 1, str(error)


def lambdas(x):
    twice = lambda a, k=2: a * k
    return (lambda f, *a: f(*a))(twice, x)


def partials(x):
    add = functools.partial(_defaults, scale=3.0)
    again = functools.partial(add, shift=x)
    return again(x), again.keywords["scale"], again.func is _defaults, add.args


def partial_with_positional(x):
    return functools.partial(torch.add, x)(x, alpha=2)


def partialmethod_is_bound(x):
    class Scaler:
        def scale(self, a, k):
            return a * k

        double = functools.partialmethod(scale, k=2)

    return Scaler().double(x)


partialmethod_is_bound.any_graphs = True


def _logged(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs) + 1

    return wrapper


@_logged
def _decorated(a):
    "documentation"
    return a * 2


def wrapped(x):
    return _decorated(x), _decorated.__name__, _decorated.__doc__, _decorated.__wrapped__(x)


def wraps_inside(x):
    @_logged
    def inner(a):
        return a - 1

    return inner(x), inner.__name__


@functools.lru_cache(maxsize=None)
def _power(n):
    return 2**n


def cached_function(x):
    return x * _power(3) + _power(3)


@functools.cache
def _table(n):
    return tuple(range(n))


def cached_tuple(x):
    return x + sum(_table(4)), _table(4)


@functools.singledispatch
def _kind(value):
    return "object"


@_kind.register
def _(value: int):
    return "int"


@_kind.register(list)
def _(value):
    return f"list of {len(value)}"


@_kind.register
def _(value: torch.Tensor):
    return "tensor"


def single_dispatch(x):
    return x + 1, _kind(x), _kind(3), _kind([1, 2]), _kind("s")


class _Dispatching:
    @functools.singledispatchmethod
    def show(self, value):
        return "object"

    @show.register
    def _(self, value: int):
        return value + 1


def single_dispatch_method(x):
    return x + _Dispatching().show(3), _Dispatching().show("a")


single_dispatch_method.any_graphs = True


def closure_counter(x):
    count = 0

    def bump():
        nonlocal count
        count += 1
        return count

    bump()
    bump()
    return x * count


def closures_share_a_cell(x):
    total = x

    def add(v):
        nonlocal total
        total = total + v

    def get():
        return total

    add(1)
    add(2)
    return get(), total


def closure_returned(x):
    offset = x.sum()
    scale = 3

    def inner(y):
        return y * scale + offset

    return inner(x)


def closures_of_a_loop(x):
    late = [lambda: i for i in range(3)]
    early = [lambda i=i: i for i in range(3)]
    return x + sum(f() for f in late) * 10 + sum(f() for f in early)


def deep_nesting(x):
    def one(a):
        def two(b):
            def three(c):
                nonlocal a
                a = a + c
                return a * b

            return three(b + 1)

        return two(a + 1) + a

    return one(x)


def recursion(x):
    def fact(n):
        return 1 if n <= 1 else n * fact(n - 1)

    return x * fact(5)


def mutual_recursion(x):
    def even(n):
        return True if n == 0 else odd(n - 1)

    def odd(n):
        return False if n == 0 else even(n - 1)

    return x + even(6), odd(6)


def function_attributes(x):
    def inner(a):
        inner.calls += 1
        return a + inner.calls

    inner.calls = 0
    inner(x)
    return inner(x), inner.calls, hasattr(inner, "other")


def function_in_containers(x):
    table = {
        "relu": torch.relu,
        "neg": lambda t: -t,
        "double": functools.partial(torch.mul, other=2),
    }
    for name in ("relu", "neg", "double"):
        x = table[name](x)
    return x


def higher_order(x):
    def compose(*functions):
        return functools.reduce(lambda f, g: lambda a: g(f(a)), functions)

    return compose(torch.sin, torch.cos, lambda t: t * 2)(x)


def returns_function(x):
    def adder(n):
        def add(y):
            return y + n

        return add

    return adder(x), adder(2)(x)


def callable_object(x):
    class Times:
        def __init__(self, k):
            self.k = k

        def __call__(self, a, *, bias=0):
            return a * self.k + bias

    return Times(3)(x, bias=1), callable(Times(1)), callable(3)


callable_object.any_graphs = True


def method_objects(x):
    class Box:
        def __init__(self, v):
            self.v = v

        def get(self, k=1):
            return self.v * k

        @classmethod
        def make(cls, v):
            return cls(v)

        @staticmethod
        def plain(a):
            return a + 1

    box = Box.make(x)
    bound = box.get
    return (
        bound(2),
        Box.get(box, 3),
        Box.plain(x),
        bound.__self__ is box,
        bound.__func__ is Box.get,
        box.plain(x),
    )


method_objects.any_graphs = True


def builtin_methods_as_values(x, log):
    push = log.append
    push(1)
    push(2)
    upper = "abc".upper
    return x + len(log), upper(), list(map(str.upper, "ab")), [*map(dict.get, [{1: 2}], [1])]


def operator_functions(x):
    pick, name, call = (
        operator.itemgetter(1, 0),
        operator.attrgetter("ndim"),
        operator.methodcaller("mul", 3),
    )
    return (
        operator.add(x, 1),
        pick([5, 6]),
        name(x),
        call(x),
        operator.contains([1], 1),
        operator.index(4),
    )


def annotations_and_names(x):
    def inner(a: int, b: "str" = "s") -> float:
        """doc"""

    return (
        x + 1,
        inner.__name__,
        inner.__doc__,
        inner.__defaults__,
        inner.__code__.co_argcount,
        inner.__qualname__,
    )


def typing_cast(x):
    return typing.cast(torch.Tensor, x) + 1


def unwrap_and_isfunction(x):
    return x + 1, inspect.isfunction(_decorated), inspect.ismethod(_decorated), inspect.isclass(int)


def conditional_expression(x):
    return (x if x.dim() == 2 else -x) + (1 if not x.is_cuda and x.numel() else 2)


def walrus(x):
    if (n := x.shape[0]) > 1 and (m := n * 2):
        x = x + m
    return x, n, [y := 1, y + 1], [last := i for i in range(3)], last


def chained_comparison(x):
    return x + (1 < x.shape[0] <= 2 < 3), 1 < 2 > 1, "a" < "b" != "c"


def chained_assignment(x):
    a = b = c = [x]
    a.append(1)
    return len(c), b is c, x + 1


def augmented_assignment(x):
    n, s, items = 1, "a", [1]
    other = items
    n += 2
    n **= 2
    n //= 2
    n <<= 1
    s += "b"
    s *= 2
    items += (2, 3)
    items *= 2
    x = x + n
    x += 1
    x *= 2
    return x, n, s, items, other is items


def delete_variables(x):
    y = x + 1
    z = y
    del y
    try:
        return y
    except UnboundLocalError as error:
        return z, type(error).__name__


def global_shadowed_builtin(x):
    len = lambda v: 7
    return x + len([])


def ignored_default_mutation(x):
    def collect(v, into=[]):
        into.append(v)
        return into

    collect(1)
    return x + 1, collect(2)


_KEPT = []


def _keep(v, into=_KEPT):
    into.append(v)
    return len(into)


def mutable_default_of_existing_function(x):
    return x * _keep(4)


mutable_default_of_existing_function.any_graphs = True


def keyword_only_dict(x):
    def f(**kw):
        kw["b"] = kw.pop("a") * 2
        return kw

    return f(a=x, c=1)


def args_are_fresh(x):
    def f(*args):
        return args

    return f(x + 1, 1) + f(), f() is f()


def evaluation_order(x, log):
    def note(v):
        log.append(v)
        return v

    d = {note("k"): note(1), **{note("j"): note(2)}}
    t = (note(3), note(4))[note(0)]
    (note([]) or [0])[note(0) :] = [note(5)]
    return x + t, d, note(6) if note(False) else note(7)


def short_circuit(x, log):
    def note(v):
        log.append(v)
        return v

    return x + bool(note(0) or note(2) and note(3)), note(None) or note(""), not note(1)


def setitem_order(x, log):
    def note(v):
        log.append(str(v))
        return v

    d = {}
    note(d)[note("key")] = note(5)
    return x + d["key"]


def call_with_keyword_named_self(x):
    def f(self, ctx, args, kwargs):
        return self + ctx + args + kwargs

    return f(x, ctx=1, args=2, kwargs=3), dict(self=1, ctx=2, name=3)


def getattr_with_default(x):
    return (
        getattr(x, "missing", 3) + x,
        getattr(_KEPT, "append", None) is not None,
        getattr(x, "ndim"),
    )


def sorted_by_key(x):
    words = ["pear", "fig", "apple"]
    return (
        x + 1,
        sorted(words, key=len),
        sorted(words, key=lambda w: w[-1], reverse=True),
        max(words, key=len),
    )


def min_max_default(x):
    return (
        x + max([], default=2),
        min((3, 1, 2)),
        max(1, 2.5),
        min("b", "a"),
        max([1, 5], key=lambda v: -v),
    )


def sum_with_start(x):
    return sum([x, x], start=x), sum([[1], [2]], []), sum((1, 2, 3)), sum(range(4), 10)


def any_and_all(x, log):
    def note(v):
        log.append(v)
        return v

    return x + any(note(v) for v in (0, 2, 3)), all(note(v) for v in (1, 0, 2)), any([]), all(())


def identity_and_id(x):
    a, b = [], []
    return x + 1, a is a, a is b, id(a) == id(a), id(a) != id(b), x is x


def hash_of_values(x):
    return x + hash(3), hash("a") == hash("a"), hash((1, 2)) == hash((1, 2)), hash(1.0) == hash(1)


def isinstance_forms(x):
    return (
        x + 1, isinstance(x, torch.Tensor), isinstance(1, (int, str)), isinstance(True, int), isinstance(1, int | str),
        issubclass(bool, int), isinstance([], typing.Sized), isinstance(None, type(None)), type(1) is int,
    )  # fmt: skip


class Partial:
    def f(self, a, b):
        return a + b

    g = functools.partialmethod(f, 1)
    h = functools.partialmethod(f, b=3)

    @functools.singledispatchmethod
    def of(self, a):
        return "other"

    @of.register
    def _(self, a: int):
        return "int"


def methods_of_functools(x):
    p = Partial()
    key = functools.cmp_to_key(lambda a, b: b - a)
    return p.g(x), p.h(x), sorted([3, 1, 2], key=key), operator.call(lambda a: a + 1, x)


def single_dispatch_of_methods(x):
    p = Partial()
    return p.of(1), p.of("a"), x + 1


# CPython 3.13 keeps the methods under weak references with callbacks
single_dispatch_of_methods.any_graphs = True


def no_divmod_of_tensors(x):
    try:
        return divmod(x, 2)
    except TypeError as error:
        return x + 1, str(error)


@torch.jit.script_if_tracing
def _scripted(x):
    return x + 1


def scripted_if_tracing(x):
    return _scripted(x)


def globals_of_functions(x):
    def inner(a: int, b=2) -> str: ...

    return inner.__globals__ is globals(), x + 1


def builtins_by_keyword(x):
    rounded = round(number=2.345, ndigits=1), round(ndigits=None, number=2.5), pow(exp=2, base=3)
    found = bisect.bisect_left(a=[1, 2, 3], x=2, hi=2), bisect.bisect_right([1, 2], x=2)
    held = copy.copy(x=[x, 1]), copy.deepcopy(memo=None, x=[1])
    return pow(exp=2, base=x) + pow(base=5, mod=7, exp=2), rounded, found, held


def torch_builtins_by_keyword(x):
    made = torch.asarray(dtype=torch.float64, obj=[1.0, 2.0]).sum()
    return x + torch.numel(input=x) + made


def functional_call_by_keyword(x):
    module, weights = torch.nn.Identity(), {}
    made = torch.func.functional_call(args=(x,), parameter_and_buffer_dicts=weights, module=module)
    return made + x


class Mapping(dict):
    pass


class Ordered(collections.OrderedDict):
    pass


class Loose:
    def __new__(cls, **named):
        return super().__new__(cls)

    def __init__(self, **named):
        self.named = named


def keywords_of_any_name(x):
    """Such as the names that the rules for these calls give their own parameters."""
    named = dict(value=x, ctx=2, function=3, key=4, owner=5, rest=6, named=7)
    made = [Mapping(**named), Ordered(**named), dict(**named), Loose(**named).named]
    return made, x + 1
