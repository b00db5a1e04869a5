"""Continuations: a function cut in its loop runs through the hook without growing the stack."""

from __future__ import annotations

import gc
import inspect
import sys
import traceback
import weakref

import pytest
from bytecode_dynamo import _hook
from bytecode_dynamo.bytecode import Analysis, Op, decode, encode, split_at, split_points
from bytecode_dynamo.hook.frame_hook import SKIP, Activated, Continuation, Entry, Region


@pytest.fixture(params=[True, False], ids=["in_place", "as_function"])
def mode(request):
    _hook.set_in_place(request.param)
    yield
    _hook.set_in_place(True)


def cutting(name, pick):
    """A region that cuts every code object of this name after the instruction that `pick`
    chooses.
    """
    cuts = []

    def callback(view):
        if view.code.co_name != name:
            return SKIP
        code = decode(view.code)
        analysis = Analysis(code)
        points = [k for k in split_points(code, analysis) if pick(code.instructions[k])]
        if not points:
            return SKIP
        cuts.append(view.code)
        split = split_at(code, points[0], analysis, Continuation)
        return Entry(None, encode(split.first_half), returns_continuation=True)

    return Region(callback), cuts


def is_call(item):
    return item.op is Op.CALL


def depth(_=None):
    return len(inspect.stack(0))


def looping(n, log):
    total = 0
    for i in range(n):
        log(i)
        total += i
    return total


def test_loop_with_a_cut_does_not_grow_the_stack(mode):
    region, cuts = cutting("looping", lambda item: is_call(item) and item.arg.argc == 1)
    depths = []
    run = Activated(looping, region)
    assert run(200, lambda i: depths.append(depth())) == sum(range(200))
    assert len(depths) == 200
    assert len(set(depths[1:])) == 1
    assert 1 <= len(cuts) <= 4
    before = region.misses
    assert run(50, lambda i: None) == sum(range(50))
    assert region.misses <= before + 1


def test_traceback_has_one_frame_per_function(mode):
    def failing(log):
        log("a")
        log("b")
        raise ValueError("end")

    region, _ = cutting("failing", is_call)
    for _ in range(3):
        with pytest.raises(ValueError) as caught:
            Activated(failing, region)(lambda what: None)
        frames = traceback.extract_tb(caught.value.__traceback__)
        assert [frame.name for frame in frames[1:]] == ["failing"]
        assert frames[-1].line == 'raise ValueError("end")'


def test_arguments_are_let_go_when_the_function_lets_go(mode):
    class Big:
        pass

    def dropping(log):
        big = Big()
        alive = weakref.ref(big)
        log("cut")
        big = None
        gc.collect()
        return alive() is None

    region, _ = cutting("dropping", lambda item: is_call(item) and item.arg.argc == 1)
    for _ in range(3):
        assert Activated(dropping, region)(lambda what: None) is True


def test_exception_state_and_with_blocks_survive_the_handover(mode):
    events = []

    class Manager:
        def __enter__(self):
            events.append("enter")

        def __exit__(self, kind, value, trace):
            events.append(kind and kind.__name__)
            return True

    def handling(log):
        try:
            raise KeyError("first")
        except KeyError:
            log("in handler")
            seen = sys.exc_info()[0]
            try:
                raise
            except KeyError as again:
                seen = (seen, again.args)
        with Manager():
            log("in with")
            raise ValueError
        return seen, sys.exc_info()

    region, _ = cutting("handling", lambda item: is_call(item) and item.arg.argc == 1)
    for _ in range(3):
        events.clear()
        assert Activated(handling, region)(lambda what: None) == (
            (KeyError, ("first",)),
            (None, None, None),
        )
        assert events == ["enter", "ValueError"]


def test_cells_and_free_variables_are_shared(mode):
    def outer():
        free = 10

        def closing(log, x):
            def inner():
                nonlocal x
                x += 1
                return x + free

            log(inner())
            log(inner())
            x *= 2
            return inner, x

        return closing

    region, _ = cutting("closing", lambda item: is_call(item) and item.arg.argc == 1)
    for _ in range(3):
        values = []
        inner, x = Activated(outer(), region)(values.append, 1)
        assert (values, x, inner()) == ([12, 13], 6, 17)


def test_recursive_function_with_cuts(mode):
    def fibonacci(n, log):
        log(n)
        return n if n < 2 else fibonacci(n - 1, log) + fibonacci(n - 2, log)

    region, _ = cutting("fibonacci", is_call)
    seen = []
    assert Activated(fibonacci, region)(10, seen.append) == 55
    assert len(seen) == 177


def test_continuation_that_the_hook_does_not_run_is_an_ordinary_value():
    continuation = Continuation(max, 3, 4)
    assert continuation.function is max
    assert continuation.arguments == (3, 4)
    with pytest.raises(TypeError):
        Continuation(max, key=3)
    with pytest.raises(TypeError):
        Continuation()

    def give():
        return continuation

    def other():
        return continuation

    region = Region(
        lambda view: Entry(None, other.__code__) if view.code is give.__code__ else SKIP
    )
    assert Activated(lambda: give(), region)() is continuation


def test_error_while_continuing_leaks_nothing(mode, leaked_blocks):
    def failing(x, log):
        log(x)
        raise ValueError(x)

    region, _ = cutting("failing", is_call)
    marker = object()
    run = Activated(failing, region)

    def many(n):
        for _ in range(n):
            try:
                run(marker, id)
            except ValueError:
                pass

    many(10)
    gc.collect()
    references = sys.getrefcount(marker)
    assert abs(leaked_blocks(lambda: many(2000))) < 60
    assert sys.getrefcount(marker) == references
