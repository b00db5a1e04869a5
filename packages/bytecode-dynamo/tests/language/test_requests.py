# ruff: noqa
"""What the interpreter asks of an object, of objects of many types, each in a graph of its own: the answer or the refusal."""

from __future__ import annotations

import math
import operator
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import bytecode_dynamo as bd
import pytest
import torch


class Bare:
    pass


class Pair(NamedTuple):
    a: int
    b: int = 2


class Int(int):
    pass


class Answers:
    """Answers some requests itself, as no other type does."""

    def __len__(self):
        return 3

    def __getitem__(self, key):
        return ["a", "b", "c"][key]

    def __index__(self):
        return 1

    def __neg__(self):
        return "negated"

    def __rdivmod__(self, other):
        return "reflected"

    def __call__(self, *args, **named):
        return args, named

    def __matmul__(self, other):
        return "multiplied"

    def __format__(self, spec):
        return f"<{spec}>"


class Refuses:
    """Takes back what ``object`` and the interpreter would do."""

    __hash__ = None
    __iter__ = None
    __contains__ = None

    def __add__(self, other):
        return NotImplemented

    def __bool__(self):
        raise ValueError("no truth")

    def __len__(self):
        return -1

    def __getitem__(self, key):
        raise KeyError(key)


class Hidden:
    """Holds special methods in the object, where the interpreter does not look."""

    def __init__(self):
        for name in (
            "len",
            "neg",
            "abs",
            "next",
            "iter",
            "getitem",
            "call",
            "bool",
            "round",
            "index",
            "enter",
            "exit",
            "contains",
        ):
            setattr(self, f"__{name}__", lambda *args: 1)


X = torch.ones(2)


OWNERS: dict[str, Callable[[], Any]] = {
    **{
        "Bare": Bare,
        "Answers": Answers,
        "Refuses": Refuses,
        "Hidden": Hidden,
        "None": lambda: None,
        "int": lambda: 3,
    },
    **{
        "text": lambda: "12",
        "list": lambda: [3],
        "pair": lambda: Pair(1),
        "dict": lambda: {"k": 5},
        "Int": lambda: Int(3),
    },
    **{"class": lambda: Bare, "deque": lambda: deque([1])},
}


def entered(o):
    with o:
        return "inside"


def written(o):
    o[0] = 1
    return o[0]


def removed(o):
    del o[0]
    return len(o)


def looped(o):
    return [item for item in o]


def unpacked(o):
    first, *rest = o
    return first, rest


def unpacked_exactly(o):
    a, b = o
    return a, b


def added_in_place(o):
    o += 1
    return o


def matched(o):
    match o:
        case [first, *rest]:
            return first, rest
        case {"k": value}:
            return value
        case 3 | "three" | None:
            return "constant"
        case Bare():
            return "bare"
    return "nothing"


def raised(o):
    raise o


def caught(o):
    try:
        raise KeyError(1)
    except o:
        return "caught"


REQUESTS: tuple[Callable[[Any], Any], ...] = (
    *(
        len,
        bool,
        int,
        float,
        complex,
        list,
        tuple,
        set,
        frozenset,
        dict,
        sum,
        any,
        all,
        max,
        min,
        sorted,
        bytes,
        hash,
        type,
    ),
    *(
        operator.neg,
        operator.pos,
        operator.invert,
        abs,
        round,
        operator.index,
        math.floor,
        math.sqrt,
        chr,
        bin,
        callable,
        next,
    ),
    *(
        lambda o: list(iter(o)),
        lambda o: list(reversed(o)),
        lambda o: list(enumerate(o)),
        lambda o: list(zip(o, o)),
    ),
    *(
        lambda o: 1 in o,
        lambda o: o[0],
        lambda o: o[0:1],
        lambda o: o(),
        lambda o: o(1, k=2),
        lambda o: o.absent,
        lambda o: [5, 6][o],
    ),
    *(
        entered,
        written,
        removed,
        looped,
        unpacked,
        unpacked_exactly,
        added_in_place,
        matched,
        raised,
        caught,
    ),
    *(
        lambda o: [*o],
        lambda o: [1, *o],
        lambda o: {**o},
        lambda o: dict(**o),
        lambda o: {1, *o},
        lambda o: max(*o),
        lambda o: {o: 1},
    ),
    *(
        lambda o: o < o,
        lambda o: o == o,
        lambda o: o != 3,
        lambda o: o is o,
        lambda o: o < 3,
        lambda o: not o,
        lambda o: o and 1,
    ),
    *(
        lambda o: o + 1,
        lambda o: 1 + o,
        lambda o: o + o,
        lambda o: o * 2,
        lambda o: 2 * o,
        lambda o: [1] * o,
        lambda o: o @ o,
    ),
    *(
        lambda o: o**2,
        lambda o: 2**o,
        lambda o: o / 2,
        lambda o: o // 2,
        lambda o: o % 2,
        lambda o: o << 1,
        lambda o: o | o,
    ),
    *(
        lambda o: o & 1,
        lambda o: o - o,
        lambda o: 7 - o,
        lambda o: divmod(9, o),
        lambda o: pow(o, 2, 5),
        lambda o: round(o, 1),
    ),
    *(
        lambda o: "%d" % o,
        lambda o: f"{o:>4}",
        lambda o: isinstance(1, o),
        lambda o: issubclass(int, o),
        lambda o: range(o),
    ),
    *(
        lambda o: ",".join(o),
        lambda o: "a".replace("a", o),
        lambda o: "ab"[o],
        lambda o: getattr(o, "real"),
        lambda o: hasattr(o, "k"),
    ),
    *(
        lambda o: setattr(o, "fresh", 1),
        lambda o: delattr(o, "gone"),
        lambda o: vars(o),
        lambda o: getattr(1, o),
        lambda o: [1, 2].index(o),
    ),
    *(
        lambda o: list(map(o, [1])),
        lambda o: list(filter(o, [0, 1])),
        lambda o: sorted([2, 1], key=o),
        lambda o: int("11", o),
    ),
    *(
        lambda o: [].extend(o),
        lambda o: {}.update(o),
        lambda o: set().union(o),
        lambda o: list(range(4))[o:],
        lambda o: sum([[1]], o),
    ),
)


def outcome(program: Callable[..., Any], *args: Any) -> str:
    """What a program gives or raises, as text; only the type of what has an address in its text."""
    try:
        found = program(*args)
    except Exception as error:
        found = type(error), error.args
    text = repr(found)
    return text if " at 0x" not in text else repr(type(found))


@pytest.mark.parametrize("make", OWNERS.values(), ids=OWNERS)
def test_answers_and_refusals_are_eagers(make):
    differing = []
    for number, request in enumerate(REQUESTS):

        def program(x, request=request):
            return request(make())

        bd.reset()
        expected = outcome(program, X)
        with bd.config.patch(fallback="error"):
            found = outcome(bd.optimize("eager")(program), X)
        if request is not hash and expected != found:
            differing.append((number, expected, found))
    assert not differing


def test_objects_as_keys_across_a_break():
    def program(x):
        moving = zip("ab", [1, 2])
        return x + 1, {moving: 1}

    with bd.config.patch(fallback="error"):
        made = bd.optimize("eager")(program)(X)
    assert torch.equal(made[0], X + 1) and [next(key) for key in made[1]] == [("a", 1)]
