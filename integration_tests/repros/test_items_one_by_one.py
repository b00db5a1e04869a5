"""Containers that grow from an iterator: the code that makes an item sees the ones before it, and
may change the container itself.
"""

from __future__ import annotations

import collections

import pytest
import torch
import torchstrata

from .outcome import outcome


def list_extended(log):
    log.append(1)
    log.extend(log[-1] + k for k in range(4))
    log += (len(log) for _ in range(2))


def list_changed_while_extended(log):
    def items():
        for k in range(3):
            log.append(10 * k)
            yield len(log)

    log.extend(items())


def slice_assigned(log):
    def items():
        log.append(9)
        yield 7
        log.append(8)

    log += [1, 2, 3]
    log[0:1] = items()


def deque_extended(log):
    items = collections.deque([1], maxlen=4)
    items.extend(items[-1] + k for k in range(1, 4))
    items.extendleft(items[0] + len(items) for _ in range(2))
    log += items


def dict_updated(log):
    found = {}

    def items():
        found["new"] = 5
        yield "k", len(found)

    found.update((key, len(found)) for key in "abc")
    found.update(items(), last=7)
    log += found.items()


def set_updated(log):
    found = set()

    def items():
        found.add(99)
        yield 98

    found.update(len(found) for _ in range(3))
    found.update(items())
    log += sorted(found)


def items_that_raise(log):
    def items():
        yield 1
        yield 2
        raise ValueError("no more")

    log.extend(items())


PROGRAMS = {
    function.__name__: function
    for function in (
        *(list_extended, list_changed_while_extended, slice_assigned, deque_extended),
        *(dict_updated, set_updated, items_that_raise),
    )
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_growing_containers(name):
    def program(x, log):
        PROGRAMS[name](log)
        return x + len(log)

    def observe(call):
        log = []
        return outcome(call, torch.ones(2), log), log

    assert repr(observe(torchstrata.compile(program))) == repr(observe(program))


def test_modules_over_the_last_result():
    modules = torch.nn.ModuleList([torch.nn.Linear(2, 2) for _ in range(3)])

    def program(x):
        results = [x]
        results.extend(module(results[-1]) for module in modules)
        return results

    x = torch.ones(1, 2)
    torch.testing.assert_close(torchstrata.compile(program, fullgraph=True)(x), program(x))
