# ruff: noqa
"""Built-in and standard containers, and their mutation."""

import collections
import copy
import operator
import bytecode_dynamo
import weakref
import dataclasses
import enum
import types
import typing
from collections import ChainMap, Counter, OrderedDict, defaultdict, deque, namedtuple

import torch


def list_methods(x, log):
    log += [3, 1, 2]
    log.append(x)
    log.insert(0, "first")
    log.extend(range(2))
    tensor = log.pop(4)
    log.remove(1)
    log.reverse()
    return tensor + 1, log.index(2), log.count(0), log.copy(), log[-1], len(log), log * 2, log + [7]


def list_sort(x, log):
    log += [3, 1, 2]
    log.sort()
    log.sort(key=lambda v: -v)
    return x + log[0], [3, 1] < [3, 2], [1] == [1], [1, 2] != [1]


def list_slice_assignment(x, log):
    log += [0, 1, 2, 3, 4]
    log[1:3] = [x, x, x]
    log[::2] = [None] * len(log[::2])
    del log[-1]
    del log[:1]
    return x + len(log)


def list_errors(x):
    out = []
    for action in (
        lambda: [].pop(),
        lambda: [1][3],
        lambda: [1].remove(2),
        lambda: [1].index(5),
        lambda: [1]["a"],
    ):
        try:
            action()
        except (IndexError, ValueError, TypeError) as error:
            out.append((type(error).__name__, str(error)))
    return x + 1, out


def nested_lists(x, log):
    log.append([[x]])
    inner = log[0][0]
    inner.append(1)
    log[0][0][0] = x + 1
    return log[0], inner is log[0][0]


def self_reference(x):
    items = [x]
    items.append(items)
    return items[1][1][0] + 1, items[1] is items


def tuple_methods(x):
    t = (1, x, "a")
    return (
        t[1] + 1,
        t + (2,),
        t * 2,
        len(t),
        t[::-1],
        (1, 2) < (1, 3),
        t.count("a"),
        t.index("a"),
        t[0:2][1],
        () == (),
    )


def dict_methods(x, log):
    d = {"a": x, 1: 2, (1, 2): 3, None: 4}
    d["b"] = x + 1
    d.update(c=5, a=x * 2)
    d.update([("e", 6)])
    d.setdefault("f", []).append(1)
    log.append(d.pop(1))
    log.append(d.pop("zz", "none"))
    log.append(d.popitem())
    del d[None]
    return (
        d,
        list(d),
        list(d.values())[0],
        list(d.items())[-1],
        "a" in d,
        d.get("zz"),
        d.get("a", 1),
        len(d),
    )


def dict_merge(x):
    a, b = {"p": x + 1, "q": 1}, {"q": 2, "r": 3}
    c = a | b
    a |= b
    return (
        a,
        c,
        {**a, **b},
        a == c,
        a.keys() & b.keys(),
        a.keys() - b.keys(),
        dict(a, z=1),
        dict.fromkeys("ab", 0),
    )


def dict_views(x):
    d = {"a": x, "b": 2}
    keys, values, items = d.keys(), d.values(), d.items()
    d["c"] = 3
    return (
        x + len(keys),
        list(keys),
        len(values),
        ("b", 2) in items,
        "c" in keys,
        sorted(keys | {"z"}),
        list(reversed(keys)),
    )


def dict_errors(x):
    out = []
    for action in (lambda: {}["k"], lambda: {}.popitem(), lambda: {[]: 1}, lambda: {1: 2}.pop(3)):
        try:
            action()
        except (KeyError, TypeError) as error:
            out.append((type(error).__name__, str(error)))
    return x + 1, out


def dict_argument(x, log, d):
    d["new"] = d["k"] * 2
    d["n"] += 1
    del d["k"]
    log.append(d)
    return d["new"], list(d)


def dict_with_objects_as_keys(x):
    class Key:
        pass

    a, b = Key(), Key()
    d = {a: 1, b: x, len: 3, torch.float32: 4, int: 5}
    return d[b] + d[a], d[len], d[torch.float32], d[int], a in d, Key() in d


dict_with_objects_as_keys.any_graphs = True


