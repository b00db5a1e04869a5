# ruff: noqa
"""Built-in functions and types where they meet subclasses, special methods, and arguments that they refuse."""

import bisect
import collections
import datetime
import decimal
import enum
import functools
import heapq
import inspect
import itertools
import json
import math
import operator
import re
import types
import typing
import warnings
from fractions import Fraction

import torch


def _tried(log, function, *args, **kwargs):
    try:
        log.append(function(*args, **kwargs))
    except Exception as error:
        log.append((type(error).__name__, str(error)))


class Same:
    """Equal to what has the same number; may note which operand was asked."""

    def __init__(self, n, name="", asked=None):
        self.n, self.name, self.asked = n, name, asked

    def __eq__(self, other):
        if self.asked is not None:
            self.asked.append((self.name, getattr(other, "name", other)))
        return isinstance(other, Same) and self.n == other.n

    def __hash__(self):
        return hash(self.n)


def order_of_comparisons(x, log):
    asked = []
    a, b = Same(1, "a", asked), Same(1, "b", asked)
    log += [
        [a] == [b],
        (a, 1) == (b, 2),
        a in [b],
        [b].index(a),
        [b, a].count(a),
        {"k": a} == {"k": b},
    ]
    table = {a: 1}
    log += [
        table[b],
        b in table,
        table.get(Same(2, "c")),
        {a, b} == {b},
        len({a, b, Same(3, "d", asked)}),
    ]
    items = [b]
    items.remove(a)
    log += [len(items), (1, a) != (1, b), [a] < [b, 1], collections.deque([b]).count(a)]
    log.append(list(asked))
    return x + 1


order_of_comparisons.any_graphs = True


SAMES, TABLE, FROZEN, PAIRED = (
    {Same(1, "s")},
    {Same(1, "d"): 2},
    frozenset([Same(1, "f")]),
    (Same(1, "p"), 2),
)


def existing_containers_of_objects(x, log):
    log += [
        SAMES == {Same(1)},
        SAMES != {Same(2)},
        Same(1) in SAMES,
        SAMES <= {Same(1)},
        SAMES == 3,
        FROZEN == {Same(1)},
    ]
    log += [
        TABLE == {Same(1): 2},
        TABLE[Same(1)],
        TABLE.get(Same(2)),
        len({**TABLE, Same(1): 3}),
        Same(1) in FROZEN,
    ]
    log += [
        PAIRED == (Same(1), 2),
        PAIRED.index(2),
        (Same(1), 2) in [PAIRED],
        hash(PAIRED) == hash((Same(1), 2)),
    ]
    return x + 1


existing_containers_of_objects.any_graphs = True


def kinds_of_sequences_compared(x, log):
    items = (
        [1, 2],
        (1, 2),
        collections.deque([1, 2]),
        range(1, 3),
        Pair(1, 2),
        torch.Size([1, 2]),
        Rows([1, 2]),
        Fixed([1, 2]),
    )
    log += [[a == b for a in items] for b in items]
    log += [[a != b for a in items] for b in items]
    for a in items[:4]:
        for b in items[:4]:
            try:
                log.append(a < b)
            except TypeError as error:
                log.append(str(error))
            try:
                log.append(a + b)
            except TypeError as error:
                log.append(str(error))
    return x + 1


kinds_of_sequences_compared.any_graphs = True


class Int(int):
    def __init__(self, value, unit="m"):
        self.unit = unit

    def __str__(self):
        return f"{int(self)}{self.unit}"


class Text(str):
    def __hash__(self):
        return 7

    def __str__(self):
        return "<" + self.upper() + ">"


class Plain(str):
    pass


class Hexadecimal(int):
    pass


class Fixed(tuple):
    pass


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Rows(list):
    def __init__(self, items=(), title=""):
        super().__init__(items)
        self.title = title


ROWS, NAME, AMOUNT = Rows([1, 2]), Plain("name"), Int(4)


def subclasses_of_built_ins(x, log):
    n = Int(3)
    log += [
        n.unit,
        str(n),
        format(n, ""),
        f"{n}",
        f"{n:>3}",
        n + 1,
        type(n + 1),
        repr(n),
        Int(5).unit,
    ]
    log += [Plain(b"a", "ascii"), Hexadecimal("10", 16), Hexadecimal(), Fixed([1, 2]), Fixed()]
    _tried(log, Fixed, 1, 2)
    _tried(log, Hexadecimal, "g", 16)
    for args, kwargs in (((1, 2, 3), {}), ((5,), {"unit": "k"}), (("x",), {}), ((), {})):
        _tried(log, Int, *args, **kwargs)
    return x * n + x * AMOUNT, x * Level.HIGH, x.sum(Level.LOW), AMOUNT.unit


