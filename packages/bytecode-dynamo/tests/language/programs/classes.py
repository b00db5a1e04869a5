# ruff: noqa
"""User classes: construction inside the graph, special methods, descriptors, metaclasses, class statements."""

import abc
import collections.abc
import functools
import numbers
import typing

import torch


class Vector:
    count = 0
    registry = {}

    def __init__(self, *values):
        self.values = list(values)
        Vector.count += 1

    def __add__(self, other):
        if isinstance(other, Vector):
            return Vector(*(a + b for a, b in zip(self.values, other.values)))
        return NotImplemented

    def __radd__(self, other):
        return Vector(*(other + a for a in self.values))

    def __mul__(self, k):
        return Vector(*(a * k for a in self.values))

    __rmul__ = __mul__

    def __imul__(self, k):
        self.values = [a * k for a in self.values]
        return self

    def __neg__(self):
        return Vector(*(-a for a in self.values))

    def __abs__(self):
        return sum(abs(a) for a in self.values)

    def __eq__(self, other):
        return isinstance(other, Vector) and len(self) == len(other)

    def __lt__(self, other):
        return len(self) < len(other)

    def __len__(self):
        return len(self.values)

    def __bool__(self):
        return bool(self.values)

    def __getitem__(self, i):
        return Vector(*self.values[i]) if isinstance(i, slice) else self.values[i]

    def __setitem__(self, i, v):
        self.values[i] = v

    def __delitem__(self, i):
        del self.values[i]

    def __iter__(self):
        return iter(self.values)

    def __contains__(self, v):
        return v in [a for a in self.values if isinstance(a, int)]

    def __call__(self, k):
        return self[0] * k

    def __repr__(self):
        return f"Vector(<{len(self)}>)"

    def __format__(self, spec):
        return f"V{spec}"

    def __int__(self):
        return 7

    def __float__(self):
        return 7.5

    def __index__(self):
        return 2

    def __round__(self, n=0):
        return n

    def __divmod__(self, other):
        return ("divmod", other)

    def __pow__(self, n, mod=None):
        return n

    def __matmul__(self, other):
        return sum(a * b for a, b in zip(self.values, other.values))

    def __invert__(self):
        return "inverted"

    def __pos__(self):
        return self

    def __reversed__(self):
        return iter(self.values[::-1])

    def __rsub__(self, other):
        return "rsub"

    def __floordiv__(self, other):
        return "floordiv"

    def __mod__(self, other):
        return "mod"

    def __lshift__(self, other):
        return "lshift"

    def __and__(self, other):
        return "and"

    def __ror__(self, other):
        return "ror"


def arithmetic(x):
    v = Vector(x, 1) + Vector(x, 2)
    w = 1 + v
    w *= 2
    return (
        w.values,
        (2 * v)[1],
        (-v)[1],
        v @ v,
        5 - v,
        v // 1,
        v % 2,
        v << 1,
        v & 1,
        1 | v,
        +v is v,
        ~v,
    )


arithmetic.any_graphs = True


def comparison_and_truth(x):
    a, b = Vector(1, x), Vector(1)
    return (
        x + 1,
        a == b,
        a != b,
        b < a,
        a > b,
        bool(Vector()),
        not b,
        a == 3,
        max(a, b) is a,
        sorted([a, b])[0] is b,
    )


comparison_and_truth.any_graphs = True


def container_protocol(x):
    v = Vector(1, x, 3)
    v[0] = x * 2
    del v[2]
    return (
        v[0] + v[1],
        len(v),
        list(v),
        3 in v,
        v[1:].values,
        [*v],
        list(reversed(v)),
        v(2),
        [1, 2, 3][v],
    )


container_protocol.any_graphs = True


def conversion(x):
    v = Vector(x)
    return (
        x + int(v),
        float(v),
        str(v),
        repr(v),
        f"{v:>3}",
        f"{v!r}",
        round(v, 2),
        divmod(v, 3),
        v**2,
        "%s" % v,
        abs(Vector(-1, 2)),
    )


conversion.any_graphs = True


class Animal:
    sound = "..."

    def __init__(self, name):
        self.name = name

    def speak(self, x):
        return x + len(self.sound)

    @classmethod
    def create(cls, *args):
        return cls(*args)

    @staticmethod
    def helper(x):
        return x * 2