def dict_with_user_hash(x):
    class Point:
        def __init__(self, a):
            self.a = a

        def __eq__(self, other):
            return isinstance(other, Point) and self.a == other.a

        def __hash__(self):
            return hash(self.a)

    d = {Point(1): x}
    d[Point(1)] = x + 1
    return d[Point(1)], len(d), Point(2) in d, len({Point(1), Point(1), Point(3)})


dict_with_user_hash.any_graphs = True


def dict_with_tensor_keys(x):
    y = x + 1
    d = {x: 1, y: 2}
    return x + d[x], d[y], x in d


def dict_ordering(x):
    d = {"b": 1, "a": 2}
    d["b"] = 3
    d["c"] = d.pop("a")
    return x + 1, list(d), list(d.values()), min(d), sorted(d)


def bool_int_keys(x):
    d = {1: "int", 1.0: "float", True: "bool"}
    return x + len(d), d, {0: 1}[False], {1, True, 1.0}


def set_methods(x):
    s = {1, 2, 3}
    s.add(4)
    s.discard(9)
    s.remove(1)
    s.update([5], {6})
    t = frozenset([2, 3, 9])
    out = (
        sorted(s | t),
        sorted(s & t),
        sorted(s - t),
        sorted(s ^ t),
        s <= t,
        t.issubset({2, 3, 9, 10}),
        s.isdisjoint({77}),
    )
    s &= {2, 3}
    s -= {2}
    s ^= {8}
    return x + len(s), s, out, t, {t: 1}[t], set("aab") == {"a", "b"}, s.pop() in (3, 8)


def set_errors(x):
    try:
        {1}.remove(2)
    except KeyError as error:
        return x + 1, error.args


def set_operations_in_place(x):
    s = {1, 2, 3, 4}
    s.intersection_update({2, 3, 4})
    s.difference_update({4})
    s.symmetric_difference_update({3, 7})
    return x + 1, s, s.union([9], [10]), s.intersection([7]), s > {2}, {1} < {1, 2}, {1, 2} >= {1}


def set_of_tensors(x):
    y = x + 1
    s = {x, y, x}
    return x + len(s), x in s, sum(1 for _ in s)


Point = namedtuple("Point", "a b", defaults=[2])


class Typed(typing.NamedTuple):
    v: object
    k: int = 3

    def scaled(self):
        return self.v * self.k

    @property
    def double(self):
        return self.v * 2


def named_tuples(x):
    p = Point(x)
    q = p._replace(b=5)
    a, b = q
    return (
        q,
        p.b,
        a + b,
        p._fields,
        Point._make([1, 2]),
        q._asdict(),
        p == Point(x),
        q[1],
        isinstance(p, tuple),
        Point._field_defaults,
    )


def typed_named_tuples(x):
    t = Typed(x)
    return (
        t.scaled(),
        t.double,
        Typed(v=1, k=2),
        repr(Typed(1)),
        len(t),
        t + (1,),
        Typed(1) < Typed(2),
    )


class Derived(Point):
    __slots__ = ()

    def total(self):
        return self.a + self.b


def named_tuple_subclass(x):
    d = Derived(x, 3)
    return d.total(), d, isinstance(d, Point), d._replace(a=1)


class Doubled(Point):
    def __new__(cls, a, *, times=2):
        return super().__new__(cls, a, a * times)


def named_tuple_with_its_own_new(x):
    d = Doubled(x, times=3)
    try:
        Doubled()
    except TypeError as error:
        return d, d.b, type(d) is Doubled, d._replace(b=1), str(error)


def named_tuple_made_inside(x):
    Local = namedtuple("Local", ["u", "v"])
    return Local(x, 1).u + 1


named_tuple_made_inside.any_graphs = True


def deques(x, log):
    d = deque([1, 2, 3])
    d.append(4)
    d.appendleft(0)
    d.extendleft([8, 9])
    d.rotate(1)
    log.append(d.pop())
    log.append(d.popleft())
    d[1] = x + 1
    return d, d[0], len(d), 9 in d, list(d), d.index(d[0]), d.copy(), deque("ab") == deque("ab")