subclasses_of_built_ins.any_graphs = True


def hashes_of_subclasses(x, log):
    table = {"a": 1, Plain("b"): 2, Text("a"): 3}
    log += [
        len(table),
        table[Plain("a")],
        table["b"],
        table.get(Text("b")),
        Plain("b") in table,
        hash(Text("q")),
        {NAME: 4}["name"],
    ]
    return x + len({Plain("a"), "a", Int(1), 1, True})


def existing_objects_of_subclasses(x, log):
    log += [
        json.dumps(ROWS),
        json.dumps({NAME: AMOUNT}),
        "-".join([NAME, "x"]),
        math.prod(ROWS),
        NAME.upper(),
        str(AMOUNT),
    ]
    ROWS.append(len(ROWS) + 1)
    log += [
        json.dumps(ROWS),
        sum(ROWS),
        max(ROWS),
        getattr(types.SimpleNamespace(name=5), NAME),
        "%s" % NAME,
        list(ROWS),
    ]
    return x + AMOUNT


existing_objects_of_subclasses.any_graphs = True


class Pair(typing.NamedTuple):
    a: int
    b: int = 2


class Wider(Pair):
    def both(self):
        return self.a + self.b


def named_tuples_made(x, log):
    for args, kwargs in (
        ((1,), {}),
        ((1, 3), {}),
        ((), {}),
        ((1, 2, 3), {}),
        ((), {"b": 1}),
        ((4,), {"b": 5}),
        ((1,), {"a": 1}),
    ):
        _tried(log, Pair, *args, **kwargs)
        _tried(log, Wider, *args, **kwargs)
    log += [
        Pair._make([1, 2]),
        Wider(3).both(),
        Wider(1)._replace(b=9).both(),
        tuple.__new__(Pair, (1, 2)),
        type(Wider(1)),
    ]
    _tried(log, Pair._make, [1])
    return x + Wider(1, 1).both()


named_tuples_made.any_graphs = True


def new_of_wrong_things(x, log):
    for wrong in (3, None, "a", [1]):
        _tried(log, object.__new__, wrong)
        _tried(log, tuple.__new__, wrong)
    _tried(log, int.__new__, str, 3)
    return x + 1


new_of_wrong_things.any_graphs = True


def errors_with_names(x, log):
    holder = [1]
    error = AttributeError("gone", name="n", obj=holder)
    other = AttributeError("gone", name="n")
    missing, imported = NameError("m", name="k"), ImportError("i", name="a", path="b")
    log += [
        error.name,
        error.obj is holder,
        error.args,
        other.name,
        other.obj,
        missing.name,
        imported.name,
        imported.path,
    ]
    _tried(log, ValueError, "v", name="n")
    return x + 1


errors_with_names.any_graphs = True


def class_methods_of_values(x, log):
    log += [
        *(
            datetime.date.fromisoformat("2020-02-03"),
            datetime.date.fromordinal(9),
            datetime.datetime.fromisoformat("2020-02-03T04:05"),
        ),
        *(
            decimal.Decimal.from_float(0.5),
            Fraction.from_float(0.25),
            bytes.fromhex("0a"),
            int.from_bytes(b"\x01\x02", "big"),
        ),
        *(
            float.fromhex("0x1p3"),
            dict.fromkeys("ab", 1),
            str.maketrans("a", "b"),
            list(itertools.chain.from_iterable(["ab", "c"])),
        ),
    ]
    return x + 1


class_methods_of_values.any_graphs = True


def unequal_lengths(x, log):
    log += [
        list(zip([1, 2, 3], "ab", strict=False)),
        list(zip([1], [2], strict=True)),
        list(map(operator.add, [1, 2], [3])),
    ]
    for parts in (
        ([1, 2], [1]),
        ([1], [1, 2]),
        ([1, 2], [1, 2], [1]),
        ([1, 2], [1, 2], [1, 2, 3]),
        ([], [1]),
        ([1], [1], [1], []),
    ):
        rows = zip(*parts, strict=True)
        _tried(log, list, rows)
        log.append(next(rows, "end"))
    return x + 1