class Loud(Animal):
    sound = "WOOF"

    def __init__(self, name, volume=2):
        super().__init__(name.upper())
        self.volume = volume

    def speak(self, x):
        return super().speak(x) * self.volume

    @classmethod
    def create(cls, *args):
        made = super().create(*args)
        made.volume = 5
        return made


def inheritance(x):
    d = Loud.create("rex")
    return (
        d.speak(x),
        d.name,
        d.helper(x),
        isinstance(d, Animal),
        type(d).__mro__[1] is Animal,
        Animal.speak(d, x),
        d.__class__ is Loud,
    )


class A:
    def trail(self):
        return ["A"]


class B(A):
    def trail(self):
        return ["B", *super().trail()]


class C(A):
    def trail(self):
        return ["C", *super().trail()]


class D(B, C):
    def trail(self):
        return ["D", *super(D, self).trail()]


def diamond(x):
    return (
        x + len(D().trail()),
        D().trail(),
        [c.__name__ for c in D.__mro__],
        D.mro()[0] is D,
        issubclass(D, A),
    )


class WithProperties:
    def __init__(self, t):
        self._t = t

    @property
    def t(self):
        return self._t + 1

    @t.setter
    def t(self, value):
        self._t = value * 2

    @t.deleter
    def t(self):
        self._t = 0

    @functools.cached_property
    def costly(self):
        return self._t.sum()

    @property
    def broken(self):
        raise AttributeError("inner")


def properties(x):
    p = WithProperties(x)
    p.t = p.t + 1
    first = p.t
    del p.t
    return (
        first,
        p.t,
        WithProperties(x).costly + 1,
        hasattr(p, "broken"),
        getattr(p, "broken", "fallback"),
        isinstance(WithProperties.t, property),
    )


def cached_property_is_cached(x):
    p = WithProperties(x)
    return p.costly is p.costly, p.costly + 1, "costly" in p.__dict__


class Positive:
    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, instance, owner=None):
        return self if instance is None else getattr(instance, self.name, None)

    def __set__(self, instance, value):
        if isinstance(value, int) and value < 0:
            raise ValueError("negative")
        setattr(instance, self.name, value)

    def __delete__(self, instance):
        delattr(instance, self.name)


class NonData:
    def __get__(self, instance, owner):
        return (instance is None, owner.__name__)


class Described:
    size = Positive()
    plain = NonData()


def descriptors(x):
    d = Described()
    d.size = x
    got = d.size + 1
    try:
        d.size = -1
    except ValueError as error:
        message = str(error)
    del d.size
    d.plain_shadow = 1
    return got, d.size, message, d.plain, Described.plain, isinstance(Described.size, Positive)


class Dynamic:
    def __init__(self):
        self.known = 1

    def __getattr__(self, name):
        if name.startswith("dyn_"):
            return len(name)
        raise AttributeError(name)


class Recording:
    def __init__(self, log):
        object.__setattr__(self, "log", log)

    def __setattr__(self, name, value):
        self.log.append((name, value))
        super().__setattr__(name, value)

    def __delattr__(self, name):
        self.log.append(name)
        super().__delattr__(name)


class Intercepting:
    def __init__(self):
        self.v = 3

    def __getattribute__(self, name):
        if name == "magic":
            return 42
        return super().__getattribute__(name)


def dynamic_attributes(x):
    d = Dynamic()
    return (
        x + d.dyn_abc,
        d.known,
        hasattr(d, "other"),
        getattr(d, "other", None),
        getattr(d, "dyn_x"),
    )


def recorded_attributes(x, log):
    r = Recording(log)
    r.a = 1
    r.b = x
    del r.a
    return r.b + 1, hasattr(r, "a")


def intercepted_attributes(x):
    i = Intercepting()
    return x + i.magic + i.v, hasattr(i, "nothing")


class Slots:
    __slots__ = ("a", "b")

    def __init__(self, a):
        self.a = a


def slots(x):
    s = Slots(x)
    s.b = 2
    try:
        s.c = 1
    except AttributeError as error:
        kind = type(error).__name__
    del s.b
    return s.a + 1, kind, hasattr(s, "b"), s


class Meta(type):
    def __call__(cls, *args, **kwargs):
        made = super().__call__(*args, **kwargs)
        made.tagged = cls.__name__
        return made

    def __len__(cls):
        return 11

    def __getitem__(cls, key):
        return (cls.__name__, key)

    def __contains__(cls, item):
        return item == 5

    def __iter__(cls):
        return iter([1, 2])

    @property
    def meta_property(cls):
        return "meta"

    def meta_method(cls):
        return cls.__name__ * 2