def bounded_deque(x):
    d = deque(maxlen=2)
    for i in range(4):
        d.append(x + i)
    d.appendleft(x)
    return d, d.maxlen, len(d)


def ordered_dicts(x):
    d = OrderedDict([("a", x + 1), ("b", 2), ("c", 3)])
    d.move_to_end("a")
    d.move_to_end("c", last=False)
    first = d.popitem(last=False)
    return (
        d,
        first,
        OrderedDict(a=1, b=2) == OrderedDict(b=2, a=1),
        OrderedDict(a=1) == {"a": 1},
        list(reversed(d)),
        d | {"z": 1},
    )


def default_dicts(x):
    d = defaultdict(list)
    d["a"].append(x * 2)
    d["a"].append(1)
    n = defaultdict(int, {"z": 1})
    for c in "hello":
        n[c] += 1
    nested = defaultdict(lambda: defaultdict(int))
    nested["p"]["q"] += 2
    return d, dict(n), nested["p"]["q"], d.default_factory, "b" in d, d.get("b"), len(d)


def counters(x):
    c = Counter("hello")
    c.update("lo")
    c["z"] += 3
    d = Counter(a=1, l=1)
    return (
        x + c["l"],
        c,
        c["missing"],
        c.most_common(2),
        sorted(c.elements()),
        c - d,
        c + d,
        c & d,
        c.total(),
        sum(c.values()),
    )


def chain_maps(x):
    base, top = {"a": 1, "b": x}, {"a": 5}
    c = ChainMap(top, base)
    c["n"] = 7
    return (
        c["b"] + c["a"],
        c.maps[0],
        sorted(c),
        "b" in c,
        c.new_child({"a": 9})["a"],
        len(c),
        c.get("zz", 0),
        dict(c)["a"],
    )


@dataclasses.dataclass
class Config:
    width: int
    name: str = "c"
    items: list = dataclasses.field(default_factory=list)
    derived: int = dataclasses.field(init=False, default=0)

    def __post_init__(self):
        self.derived = self.width * 2


@dataclasses.dataclass(frozen=True, order=True)
class Frozen:
    a: int
    b: float = 1.5


@dataclasses.dataclass(slots=True)
class Slotted:
    a: object
    b: int = 2


@dataclasses.dataclass(kw_only=True, eq=True, unsafe_hash=True)
class Keyed:
    a: int
    b: int = 1


CONFIG = Config(4)


def dataclasses_made_inside(x):
    c = Config(3, items=[x])
    c.items.append(1)
    c.name += "!"
    other = Config(3, "c!", [x, 1])
    return (
        x * c.derived,
        c,
        c.width == other.width,
        Config(1) == Config(1),
        repr(Config(2)),
        Config(1) is not Config(1),
    )


def dataclass_functions(x):
    c = Config(3, items=[1])
    names = [f.name for f in dataclasses.fields(c)]
    return (
        x + 1, names, dataclasses.asdict(c), dataclasses.astuple(c), dataclasses.replace(Frozen(1), b=2.5),
        dataclasses.is_dataclass(c), dataclasses.is_dataclass(3), [f.name for f in dataclasses.fields(Config)],
    )  # fmt: skip


def frozen_dataclasses(x):
    f = Frozen(1)
    try:
        f.a = 2
    except dataclasses.FrozenInstanceError as error:
        message = str(error)
    return (
        x + f.a,
        f,
        Frozen(1) < Frozen(2),
        Frozen(1) == Frozen(1),
        message,
        {f: 1}[Frozen(1)],
        hash(f) == hash(Frozen(1)),
    )


def slotted_dataclasses(x):
    s = Slotted(x)
    s.b += 1
    return s.a + s.b, s, Keyed(a=1) == Keyed(a=1), {Keyed(a=1): 5}[Keyed(a=1)]


def dataclass_of_module(x):
    CONFIG.width += 1
    CONFIG.items.append(CONFIG.width)
    return x * CONFIG.width


dataclass_of_module.any_graphs = True


def dataclass_with_tensors(x):
    @dataclasses.dataclass
    class Local:
        t: torch.Tensor

        def norm(self):
            return self.t.norm()

    return Local(x).norm()


