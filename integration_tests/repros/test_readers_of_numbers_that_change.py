"""A number that changes between calls becomes symbolic; what reads it as a part of something else has
to guard it. ``inspect.signature`` kept a default of an earlier call.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import inspect  # noqa: F401 - readers use it
import json  # noqa: F401 - readers use it
import types
from typing import Any

import pytest
import torch
import torchstrata

X = torch.ones(2)
Pair = collections.namedtuple("Pair", "n k")


@dataclasses.dataclass
class Data:
    n: int = 2


class Held:
    n = 2

    def __repr__(self) -> str:
        return f"Held({self.n})"

    def __hash__(self) -> int:
        return hash(self.n)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Held) and self.n == other.n

    def __index__(self) -> int:
        return self.n


def scaled(x: Any, a: int = 2) -> Any:
    return x * a


def by_keyword(x: Any, *, a: int = 2) -> Any:
    return x * a


held, data, space = Held(), Data(), types.SimpleNamespace(n=2)
named, items, entries, parts = [Pair(2, 1)], [2], {"n": 2}, [slice(0, 2), range(2)]
partial = functools.partial(scaled, a=2)
counter, queue, ordered = (
    collections.Counter(n=2),
    collections.deque([2]),
    collections.OrderedDict(),
)


def set_all(n: int) -> None:
    held.n = data.n = space.n = items[0] = queue[0] = n
    entries["n"] = counter["n"] = ordered["n"] = partial.keywords["a"] = n
    named[0], parts[0], parts[1] = Pair(n, 1), slice(0, n), range(n)
    scaled.__defaults__, by_keyword.__kwdefaults__ = (n,), {"a": n}


READERS = """
repr(held)
hash(held)
held == Held()
[1] * held
{held: 1}
str(data)
data == Data(2)
dataclasses.asdict(data)
dataclasses.replace(data)
vars(held), vars(space)
str(space)
json.dumps(entries)
'{n:03d}'.format(**entries)
'%(n)d' % entries
str(named)
hash(named[0])
named[0]._asdict(), named[0] == Pair(2, 1)
items.index(items[0]), 7 in items
str(queue), str(counter), counter.most_common(), str(ordered)
'abcdefghijk'[parts[0]]
list(parts[1]), sum(parts[1]), 2 in parts[1]
str(parts)
str(partial), partial(X)
scaled(X), by_keyword(X)
scaled.__defaults__, by_keyword.__kwdefaults__
str(inspect.signature(scaled)), str(inspect.signature(by_keyword))
inspect.signature(scaled).parameters['a'].default
inspect.signature(scaled).bind(1).arguments
inspect.signature(functools.wraps(scaled)(lambda *rest: rest)).parameters['a'].default
torch.full((items[0],), 1.0), X.new_zeros(items[0])
X.expand(items[0], 2), X[: parts[0].stop]
(lambda n=items[0]: n)(), {items[0]: 1}
"""


@pytest.mark.parametrize("reader", READERS.strip().splitlines())
def test_each_call_reads_the_number_of_its_time(reader):
    program = eval(f"lambda X: (X + 1, {reader})")
    torchstrata.reset()
    compiled = torchstrata.compile(program, backend="eager")
    for n in (2, 7, 2, 9, 7, 2):
        set_all(n)
        expected = repr(program(X))
        assert repr(compiled(X)) == expected