unequal_lengths.any_graphs = True


class Refuses:
    @property
    def broken(self):
        raise ValueError("broken")

    @property
    def hidden(self):
        raise AttributeError("hidden")


def questions_that_raise(x, log):
    for name in ("broken", "hidden", "absent"):
        _tried(log, hasattr, Refuses(), name)
        _tried(log, getattr, Refuses(), name)
        _tried(log, getattr, Refuses(), name, 3)
    return x + 1


class Bare:
    pass


class Divides:
    def __rdivmod__(self, other):
        return "reflected", type(other).__name__

    def __radd__(self, other):
        return "added", type(other).__name__

    def __matmul__(self, other):
        return "multiplied", type(other).__name__

    def __index__(self):
        return 2

    def __round__(self, digits=None):
        return "rounded", digits


def operators_of_objects(x, log):
    log += [
        divmod(7, Divides()),
        divmod(Bare(), Divides()),
        [1] + Divides(),
        Bare() + Divides(),
        Divides() @ x,
    ]
    for function, *args in (
        (divmod, Bare(), 2),
        (divmod, 2, Bare()),
        (operator.add, Bare(), 2),
        (operator.add, 2, Bare()),
        (operator.index, Bare()),
        (operator.index, 2.0),
        (operator.index, "a"),
        (operator.index, None),
        (round, Bare()),
        (abs, Bare()),
        (operator.neg, Bare()),
    ):
        _tried(log, function, *args)
    log += [
        operator.index(True),
        operator.index(5),
        operator.index(Divides()),
        round(Divides()),
        round(Divides(), 1),
        "abc"[Divides()],
    ]
    log += [
        operator.is_not(x, None),
        operator.is_(log, log),
        operator.is_not(log, log),
        operator.is_not(1, 2),
        operator.is_(x, x),
    ]
    return x + 1


operators_of_objects.any_graphs = True


def _operators_after(left):
    def program(x, log):
        for function in (
            operator.add,
            operator.sub,
            operator.mul,
            operator.matmul,
            operator.pow,
            operator.lt,
            operator.eq,
        ):
            try:
                log.append(function(left, x))
            except Exception as error:
                log.append((type(error).__name__, str(error)))
        return x + 1

    program.any_graphs = True
    return program


after_an_int, after_a_float, after_a_bool, after_none = map(_operators_after, (2, 2.5, True, None))
after_an_object, after_an_operand, after_text, after_a_list = map(
    _operators_after, (Bare(), Divides(), "a", [1])
)


class Ordered(type):
    def __eq__(cls, other):
        return NotImplemented if other is int else other == 5

    def __ne__(cls, other):
        return "unequal"

    def __hash__(cls):
        return 3

    def __lt__(cls, other):
        return True if other is str else NotImplemented

    def __gt__(cls, other):
        return "greater"


class Comparing(metaclass=Ordered):
    pass


def compared_classes(x, log):
    log += [
        Comparing == 5,
        Comparing == 6,
        5 == Comparing,
        Comparing == int,
        Comparing != 5,
        Comparing < str,
        int < Comparing,
    ]
    log += [Comparing in [5], Comparing == Comparing, int == int, int != str, hash(Comparing)]
    _tried(log, operator.lt, Comparing, int)
    _tried(log, operator.le, Comparing, int)
    return x + 1


class Shown:
    def __init__(self, n):
        self.n = n

    def __repr__(self):
        return f"Shown({self.n})"

    def __lt__(self, other):
        return self.n < other.n


class Formatted(Shown):
    def __format__(self, spec):
        return f"[{spec}]"


def texts(x, log):
    a, b = Shown(1), Formatted(2)
    log += [
        f"{a}",
        format(a),
        format(a, ""),
        format(b),
        format(b, ""),
        format(b, ">4"),
        f"{b:x}",
        f"{b!r}",
        f"{b!s}",
        str(b),
    ]
    log += [
        repr([a, b]),
        str((a,)),
        str({1: a}),
        repr({"k": [a]}),
        str(Text("a")),
        f"{Text('a')}",
        format(Text("a"), "5"),
        repr([Text("a")]),
    ]
    _tried(log, format, a, ">4")
    _tried(log, format, 3, "zz")
    _tried(log, format, None, "3")
    return x + 1


