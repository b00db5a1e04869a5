"""When objects end: ``__del__``, ``weakref.finalize``, weak references and their callbacks, in the
order of the program.
"""

from __future__ import annotations

import gc
import linecache
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import bytecode_dynamo
import pytest
import torch
import torchstrata

LOG: list[Any] = []


class Noticed:
    def __init__(self, name: Any) -> None:
        self.name = name

    def __del__(self) -> None:
        LOG.append(self.name)


class Plain:
    held: Any = None


class Manager:
    def __init__(self, held: Any) -> None:
        self.held = held

    def __enter__(self) -> None:
        pass

    def __exit__(self, *args: Any) -> None:
        pass


def dropped() -> None:
    Noticed("a")
    LOG.append("after")


def deleted() -> None:
    f = Noticed("a")
    LOG.append(1)
    del f
    LOG.append(2)


def overwritten() -> None:
    f = Noticed("a")
    f = Noticed("b")  # noqa: F841
    LOG.append(2)


def finalized() -> None:
    o = Plain()
    weakref.finalize(o, LOG.append, "end")
    LOG.append(1)
    o = None
    LOG.append(2)


def called_back() -> None:
    o = Plain()
    r = weakref.ref(o, lambda _: LOG.append("end"))
    LOG.append(1)
    o = None
    LOG.append(r() is None)


def asked() -> None:
    o = Plain()
    r = weakref.ref(o)
    LOG.append(r() is None)
    del o
    LOG.append(r() is None)


def _inner() -> int:
    f = Noticed("inner")
    LOG.append("in")
    return len(f.name)


def of_a_call() -> None:
    LOG.append(_inner())
    LOG.append("out")


def of_a_list() -> None:
    held = [Noticed("a"), Noticed("b")]
    held.pop()
    LOG.append(1)
    held.clear()
    LOG.append(2)


def of_a_dict() -> None:
    held = {"k": Noticed("a")}
    held["k"] = 1
    LOG.append(1)


def of_an_attribute() -> None:
    o = Plain()
    o.held = Noticed("a")
    o.held = None
    LOG.append(1)


def of_a_manager() -> None:
    with Manager(Noticed("a")):
        LOG.append("in")
    LOG.append("out")


def of_a_weak_dict() -> None:
    held: Any = weakref.WeakValueDictionary()
    o = Plain()
    held["a"] = o
    LOG.append(len(held))
    del o
    LOG.append(len(held))


def of_a_comprehension() -> None:
    [Noticed(k) for k in range(3)]
    LOG.append("after")


def _generated() -> Iterator[Any]:
    yield Noticed("a")
    LOG.append("generator")
    yield 1


def of_a_generator() -> None:
    for _ in _generated():
        LOG.append("body")


PROGRAMS = (
    dropped, deleted, overwritten, finalized, called_back, asked, of_a_call, of_a_list, of_a_dict,
    of_an_attribute,
    of_a_manager, of_a_weak_dict, of_a_comprehension, of_a_generator,
)  # fmt: skip


@pytest.mark.parametrize("backend", ["eager", "torchstrata"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_order_of_ends(program: Callable[[], None], backend: str) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, list[Any]]:
        LOG.clear()
        program()
        return x + 1, list(LOG)

    torchstrata.reset()
    expected, compiled = f(torch.ones(2))[1], torchstrata.compile(f, backend=backend)
    for _ in range(3):
        assert compiled(torch.ones(2))[1] == expected


def test_tensors_of_a_frame_end_with_it() -> None:
    """Neither the first half of a cut function nor the compilation keeps a tensor that the program
    lets go of.
    """

    def f(x: torch.Tensor) -> tuple[torch.Tensor, bool]:
        y = x * 2
        r = weakref.ref(y)
        del y
        return x + 1, r() is None

    torchstrata.reset()
    compiled = bytecode_dynamo.optimize("eager")(f)
    gc.disable()
    try:
        for _ in range(3):
            assert compiled(torch.ones(2))[1]
    finally:
        gc.enable()


def test_texts_of_programs_end_with_them():
    before = set(linecache.cache)
    for number in range(3):
        torchstrata.compile(lambda x, number: x * number)(torch.ones(2), str(number) * 2 != "")
    gc.collect()
    assert not {name for name in set(linecache.cache) - before if name.startswith("<aotgrad")}