dataclass_with_tensors.any_graphs = True


class Color(enum.Enum):
    RED = 1
    GREEN = 2

    @property
    def pretty(self):
        return self.name.title()

    def shifted(self, n):
        return self.value + n


class Flags(enum.Flag):
    A = enum.auto()
    B = enum.auto()


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 5


class Word(str, enum.Enum):
    YES = "yes"


def enums(x):
    c = Color.RED
    return (
        x * c.value, c.name, c is Color.RED, c == Color.GREEN, Color(2), Color["GREEN"], [m.name for m in Color],
        c.pretty, c.shifted(3), len(Color), c in Color, isinstance(c, Color), {Color.RED: 1}[c], repr(c), str(c),
    )  # fmt: skip


def enum_kinds(x):
    f = Flags.A | Flags.B
    return (
        x + Level.HIGH,
        f,
        Flags.A in f,
        bool(f & Flags.B),
        Level.LOW < Level.HIGH,
        Word.YES == "yes",
        Word("yes").upper(),
        f.value,
    )


def enum_errors(x):
    try:
        Color(9)
    except ValueError as error:
        return x + 1, str(error)


def simple_namespaces(x):
    n = types.SimpleNamespace(a=x, b=1)
    n.c = n.a + n.b
    del n.b
    return (
        n,
        hasattr(n, "b"),
        n.c,
        sorted(vars(n)),
        types.SimpleNamespace(a=1) == types.SimpleNamespace(a=1),
    )


class Registry(dict):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.reads = 0

    def __getitem__(self, key):
        self.reads += 1
        return super().__getitem__(key)

    def __missing__(self, key):
        return f"no {key}"

    def first(self):
        return next(iter(self.values()))


def dict_subclass(x):
    r = Registry(a=x)
    r["b"] = 2
    r.extra = 5
    return (
        r["a"] + r["b"],
        r["zz"],
        r.reads,
        r.first() + 1,
        len(r),
        list(r),
        "a" in r,
        r.get("q", 3),
        isinstance(r, dict),
        r.extra,
    )


class AttrDict(dict):
    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name, value):
        self[name] = value


SETTINGS = AttrDict(depth=2)


def attribute_dict(x):
    d = AttrDict(a=x)
    d.b = d.a + 1
    return d.b, d["b"], hasattr(d, "zz"), sorted(d), SETTINGS.depth + x


def dict_subclass_returned(x):
    return AttrDict(a=x + 1)


def dict_subclass_global_mutated(x):
    SETTINGS.depth = SETTINGS.depth + 1
    SETTINGS["n"] = x * SETTINGS.depth
    return SETTINGS["n"]


dict_subclass_global_mutated.any_graphs = True


class Stack(list):
    def push(self, v):
        self.append(v)
        return self

    @property
    def top(self):
        return self[-1]

    def __len__(self):
        return super().__len__() + 100


def list_subclass(x):
    s = Stack([1])
    s.push(x).push(2)
    s.name = "s"
    return s[1] + s.top, len(s), list(s), s.name, isinstance(s, list), s[0], s[1:], 1 in s


def list_subclass_returned(x):
    s = Stack()
    s.push(x + 1)
    return s


class Pair(tuple):
    def __new__(cls, a, b):
        return super().__new__(cls, (a, b))

    @property
    def sum(self):
        return self[0] + self[1]


def tuple_subclass(x):
    p = Pair(x, 1)
    a, b = p
    return p.sum, a + b, len(p), p, isinstance(p, tuple)


class Age(int):
    def next(self):
        return Age(self + 1)


class Name(str):
    def shout(self):
        return self.upper() + "!"


def number_and_text_subclasses(x):
    return (
        x + Age(3).next(),
        Name("a").shout(),
        isinstance(Age(1), int),
        Age(2) + 1,
        Name("a") + "b",
    )


class UserMap(collections.UserDict):
    def __setitem__(self, key, value):
        super().__setitem__(key.lower(), value)


def user_dict(x):
    m = UserMap(A=x)
    m["B"] = 2
    return m["a"] + m["b"], "a" in m, len(m), list(m), m.get("q")