texts.any_graphs = True


def texts_of_other_containers(x, log):
    log += [
        repr(collections.deque([Shown(1)])),
        str(collections.OrderedDict(a=Shown(2))),
        repr(frozenset([Shown(3)])),
    ]
    log += [
        repr(Rows([Shown(1)])),
        repr(collections.defaultdict(list, {1: Shown(1)})),
        repr(types.SimpleNamespace(a=1)),
        str(Pair(1)),
    ]
    return x + 1


texts_of_other_containers.any_graphs = True


def ordered_by_keys(x, log):
    items = [3, 1, 2]
    log += [
        sorted(items, key=None),
        min(items, key=None),
        max(items, key=None, default=0),
        max([], key=None, default=0),
    ]
    items.sort(key=None, reverse=True)
    rows = [Shown(1), Shown(3)]
    bisect.insort(rows, Shown(2))
    log += [
        items,
        [row.n for row in rows],
        bisect.bisect(rows, 2, key=lambda row: row.n),
        bisect.bisect_left([1, 2, 2, 3], 2),
    ]
    bisect.insort(items, 0, key=lambda n: -n)
    log += [
        items,
        heapq.nlargest(2, rows, key=lambda row: -row.n)[0].n,
        heapq.nsmallest(2, [3, 1, 2]),
        heapq.nsmallest(1, [3, 1], key=None),
    ]
    heap = [5, 2, 8]
    heapq.heapify(heap)
    log += [
        heapq.heappop(heap),
        heapq.heappushpop(heap, 1),
        heapq.heapreplace(heap, 9),
        heap,
        list(heapq.merge([1, 4], [2, 3])),
    ]
    _tried(log, sorted, [1, "a"])
    return x + 1


ordered_by_keys.any_graphs = True


def _documented(a: int, *, b="x") -> str:
    return str(a)


_documented.tag = 1


def functions_described(x, log):
    def inner(a: int, b: "str" = "q", *rest) -> float:
        return x

    inner.tag = 5
    log += [
        str(inspect.signature(_documented)),
        _documented.__dict__,
        _documented.tag,
        _documented.__kwdefaults__,
    ]
    log += [inner.__annotations__, inner.__defaults__, inner.__dict__, inner.tag, inner.__name__]
    _documented.tag += 1
    log += [_documented.__dict__["tag"], hasattr(_documented, "gone")]
    _tried(log, inspect.signature, 3)
    return x + 1, inner


functions_described.any_graphs = True


def annotations_that_leave(x):
    def inner(a: int, b: "str" = "q") -> float:
        return x + 1

    def bare(a):
        return a

    return inner, bare, inner.__annotations__["b"], x + 1


def cells(x, log):
    k = 1

    def inner():
        return k

    cell = inner.__closure__[0]
    cell.cell_contents = 5
    log += [
        k,
        inner(),
        cell.cell_contents,
        hasattr(cell, "contents"),
        hasattr(cell, "cell_contents"),
        type(cell).__name__,
    ]
    _tried(log, setattr, cell, "other", 1)
    empty = types.CellType()
    _tried(log, getattr, empty, "cell_contents")
    _tried(log, getattr, cell, "gone")
    return x + k


cells.any_graphs = True


def deleted_by_object(x, log):
    owner = types.SimpleNamespace(a=1, b=2)
    object.__delattr__(owner, "a")
    log.append(vars(owner))
    _tried(log, object.__delattr__, owner, "a")
    _tried(log, object.__delattr__, x, "gone")
    _tried(log, object.__delattr__, [], "gone")
    _tried(log, object.__getattribute__, owner, "gone")
    _tried(log, getattr, object(), "__dict__")
    return x + 1


deleted_by_object.any_graphs = True


def methods_without_an_owner(x, log):
    for method in (
        str.upper,
        list.append,
        dict.get,
        int.bit_length,
        torch.Tensor.sum,
        Shown.__repr__,
        object.__repr__,
    ):
        try:
            log.append(method())
        except TypeError as error:
            log.append(str(error))
    _tried(log, str.upper, 3)
    _tried(log, list.append, [])
    return x + 1


methods_without_an_owner.any_graphs = True


class Base:
    def scaled(self, k):
        return k * 2