class Metaed(metaclass=Meta):
    def __init__(self, v):
        self.v = v


def metaclasses(x):
    m = Metaed(x)
    return (
        m.v + 1,
        m.tagged,
        len(Metaed),
        Metaed[3],
        5 in Metaed,
        list(Metaed),
        Metaed.meta_property,
        Metaed.meta_method(),
        type(Metaed) is Meta,
    )


class Singleton:
    _instance = None

    def __new__(cls, *args):
        if cls._instance is None:
            cls._instance = super().__new__(cls)
        return cls._instance

    def __init__(self, v=0):
        self.v = v


def singleton(x):
    a, b = Singleton(1), Singleton(2)
    return x + a.v, a is b


singleton.any_graphs = True


class Immutable:
    def __new__(cls, v):
        self = object.__new__(cls)
        self.v = v
        return self


def construction_by_new(x):
    i = Immutable(x)
    return i.v + 1, object.__new__(Immutable).__class__ is Immutable, isinstance(object(), object)


class NotSelf:
    def __new__(cls):
        return 5


def new_returns_something_else(x):
    return x + NotSelf()


class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self): ...

    def describe(self):
        return self.area() * 2


class Square(Shape):
    def __init__(self, s):
        self.s = s

    def area(self):
        return self.s * self.s


def abstract_classes(x):
    try:
        Shape()
    except TypeError:
        kind = "abstract"
    return Square(x).describe(), isinstance(Square(1), Shape), kind


class Lazy(collections.abc.Mapping):
    def __init__(self, data):
        self.data = data

    def __getitem__(self, key):
        return self.data[key]

    def __iter__(self):
        return iter(self.data)

    def __len__(self):
        return len(self.data)


class Bag(collections.abc.MutableSequence):
    def __init__(self):
        self.items = []

    def __getitem__(self, i):
        return self.items[i]

    def __setitem__(self, i, v):
        self.items[i] = v

    def __delitem__(self, i):
        del self.items[i]

    def __len__(self):
        return len(self.items)

    def insert(self, i, v):
        self.items.insert(i, v)


def abstract_collections(x):
    m = Lazy({"a": x, "b": 2})
    b = Bag()
    b.append(1)
    b.extend([2, 3])
    return (
        m["a"] + m.get("b"),
        "a" in m,
        list(m.items())[1],
        m == {"a": x, "b": 2} or True,
        dict(**m)["b"],
        list(b),
        b.pop(),
        b.index(2),
        len(b),
    )


def abc_checks(x):
    return (
        x + 1, isinstance([], collections.abc.Sequence), isinstance({}, collections.abc.Mapping), isinstance(3, numbers.Number),
        isinstance(len, collections.abc.Callable), isinstance((i for i in ()), collections.abc.Iterator),
        isinstance(x, collections.abc.Iterable), issubclass(dict, collections.abc.MutableMapping), isinstance("", collections.abc.Hashable),
    )  # fmt: skip


class Proto(typing.Protocol):
    def area(self): ...


@typing.runtime_checkable
class Checkable(typing.Protocol):
    def area(self): ...


def protocols(x):
    return x + 1, isinstance(Square(1), Checkable), isinstance(3, Checkable)


T = typing.TypeVar("T")


class Box(typing.Generic[T]):
    def __init__(self, v: T):
        self.v = v

    def get(self) -> T:
        return self.v


def generic_classes(x):
    return (
        Box[int](x).get() + Box(1).get(),
        list[int]([1]),
        dict[str, int](a=1),
        typing.Optional[int] is not None,
        int | None == None | int,
    )


def class_statement(x):
    class Local:
        factor = 3

        def __init__(self, v):
            self.v = v

        def scaled(self):
            return self.v * self.factor

    return Local(x).scaled(), Local.factor, Local.__name__


class_statement.any_graphs = True


def class_statement_with_closure(x):
    k = 4

    class Base:
        def go(self):
            return x * k

    class Child(Base):
        def go(self):
            return super().go() + 1

    return Child().go()


class_statement_with_closure.any_graphs = True


def class_statement_with_decorator(x):
    def tag(cls):
        cls.tag = "t"
        return cls

    @tag
    class Local(Animal, metaclass=type):
        sound = "x" * 3

        @property
        def loud(self):
            return self.sound.upper()

    return Local("n").speak(x), Local.tag, Local("n").loud


