"""Texts of numbers that change: a message that nobody reads needs no guard; a text that is read, or
returned, is eager's.
"""

from __future__ import annotations

# ruff: noqa: UP031, UP032  (every way to make a text)
import bytecode_dynamo as bd
import pytest
import torch


class Named:
    def __format__(self, spec):
        return f"formatted {spec}"

    def __repr__(self):
        return "represented"


def asserted(x):
    n = x.shape[0]
    torch._assert(n > 1, f"Wrong size! Expected {n + 1:>5} but got {n!r:>4}")
    torch._assert(n > 1, "Wrong size! Expected %d" % n)
    torch._assert(n > 1, "Wrong size! Expected {}".format(n))
    torch._assert(n > 1, "Wrong size! Expected " + str(n))
    torch._assert(n > 1, f"Wrong size! Expected {x.shape} or {tuple(x.shape)!r}")
    torch._assert(n > 1, "Wrong size! Expected %s" % (x.shape[:1],))
    return x * n


def returned(x):
    n = x.shape[0]
    return (
        x + 1,
        f"{n!r:>5} of {n}",
        "%s %d %5.2f" % (n, n, n),
        "{} {:>4}".format(n, n),
        str(n),
        repr(n),
        f"{n / 2:.1f}",
        str(x.shape),
        f"{(n, 2)!r}",
    )


def read(x):
    text = f"{x.shape[0]}"
    known = (
        text == "5",
        text in {"4": 1},
        text + "a",
        text * 2,
        text[0],
        len(text),
        text.zfill(3),
        sorted(text),
        int(text),
        not text,
    )
    return (
        x + 1,
        known,
        isinstance(text, str),
        {text: 3},
        ",".join([text, text]),
        (text, "a") < ("3", "b"),
        [text].index(text),
    )


def with_objects(x):
    n, named = x.shape[0], Named()
    return (
        x + 1,
        f"{named} {n}",
        f"{named!r} {n}",
        "%s %r" % (n, named),
        "{} {a}".format(named, a=n),
        "%s" % ((n, 2),),
        f"{[n, 2]}",
    )


def raised(x):
    if x.shape[0] > 4:
        raise ValueError(f"size {x.shape[0]}")
    return x + 1


def refused(x):
    return x + 1, f"{x.shape[0]:c}", "%c" % (x.shape[0] << 40)


def told(f, x):
    try:
        return str(f(x))
    except Exception as error:
        return type(error), error.args


@pytest.mark.parametrize(
    "f", [asserted, returned, read, with_objects, raised, refused], ids=lambda f: f.__name__
)
def test_equal_to_eager(f):
    compiled = bd.optimize("eager")(f)
    for n in range(2, 8):
        assert told(compiled, torch.ones(n)) == told(f, torch.ones(n))


@pytest.mark.parametrize("f", [asserted, returned], ids=lambda f: f.__name__)
def test_one_graph_for_every_size(f):
    graphs = []
    compiled = bd.optimize(lambda gm, inputs: graphs.append(gm) or gm.forward)(f)
    for n in range(2, 8):
        compiled(torch.ones(n))
    assert len(graphs) == 2  # one of the first size, one of all