class Derived(Base):
    def scaled(self, k):
        later = lambda: self  # noqa: E731
        return super().scaled(k) + (later() is self)

    def kept(self, k):
        def again():
            return self.scaled(k) + super(Derived, self).scaled(k)

        return again() + super().scaled(1)


def super_where_self_is_captured(x):
    return x + Derived().scaled(2) + Derived().kept(3)


class Sequence:
    def __init__(self, *values):
        self.values = values

    def __getitem__(self, i):
        return self.values[i]


def unpacked_objects(x, log):
    a, b = Sequence(1, 2)
    first, *rest = Sequence(3, 4, 5)
    log += [a, b, first, rest, list(Sequence(1)), 2 in Sequence(1, 2), [*Sequence(6)]]
    for wrong in (Bare(), 3, None, Sequence(1), Sequence(1, 2, 3)):
        try:
            a, b = wrong
        except (TypeError, ValueError) as error:
            log.append(str(error))
        try:
            a, b, *rest = wrong
        except (TypeError, ValueError) as error:
            log.append(str(error))
    return x + 1


def bound_methods_of_iterators(x, log):
    numbers = iter([1, 2, 3, 0, 5])
    step = numbers.__next__
    log += [
        step(),
        list(iter(step, 0)),
        step(),
        next(numbers, "end"),
        numbers.__iter__() is numbers,
    ]
    zipped = zip("ab", [1, 2])
    log += [zipped.__next__(), list(map(lambda f: f(), [zipped.__next__])), list(zipped.__iter__())]
    return x + 1


def sets_emptied(x, log):
    one, more = {5}, {7, 3, 10}
    log += [one.pop(), one]
    taken = [more.pop(), more.pop()]
    log += [taken, more, len(more)]
    _tried(log, one.pop)
    names = {"q"}
    log += [names.pop(), names == set()]
    return x + 1


MANY = set(range(64))
MANY.difference_update(set(range(64)) - {9, 16, 40})


def order_of_an_existing_set(x):
    return x + 1, list(MANY), [k for k in MANY], sorted(MANY), next(iter(MANY))


PATTERN = re.compile("[ab]")


def substitutions(x, log):
    log += [
        PATTERN.sub("-", "xaby"),
        PATTERN.sub("-", "xaby", 1),
        PATTERN.sub(r"<\g<0>>", "a"),
        PATTERN.sub(lambda m: m[0] * 2, "xab"),
    ]
    log += [
        PATTERN.subn("", "ab"),
        re.sub("a", "b", "aa"),
        re.sub("a", lambda m: "c", "aa", count=1),
        PATTERN.split("1a2"),
    ]
    return x + 1


class Held:
    def __init__(self):
        self._k = 3

    def read(self):
        return self._k

    def write(self, k):
        self._k = k

    def remove(self):
        del self._k

    k = property(read, write)
    only = property(read)
    full = k.deleter(remove)


def properties_as_objects(x, log):
    held = Held()
    log += [
        Held.k.fget(held),
        Held.k.__get__(held),
        Held.only.fset,
        Held.k.__get__(None, Held) is Held.k,
    ]
    Held.k.__set__(held, 4)
    log.append(held.k)
    _tried(log, setattr, held, "only", 1)
    held.full = 6
    del held.full
    log.append(vars(held))
    return x + 1


properties_as_objects.any_graphs = True


class Shape(enum.Enum):
    ROUND = 1
    FLAT = 2

    @property
    def value(self):
        return "own value"

    def area(self, k=2):
        return self._value_ * k

    def __call__(self, k):
        return self.area(k) + 1

    @classmethod
    def first(cls):
        return cls.ROUND


class Noted(enum.Enum):
    A = 1

    def __init__(self, n):
        self.__dict__["size"] = "in the dict"
        self.label = "own"
        self.label_of_class = n

    @property
    def size(self):
        return "of the class"


def members_of_enumerations(x, log):
    for member in Shape:
        log += [
            member.value,
            member._value_,
            member.name,
            member.area(),
            member.area(k=3),
            member(4),
            callable(member),
        ]
    log += [
        Noted.A.size,
        Noted.A.label,
        Noted.A.value,
        Shape.first() is Shape.ROUND,
        Shape(2),
        Shape["FLAT"],
        Noted.A.label_of_class,
    ]
    _tried(log, Shape, 3)
    _tried(log, lambda: Noted.A(1))
    _tried(log, lambda: Shape.ROUND.absent)
    three = 3
    _tried(log, lambda: three(1))
    return x + Shape.FLAT.area()