class_statement_with_decorator.any_graphs = True


def type_call_makes_class(x):
    Made = type("Made", (Animal,), {"sound": "zz", "extra": lambda self: 5})
    return Made("a").speak(x), Made("a").extra(), Made.__name__


type_call_makes_class.any_graphs = True


def class_attributes_written(x):
    Animal.counter = getattr(Animal, "counter", 0) + 1
    return x * Animal.counter


class_attributes_written.any_graphs = True


def class_attribute_through_instance(x):
    a = Animal("n")
    a.sound = "changed"
    b = Animal("m")
    return a.speak(x), b.speak(x), Animal.sound, "sound" in vars(a), "sound" in vars(b)


def class_registry_mutated(x):
    Vector.registry["k"] = 1
    Vector.registry.setdefault("l", []).append(2)
    return x + len(Vector.registry)


class_registry_mutated.any_graphs = True


def instance_dict_access(x):
    a = Animal("n")
    a.__dict__["extra"] = x
    vars(a)["more"] = 1
    a.__dict__.update(z=3)
    return (
        a.extra + a.more + a.z,
        sorted(a.__dict__),
        "name" in a.__dict__,
        a.__dict__.get("q"),
        a.__dict__.pop("z"),
        len(vars(a)),
    )


def setattr_delattr(x):
    a = Animal("n")
    for i, name in enumerate(("p", "q")):
        setattr(a, name, x + i)
    delattr(a, "p")
    try:
        del a.zzz
    except AttributeError as error:
        kind = str(error)
    return a.q, hasattr(a, "p"), kind, a


def attribute_error_message(x):
    try:
        Animal("n").missing
    except AttributeError as error:
        return x + 1, str(error), error.name


attribute_error_message.any_graphs = True


@functools.total_ordering
class Ranked:
    def __init__(self, r):
        self.r = r

    def __eq__(self, other):
        return self.r == other.r

    def __lt__(self, other):
        return self.r < other.r

    def __hash__(self):
        return self.r


def total_order(x):
    a, b = Ranked(1), Ranked(2)
    return x + 1, a <= b, a > b, a >= b, max(a, b).r, sorted([b, a])[0].r, len({a, Ranked(1)})


class Inited:
    subclasses = []

    def __init_subclass__(cls, /, tag=None, **kwargs):
        super().__init_subclass__(**kwargs)
        cls.tag = tag


def init_subclass(x):
    class Child(Inited, tag="hello"):
        pass

    return x + 1, Child.tag


init_subclass.any_graphs = True


class Reflected:
    def __radd__(self, other):
        return ("radd", other)

    def __rmul__(self, other):
        return other * 10

    def __rmatmul__(self, other):
        return "rmatmul"


def reflected_with_tensor(x):
    return x + 1, 1 + Reflected(), 2 * Reflected(), [1] + Reflected()


class Holder:
    def __init__(self, t):
        self.t = t

    def __torch_function_free__(self):
        return None


HOLDER = Holder(1)


def global_object_mutated(x):
    HOLDER.t = HOLDER.t + 1
    HOLDER.last = x
    return x * HOLDER.t


global_object_mutated.any_graphs = True


def object_with_tensor_attribute_in_place(x):
    h = Holder(x.clone())
    h.t += 1
    h.t.mul_(2)
    return h.t, h


def type_of_and_dunder(x):
    return (
        x + 1,
        type(x) is torch.Tensor,
        type([]) is list,
        [].__len__(),
        (1).__add__(2),
        "a".__class__ is str,
        Loud.__bases__[0] is Animal,
        Loud.__qualname__,
    )


def swapped_class(x):
    a = Animal("n")
    a.__class__ = Loud
    a.volume = 3
    return a.speak(x)


swapped_class.any_graphs = True


def equality_defaults(x):
    a, b = Holder(1), Holder(1)
    return x + 1, a == b, a != b, a == a, a in [b, a], [b, a].index(a), {a: 1}.get(b)


def bound_method_equality(x):
    a = Animal("n")
    return x + 1, a.speak == a.speak, a.speak is a.speak, a.speak == Animal("n").speak


def callable_class_attribute(x):
    class Act:
        fn = staticmethod(torch.relu)
        raw = torch.sigmoid

    return Act().fn(x), Act.fn(x), Act().raw(x)


