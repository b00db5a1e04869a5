"""Random replacements, guards, errors and resets, down deep recursions: nothing leaks or
crashes.
"""

from __future__ import annotations

import gc
import random
import sys
import threading

from bytecode_dynamo import _hook
from bytecode_dynamo.hook.frame_hook import (
    RUN_ONCE,
    SKIP,
    Activated,
    Entry,
    Region,
    never_intercept,
)


class Player:
    """Functions of one signature with few or many variables and stack entries that call each other
    at random.
    """

    def __init__(self, seed):
        self.rnd = random.Random(seed)
        self.region = Region(self.answer)
        rnd = self.rnd
        self.functions = [
            self.make(rnd.choice([0, 1, 5, 30]), rnd.choice([0, 1, 10]), False) for _ in range(12)
        ]
        sizes = [0, 0, 1, 9, 60, 200, 700]
        self.bodies = [
            self.make(rnd.choice(sizes), rnd.choice([0, 1, 20, 100]), rnd.random() < 0.15)
            for _ in range(30)
        ]

    def make(self, variables, depth, fails):
        body = "".join(f" v{k} = k{k % 3}\n" for k in range(variables))
        deep = (
            ", (".join(f"k{j % 3}" for j in range(depth)) + ")" * (depth - 1) if depth else "None"
        )
        cell = " def inner(): return n, k0, k2\n inner()\n" if self.rnd.random() < 0.3 else ""
        end = " raise KeyError(n)\n" if fails else " return 1\n"
        call = " if n > 0: return pick()(n - 1, k0, 5, 6, z=7) + len(k2) + len(k3) + len(t)\n"
        space = {"pick": self.pick, "__name__": "stress"}
        exec(f"def f(n, k0, k1=1, *k2, **k3):\n{body}{cell} t = ({deep},)\n{call}{end}", space)
        return space["f"]

    def pick(self):
        return self.rnd.choice(self.functions)

    def guard(self, function, n, *rest):
        if self.rnd.random() < 0.02:
            raise ZeroDivisionError
        return n % 3 == 0

    def answer(self, view):
        if view.code.co_name != "f":
            return SKIP
        r = self.rnd.random()
        if r < 0.05:
            raise LookupError("callback")
        if r < 0.10:
            return 42
        if r < 0.15:
            return Entry(None, (lambda: 0).__code__)
        if r < 0.25:
            return RUN_ONCE
        return Entry(self.guard if r < 0.6 else None, self.rnd.choice(self.bodies).__code__)

    def play(self, rounds, outcomes):
        for k in range(rounds):
            for function in self.functions:
                if self.rnd.random() < 0.3:
                    self.region.reset(function.__code__)
            try:
                Activated(self.functions[0], self.region)(self.rnd.choice([0, 1, 5, 50, 300]), k)
                outcomes.add("returned")
            except Exception as error:
                outcomes.add(type(error).__name__)


def settle():
    """Collects garbage until a collection finds none: finalizers leave new garbage behind."""
    while gc.collect():
        pass


never_intercept(Player.pick)


def test_random_replacements_leak_nothing():
    for in_place in (True, False):
        _hook.set_in_place(in_place)
        try:
            player, outcomes = Player(5), set()
            player.play(150, outcomes)
            player.region.reset()
            settle()
            before = sys.getallocatedblocks()
            player.play(150, outcomes)
            player.region.reset()
            settle()
            # fewer: garbage of other tests went meanwhile
            assert sys.getallocatedblocks() - before < 400
            assert {
                "returned",
                "LookupError",
                "TypeError",
                "ValueError",
                "KeyError",
                "ZeroDivisionError",
            } <= outcomes
        finally:
            _hook.set_in_place(True)


def test_random_replacements_in_threads():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    outcomes: set[str] = set()
    try:
        threads = [
            threading.Thread(target=lambda k=k: Player(k).play(40, outcomes)) for k in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert "returned" in outcomes
    assert not _hook.status()["installed"]


def test_one_region_in_several_threads():
    player, outcomes = Player(9), set()
    threads = [threading.Thread(target=player.play, args=(40, outcomes)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert "returned" in outcomes