ERROR = ValueError("old")
CHAINED = TypeError("chained")
CHAINED.__cause__ = ERROR


def existing_errors(x, log):
    log += [
        ERROR.args,
        str(CHAINED),
        CHAINED.__cause__ is ERROR,
        ERROR.__cause__,
        ERROR.__context__,
        CHAINED.__suppress_context__,
    ]
    return x + 1


existing_errors.any_graphs = True


def nested_filters(x, log):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("hidden")
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("shown inside")
        warnings.warn("hidden again")
    warnings.warn("shown after")
    return x + 1


nested_filters.any_graphs = True


def _yields(log):
    try:
        yield 1
        yield 2
    except ValueError as error:
        log.append(str(error))
        yield "handled"
    finally:
        log.append("left")


def _delegates(log):
    try:
        result = yield from _yields(log)
    except KeyError:
        yield "outer"


def _started(log, depth):
    made = _yields(log) if depth == 1 else _delegates(log)
    next(made)
    return made


def errors_thrown_into_generators(x, log):
    for error in (ValueError("v"), KeyError("k"), StopIteration(3), GeneratorExit()):
        for depth in (1, 2):
            for fresh in (False, True):
                made = (
                    (_yields(log) if depth == 1 else _delegates(log))
                    if fresh
                    else _started(log, depth)
                )
                try:
                    log.append(made.throw(error))
                except BaseException as raised:
                    log.append((type(raised).__name__, str(raised)))
                log.append(next(made, "end"))
                try:
                    log.append(made.throw(KeyError("again")))
                except BaseException as raised:
                    log.append((type(raised).__name__, str(raised)))
    return x + 1


errors_thrown_into_generators.any_graphs = True


def copies_of_dicts(x, log):
    first = {"a": 1, "b": [2]}
    made = [
        dict(first),
        {**first},
        first.copy(),
        dict(**first),
        dict(first.items()),
        first | {},
        collections.OrderedDict(first),
    ]
    made += [
        collections.defaultdict(int, first),
        dict.fromkeys(first, 1),
        {k: v for k, v in first.items()},
    ]
    for k, copied in enumerate(made):
        copied["new"] = k
        copied.pop("a")
    first["c"] = 3

    def keywords(**given):
        given["d"] = 4
        return given

    log += [first, made, keywords(**first), first]
    return x + 1


def tensors_as_indices(x, log):
    n = torch.tensor(1)
    log += [[1, 2, 3][n], (4, 5)[n], "abc"[n], [1, 2, 3][: n + 1], range(5)[n]]
    _tried(log, lambda: [1][torch.tensor(1.5)])
    _tried(log, lambda: [1][torch.tensor([1, 2])])
    return x[n]


tensors_as_indices.any_graphs = True


def kept_members_of_groups(x, log):
    group = ExceptionGroup(
        "g", [ValueError(1), TypeError(2), ExceptionGroup("inner", [ValueError(3), KeyError(4)])]
    )
    group.add_note("noted")
    try:
        try:
            raise group
        except* ValueError as found:
            log.append((found.__notes__, [type(e).__name__ for e in found.exceptions]))
            found.add_note("more")
            raise
        except* TypeError as found:
            raise KeyError("new") from found
    except ExceptionGroup as left:
        log.append(
            (left.message, [repr(e) for e in left.exceptions], getattr(left, "__notes__", None))
        )
    log.append(group.__notes__)
    try:
        try:
            raise group
        except* KeyError as found:
            raise
    except ExceptionGroup as left:
        log.append((left.message, len(left.exceptions), left.__notes__))
    try:
        try:
            raise group
        except* (ValueError, TypeError, KeyError):
            raise OSError("only")
    except OSError as left:
        log.append(repr(left))
    return x + 1


kept_members_of_groups.any_graphs = True


@functools.lru_cache(maxsize=None)
def _cached(n, m=1):
    return n * 2 + m


@functools.cache
def _cached_list(n):
    return [n]


def cached_functions(x, log):
    log += [
        _cached(3),
        _cached(3),
        _cached(3, m=2),
        _cached(x.shape[0]),
        _cached_list(1) is _cached_list(1),
        _cached_list(1),
    ]
    return x + _cached(len(log))


cached_functions.any_graphs = True