callable_class_attribute.any_graphs = True


def method_replaced_on_instance(x):
    a = Animal("n")
    a.speak = lambda t: t * 100
    return a.speak(x)


def object_returned(x):
    a = Loud("rex")
    a.data = {"x": [x + 1, a.name]}
    return a


def object_graph_with_cycle(x):
    a, b = Holder(x), Holder(1)
    a.other, b.other = b, a
    return a.other.other.t + 1, a


def super_variants(x):
    class P:
        v = 3

        @property
        def p(self):
            return 10

    class Q(P):
        @property
        def p(self):
            return super().p + 1

        def get(self):
            return super().v, super(Q, self).p, super().__init__ is not None

    return x + Q().p, Q().get()


super_variants.any_graphs = True


class Labelled:
    label = "class"

    def __init__(self, value):
        self.value = value


def class_attribute_assigned_and_read_through_an_instance(x):
    labelled = Labelled(x * 2)
    Labelled.label = "assigned"
    seen = labelled.label, getattr(labelled, "label"), Labelled.label
    Labelled.label = "class"
    return seen, labelled.value


class_attribute_assigned_and_read_through_an_instance.any_graphs = True


class Sealed:
    @property
    def v(self):
        return 1


def property_without_a_setter(x):
    class Inner(Sealed):
        pass

    texts = []
    for cls in (Sealed, Inner):
        try:
            cls().v = 3
        except AttributeError as error:
            texts.append(str(error))
    try:
        getattr(x, 3)
    except TypeError as error:
        texts.append(str(error))
    return x + 1, texts


class Slotted:
    __slots__ = ("a",)
    shared = 1


class Counted:
    made = 0


def attributes_that_can_not_be_set(x):
    texts, held = [], Slotted()
    held.a = 5
    for name in ("shared", "other"):
        for change in (
            lambda name=name: setattr(held, name, 3),
            lambda name=name: delattr(held, name),
        ):
            try:
                change()
            except AttributeError as error:
                texts.append(str(error))
    try:
        change.__name__ = 3
    except TypeError as error:
        texts.append(str(error))
    return x + held.shared + held.a, texts


def attribute_of_an_instance_below_one_assigned_to_its_class(x):
    Counted.made = len(x.shape)
    one = Counted()
    one.made = 10
    one.made += Counted.made
    return x + one.made, vars(one), Counted().made


class Scaled:
    def __mul__(self, other):
        return "mul", other

    def __index__(self):
        return 2


class Reflected:
    def __rmul__(self, other):
        return NotImplemented if other == "s" else ("rmul", other)

    __index__ = Scaled.__index__


def sequences_are_repeated(x):
    scaled, reflected, found = Scaled(), Reflected(), []
    items = [1]
    items *= reflected
    for attempt in (
        *(
            lambda: scaled * [1],
            lambda: [1] * scaled,
            lambda: "ab" * scaled,
            lambda: [2] * reflected,
            lambda: "s" * reflected,
        ),
        *(
            lambda: reflected * (1, 2),
            lambda: reflected * reflected,
            lambda: [1] * 2.5,
            lambda: (1,) * True,
            lambda: [1] * [1],
        ),
        *(
            lambda: range(2) * 2,
            lambda: b"a" * reflected,
            lambda: [1] * x.shape[0],
            lambda: [1] * object,
            lambda: {} * 2,
        ),
    ):
        try:
            found.append(attempt())
        except TypeError as error:
            found.append(str(error))
    return x + 1, items, found


class Answering(type):
    asked = 0

    def __instancecheck__(cls, value):
        return value == 3 or type.__instancecheck__(cls, value) or super().__instancecheck__(value)

    def __subclasscheck__(cls, other):
        return other is bool or type.__subclasscheck__(cls, other)


class Asked(metaclass=Answering):
    pass


class BelowAsked(Asked):
    pass


class OfSubclasses(type):
    def __subclasscheck__(cls, other):
        return True


class AskedOfSubclasses(metaclass=OfSubclasses):
    pass


def metaclasses_answer_class_tests(x):
    instances = (
        [isinstance(value, Asked) for value in (3, 4, Asked(), BelowAsked())],
        isinstance(3, AskedOfSubclasses),
    )
    classes = issubclass(bool, Asked), issubclass(int, (str, Asked)), issubclass(BelowAsked, Asked)
    return x + 1, instances, classes, issubclass(int, (str, AskedOfSubclasses))