def copies(x):
    a = {"l": [1, x], "t": (1,)}
    b, c = copy.copy(a), copy.deepcopy({"l": [1, 2]})
    b["l"].append(2)
    return (
        a,
        b,
        c,
        b["l"] is a["l"],
        copy.copy([1, 2]),
        copy.copy((1,)),
        copy.copy(Config(1)).width + x,
    )


def bytes_and_bytearray(x):
    b = b"abc"
    return (
        x + b[0],
        b.upper(),
        b + b"d",
        len(b),
        b.decode(),
        bytes([1, 2]),
        b.hex(),
        b.startswith(b"a"),
        list(b),
    )


def contains_and_count_of_tensors(x):
    items = [1, "a", None]
    return x + (1 in items), None in items, "a" not in items, [].count(1), (1, 2).count(1)


def alias_in_containers(x, log):
    shared = []
    a, b = {"s": shared}, [shared]
    a["s"].append(x + 1)
    b[0].append(1)
    log.append(shared)
    return shared, a["s"] is b[0], len(shared)


def container_comparison(x):
    return (
        x + 1,
        [1, [2]] == [1, [2]],
        {"a": [1]} == {"a": [1]},
        (1,) == [1],
        {1} == {1.0},
        [1] < [1, 0],
        (2,) > (1, 5),
        None == 1,
    )


def truthiness(x):
    return x + sum(
        bool(v)
        for v in (
            [],
            [0],
            {},
            {1: 1},
            (),
            "",
            "a",
            0,
            0.0,
            None,
            set(),
            {0},
            range(0),
            range(1),
            Point(1),
        )
    )


def tree_of_containers(x):
    def walk(t):
        if isinstance(t, dict):
            return {k: walk(v) for k, v in t.items()}
        if isinstance(t, (list, tuple)):
            return type(t)(walk(v) for v in t)
        return t * 2 if torch.is_tensor(t) else t

    return walk({"a": [x, (x, 1)], "b": {"c": "s"}})


def views_as_sets(x):
    d = {"a": 1, "b": 2}
    k = d.keys()
    return k.isdisjoint({"q"}), k <= {"a", "b", "c"}, k < {"a"}, k >= {"a"}, x + 1


def functions_that_delete(x):
    items, d = [1, 2], {"a": 1}
    operator.delitem(items, 0)
    operator.delitem(d, "a")
    return operator.iconcat(items, [3]), items, d, x + 1


def lists_in_order(x):
    return [1, x] < [2, x], [1, 2, x] <= [1, 3], (1, "a", len) > (1, "b"), x + 1


def named_tuple_made_inside(x):
    P = collections.namedtuple("P", ["a", "b"], defaults=[5])
    p = P(x)
    return p.a * p.b, p._fields, p._replace(b=2).b


class _Key:
    pass


_KEY = _Key()
_WEAK = weakref.WeakKeyDictionary({_KEY: 3})


def weak_keys(x):
    return x + _WEAK[_KEY], _WEAK.get(_KEY), _KEY in _WEAK


_REFERENCE = weakref.ref(_KEY)


def an_object_has_one_weak_reference(x):
    made, noticed = weakref.ref(_KEY), weakref.ref(_KEY, print)
    return x + 1, made is _REFERENCE, made == _REFERENCE, noticed is made, made() is _KEY


def texts_of_containers(x):
    held = collections.deque([1, 2], maxlen=2)
    counts = collections.defaultdict(int, {"a": 1})
    d = {"a": [_Named()], "b": (_Named(),)}
    return (
        repr(held),
        repr(counts),
        f"{d}",
        repr(d.keys()),
        repr(types.MappingProxyType({1: 2})),
        x + 1,
    )


class _Named:
    def __repr__(self):
        return "named"


def deque_changed_in_its_loop(x, log):
    held = collections.deque([1, 2, 3])
    for at, _ in enumerate(held):
        held[at] = 0  # is no move
    for _ in held:
        held.reverse()
    for change in (held.popleft, lambda: held.append(1), lambda: held.rotate(1)):
        try:
            for _ in held:
                change()
        except RuntimeError as error:
            log.append(str(error))
    try:
        held.remove(7)
    except ValueError as error:
        log.append(str(error))
    return held, x + 1


def sizes_and_tuples(x):
    return (1, *x.shape), (1,) + x.shape, x.shape + (1,), type((1,) + x.shape).__name__, x + 1


def fields_of_a_result(x):
    found = x.max(0)
    return found.n_fields, found.n_sequence_fields, found.values, found.indices


def operands_that_are_no_sets(x, log):
    for function in (
        lambda: {1} | [1],
        lambda: {1} <= [1],
        lambda: {1}[0],
        lambda: dict([1]),
        lambda: dict([(1, 2, 3)]),
    ):
        try:
            function()
        except (TypeError, ValueError) as error:
            log.append((type(error).__name__, str(error)))
    return (
        {"a": 1}.keys() | ["b"],
        types.MappingProxyType({1: 2}) == {1: 2},
        types.MappingProxyType({1: 2}) | {3: 4},
        x + 1,
    )


def numbers_of_objects(x):
    objects = [_Named(), _Named()]
    numbers = {id(held): at for at, held in enumerate((x, *objects))}
    x = x + 1
    bytecode_dynamo.graph_break()
    return (
        id(x) in numbers,
        id(objects[1]) in set(numbers),
        numbers[id(objects[0])],
        hash(x) == hash(x),
        x + 1,
    )


numbers_of_objects.any_graphs = True  # the numbers are others in each call


def attributes_of_a_class(x):
    return (
        sorted(name for name in vars(_Named) if name == "__repr__"),
        len(vars(_Named)["__module__"]) > 0,
        x + 1,
    )


class WithADict(Point):
    def scaled(self):
        return self.a * self.b


def named_tuple_with_a_dict(x):
    made = WithADict(x, 3)
    other = made._replace(b=4)
    a, b = other
    return made.scaled(), other.a, b, a, made == other, made


class _Remembering:
    pass


def instance_dict_setdefault(x):
    held = _Remembering()
    vars(held).setdefault("n", 1)
    held.n += vars(held).setdefault("n", 5)
    return x + held.n, vars(held).setdefault("nothing"), list(vars(held))


def containers_that_are_refused(x):
    texts = []
    for make in (lambda: deque([], -1), lambda: defaultdict(3), lambda: OrderedDict().popitem()):
        try:
            make()
        except (TypeError, ValueError, KeyError) as error:
            texts.append(repr(error))
    return x + 1, texts


class _ById:
    def __init__(self, n):
        self.n = n

    def __hash__(self):
        return id(self)

    def __eq__(self, other):
        return self is other


class _ByHashOfId(_ById):
    def __hash__(self):
        return hash(id(self))

    __eq__ = _ById.__eq__


class _AsObjects(_ById):
    def __hash__(self):
        return super(_ById, self).__hash__()

    __eq__ = _ById.__eq__


_BY_ID = [cls(n) for cls in (_ById, _ByHashOfId, _AsObjects) for n in range(2)]
_NUMBERS = {item: k for k, item in enumerate(_BY_ID)}


def keys_hashed_by_id(x):
    new, made = _ById(3), {item: item.n for item in _BY_ID}
    made[new] = 4
    found = set()
    found.update([*_BY_ID, new, *_BY_ID])
    return (
        x + len(found),
        [_NUMBERS[item] for item in _BY_ID],
        [item in found for item in (*_BY_ID, new, _ById(0))],
        [_NUMBERS.get(item, "none") for item in (new, _ById(1))],
        list(made.values()),
    )


def numbers_that_stand_for_objects(x):
    """torch hashes a tensor by its id, and object hashes by address."""
    y, made, layer = x + 1, _ById(1), torch.nn.Linear(1, 1)
    return (
        y,
        [hash(x) == id(x), hash(y) == id(y), hash(x) == hash(y), id(x) == id(y)],
        [hash(x) in {id(x): 1}, hash(x) == x.__hash__(), {hash(y): 2}[id(y)]],
        [hash(made) == id(made), hash(hash(layer)) == hash(layer), hash(layer) == id(layer)],
        [object.__hash__(layer) == hash(layer), object.__hash__(made) == hash(made)],
    )
