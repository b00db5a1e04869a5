"""The frame hook: replacement in place, signatures, closures, errors, tracing, recursion, threads,
lifetimes.
"""

from __future__ import annotations

import gc
import inspect
import sys
import threading
import traceback
import weakref

import pytest
from bytecode_dynamo import _hook
from bytecode_dynamo.hook.frame_hook import (
    LOOK_AGAIN,
    NULL,
    RUN_ONCE,
    SKIP,
    Activated,
    Entry,
    Region,
    activate,
    get_region,
    never_intercept,
    status,
)


@pytest.fixture(params=[True, False], ids=["in_place", "as_function"])
def mode(request):
    _hook.set_in_place(request.param)
    yield
    _hook.set_in_place(True)


def replacing(*pairs, guard=None):
    """A region that runs the second function's code for the first's."""
    codes = {old.__code__: new.__code__ for old, new in pairs}
    seen = []

    def callback(view):
        seen.append(view)
        new = codes.get(view.code)
        return SKIP if new is None else Entry(guard, new)

    region = Region(callback)
    return region, seen


def signature_old(a, b=2, *args, c, d=4, **kw):
    return ("old", a, b, args, c, d, kw)


def signature_new(a, b=2, *args, c, d=4, **kw):
    x = [a, b]
    y = (x, args)
    z = {i: (i, a, b, c, d, (a, (b, (c, (d, (kw, (x, y))))))) for i in range(3)}
    w1 = w5 = 7
    del x
    return ("new", a, b, args, c, d, kw, len(z), w1 + w5)


def test_signature_is_kept_and_callback_asked_once(mode):
    region, seen = replacing((signature_old, signature_new))
    for _ in range(3):
        with activate(region):
            assert signature_old(1, c=3) == ("new", 1, 2, (), 3, 4, {}, 3, 14)
            assert signature_old(1, 9, 8, 7, c=3, d=5, k=6) == (
                "new",
                1,
                9,
                (8, 7),
                3,
                5,
                {"k": 6},
                3,
                14,
            )
            with pytest.raises(TypeError, match="missing"):
                signature_old()
    assert signature_old(1, c=3)[0] == "old"
    views = [view for view in seen if view.code is signature_old.__code__]
    assert len(views) == 1
    view = views[0]
    names = signature_old.__code__.co_varnames
    assert dict(zip(names, view.locals)) == {"a": 1, "b": 2, "args": (), "c": 3, "d": 4, "kw": {}}
    assert view.function is signature_old
    assert view.globals is globals()
    assert view.builtins["len"] is len
    assert view.closure == ()


def test_locals_that_are_not_arguments_are_null():
    def f(a):
        b = a
        return b

    region, seen = replacing((f, f))
    Activated(f, region)(1)
    assert seen[0].locals == (1, NULL)


def make_closure(n, old):
    free = n
    if old:

        def g(a, b):
            loc = a + free

            def inner():
                return ("old", a, loc, free)

            return inner
    else:

        def g(a, b):
            loc = a + free
            extra = b * 2
            more = [extra, b, a]

            def inner():
                return ("new", a, loc, free, more)

            more.append(0)
            return inner

    return g


def test_closures_and_cells_belong_to_the_called_function(mode):
    first, new, second = make_closure(10, True), make_closure(99, False), make_closure(20, True)
    region, _ = replacing((first, new))
    with activate(region):
        assert first(1, 2)() == ("new", 1, 11, 10, [4, 2, 1, 0])
        assert second(1, 2)() == ("new", 1, 21, 20, [4, 2, 1, 0])
        assert first(5, 2)() == ("new", 5, 15, 10, [4, 2, 5, 0])


def test_generators_and_coroutines_are_never_asked_about():
    def generate(n):
        yield from range(n)

    async def coroutine():
        return 5

    region, seen = replacing()
    with activate(region):
        assert list(generate(4)) == [0, 1, 2, 3]
        assert sum(i for i in range(5)) == 10
        waiting = coroutine()
        with pytest.raises(StopIteration) as stop:
            waiting.send(None)
        exec("class A:\n x = 1")
    assert stop.value.value == 5
    assert not {"generate", "coroutine", "<genexpr>", "A", "<module>"} & {
        view.code.co_name for view in seen
    }


def count_down_old(n):
    return 0 if n == 0 else 1 + count_down_old(n - 1)


def count_down_new(n):
    a1 = a2 = a3 = a4 = a5 = a6 = a7 = a8 = a9 = b1 = b2 = b3 = b4 = b5 = b6 = b7 = b8 = b9 = 0  # noqa: F841
    nested = (
        1,
        2,
        3,
        4,
        5,
        6,
        7,
        8,
        [1, 2, 3, [4, 5, 6, [7, 8, count_down_old(n - 1) if n else -1]]],
    )
    return nested[8][3][3][2] + 1


def test_deep_recursion_ends_with_recursion_error_and_recovers(mode):
    region, _ = replacing((count_down_old, count_down_new))
    with activate(region):
        assert count_down_old(400) == 400
        with pytest.raises(RecursionError):
            count_down_old(100_000)
        assert count_down_old(300) == 300


def test_python_recursion_limit_is_reached_with_the_hook_installed():
    def plain(n):
        return 0 if n == 0 else 1 + plain(n - 1)

    region, _ = replacing()
    room = sys.getrecursionlimit() - len(inspect.stack()) - 50
    assert Activated(plain, region)(room) == room


def raise_old(x):
    return x


def raise_new(x):
    y = x
    raise ValueError(y)


def test_traceback_has_one_entry_for_the_replaced_frame():
    region, _ = replacing((raise_old, raise_new))
    with activate(region):
        for _ in range(3):
            with pytest.raises(ValueError) as caught:
                raise_old(3)
            entry = caught.value.__traceback__.tb_next
            assert [frame.name for frame in traceback.extract_tb(entry)] == ["raise_new"]
            assert entry.tb_frame.f_locals == {"x": 3, "y": 3}


def test_error_in_guard_or_callback_is_raised_by_the_call(mode):
    def guard(function, x):
        if x == 1:
            raise KeyError("guard")
        return True

    region, _ = replacing((raise_old, signature_old), guard=guard)
    with activate(region), pytest.raises(ValueError, match="signature"):
        raise_old(1)
    region, _ = replacing((raise_old, count_down_new), guard=guard)
    with activate(region):
        for _ in range(3):
            assert raise_old(0) == 0
            with pytest.raises(KeyError, match="guard"):
                raise_old(1)

    def failing(view):
        raise LookupError(view.code.co_name)

    for answer in (failing, lambda view: 42):
        with pytest.raises((LookupError, TypeError)):
            Activated(raise_old, Region(answer))(1)


def test_frame_objects_see_the_replacement(mode):
    def old(x):
        return None

    def new(x):
        kept = [x] * 3  # noqa: F841
        frame = sys._getframe()
        return frame, frame.f_code, dict(frame.f_locals), frame.f_back.f_code.co_name

    def caller():
        return old(7)

    region, _ = replacing((old, new))
    frame, code, variables, back = Activated(caller, region)()
    assert code.co_name == "new"
    assert variables["kept"] == [7, 7, 7]
    assert back == "caller"
    assert frame.f_locals["x"] == 7


class Base:
    def m(self):
        return "base"


class Old(Base):
    def m(self):
        return ("old", super().m())


def test_zero_argument_super(mode):
    class New(Base):
        def m(self):
            what = "new"
            return (what, super().m())

    region, _ = replacing((Old.m, New.m))
    with activate(region):
        assert Old().m() == ("new", "base")
        assert Old().m() == ("new", "base")


def test_tracing_and_profiling_see_the_replacement():
    region, _ = replacing((signature_old, signature_new), (raise_old, raise_new))
    events = []

    def run():
        try:
            raise_old(1)
        except ValueError:
            return signature_old(1, c=3)[0]

    def trace(frame, event, arg):
        events.append((frame.f_code.co_name, event))
        return trace

    sys.settrace(trace)
    try:
        with activate(region):
            assert run() == "new"
    finally:
        sys.settrace(None)
    assert {
        ("signature_new", "call"),
        ("signature_new", "return"),
        ("raise_new", "exception"),
    } <= set(events)
    events.clear()
    sys.setprofile(lambda frame, event, arg: events.append((frame.f_code.co_name, event)))
    try:
        with activate(region):
            assert run() == "new"
    finally:
        sys.setprofile(None)
    assert {("signature_new", "call"), ("signature_new", "return")} <= set(events)
    assert not [event for event in events if event[0] == "discard"]


def test_error_in_guard_is_invisible_to_tracing():
    def guard(function, x):
        raise KeyError

    region, _ = replacing((raise_old, count_down_new), guard=guard)
    with activate(region):
        assert raise_old(0) == 0
    events = []
    sys.settrace(lambda frame, event, arg: events.append(frame.f_code.co_name))
    try:
        with activate(region), pytest.raises(KeyError):
            raise_old(0)
    finally:
        sys.settrace(None)
    assert "discard" not in events


def test_regions_belong_to_threads():
    region, _ = replacing((signature_old, signature_new))
    results = {}

    def work(k):
        with activate(region if k else None):
            results[k] = {signature_old(i, c=3)[0] for i in range(5000)}

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert results == {0: {"old"}, 1: {"new"}, 2: {"new"}}


def test_two_regions_keep_separate_caches():
    first, _ = replacing((raise_old, count_down_new))
    second, _ = replacing((raise_old, raise_new))
    with activate(first):
        assert raise_old(0) == 0
        with activate(second), pytest.raises(ValueError):
            raise_old(0)
        with activate(None):
            assert raise_old(5) == 5
        assert raise_old(0) == 0
    assert len(first.entries(raise_old.__code__)) == len(second.entries(raise_old.__code__)) == 1


def test_hook_is_installed_only_while_a_region_is_active():
    region, _ = replacing()
    assert not status()["installed"]
    with activate(region):
        assert status() == {
            "threads": 1,
            "installed": True,
            "fallback_calls": status()["fallback_calls"],
        }
        assert get_region() is region
    assert not status()["installed"]
    assert get_region() is None


def one(x):
    return 1


def two(x):
    return 2


def test_entries_are_tried_in_order_and_move_to_the_front():
    asked = []

    def callback(view):
        if view.code is not raise_old.__code__:
            return SKIP
        kind = type(view.locals[0])
        asked.append(kind)
        return Entry(
            lambda function, x: type(x) is kind, one.__code__ if kind is int else two.__code__
        )

    region = Region(callback)
    with activate(region):
        assert [raise_old(x) for x in (5, "a", 6, 7, "b")] == [1, 2, 1, 1, 2]
        first = region.entries(raise_old.__code__)[0]
        assert raise_old("c") == 2
        assert raise_old(3) == 1
    assert asked == [int, str]
    assert region.entries(raise_old.__code__)[1] is first
    assert [entry.hits for entry in region.entries(raise_old.__code__)] == [4, 3]


def test_lookups_miss_no_entry_that_others_use_or_drop_meanwhile():
    def callback(view):
        (x,) = view.locals
        asked.append(x)

        def guard(function, y):
            while during:
                during.pop()()
            return x == y

        return Entry(guard, one.__code__)

    def elsewhere(work):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    def use_the_last():
        with activate(region):
            raise_old(1)

    def drop_the_first():
        region.entries(raise_old.__code__)[0].invalidate()

    asked, during = [], []
    region = Region(callback)
    with activate(region):
        for x in (1, 2, 3):
            raise_old(x)
        for work in (use_the_last, drop_the_first):
            during.append(lambda work=work: elsewhere(work))
            raise_old(1 if work is use_the_last else 2)
    assert asked == [1, 2, 3]


def test_skip_and_run_once():
    answers = [RUN_ONCE, RUN_ONCE, SKIP]
    asked = []

    def callback(view):
        asked.append(view.code.co_name)
        return answers.pop(0)

    region = Region(callback)
    with activate(region):
        for _ in range(5):
            assert raise_old(4) == 4
    assert asked == ["raise_old"] * 3
    assert region.is_skipped(raise_old.__code__)
    region.reset(raise_old.__code__)
    assert not region.is_skipped(raise_old.__code__)


def test_run_only_uses_entries_and_never_asks():
    region, seen = replacing((raise_old, count_down_new))
    region.run_only = True
    with activate(region):
        assert raise_old(3) == 3
        region.add(raise_old.__code__, Entry(None, one.__code__))
        assert raise_old(3) == 1
    assert not seen


def test_never_intercept_wins_over_entries():
    def f(x):
        return x

    region, _ = replacing((f, one))
    with activate(region):
        assert f(5) == 1
    never_intercept(f)
    with activate(region):
        assert f(5) == 5


def test_calls_made_by_the_callback_and_guards_are_not_intercepted():
    depth = []

    def helper():
        return get_region()

    def callback(view):
        assert helper() is None
        depth.append(view.code.co_name)

        def guard(function, *args):
            assert helper() is None
            return True

        return Entry(guard, view.code)

    with activate(Region(callback)):
        for _ in range(3):
            assert raise_old(1) == 1
    assert depth == ["raise_old"]


def test_guard_may_reset_its_own_cache():
    region = Region(None)

    def guard(function, x):
        region.reset()
        return x == 1

    region.add(raise_old.__code__, Entry(guard, one.__code__))
    with activate(region):
        assert raise_old(1) == 1
        assert raise_old(7) == 7
    region.add(raise_old.__code__, Entry(guard, one.__code__))
    with activate(region):
        assert raise_old(7) == 7


def test_invalidated_entry_is_gone():
    region, _ = replacing((raise_old, one))
    with activate(region):
        assert raise_old(3) == 1
        (entry,) = region.entries(raise_old.__code__)
        region.run_only = True
        entry.invalidate()
        assert raise_old(3) == 3
    assert not entry.valid
    assert region.entries(raise_old.__code__) == ()


def test_entries_are_looked_up_again():
    """As after a wait for another thread, which may have stored an entry or skipped the code."""
    seen = []

    def callback(view):
        seen.append(view.changes)
        if len(seen) == 2:
            region.add(view.code, Entry(None, one.__code__))
        if len(seen) == 4:
            region.skip(view.code)
        return LOOK_AGAIN

    region = Region(callback)
    with activate(region):
        assert raise_old(3) == 1
        assert seen == [0, 0] and region.changes == 1
        region.reset()
        assert raise_old(3) == 3 and raise_old(3) == 3
    assert seen == [0, 0, 1, 1] and region.is_skipped(raise_old.__code__)


def test_callback_may_store_its_entry():
    def callback(view):
        entry = Entry(None, one.__code__)
        region.add(view.code, entry)
        if not invalidated:
            invalidated.append(entry.invalidate())
        return entry

    invalidated = []
    region = Region(callback)
    with activate(region):
        assert raise_old(3) == 1  # the second entry: the first one died before it ran
    assert len(region.entries(raise_old.__code__)) == 1 and region.misses == 1


def test_activated_binds_like_a_function():
    class A:
        def m(self, x):
            return x

    region, _ = replacing((A.m, two))
    A.m = Activated(A.m, region)
    with pytest.raises(ValueError, match="signature"):
        A().m(3)
    region.callback = lambda view: SKIP
    assert A().m(3) == 3
    A.m.note = "kept"
    assert A.m.note == "kept"
    with pytest.raises(TypeError):
        Activated(3, region)


def test_code_and_region_release_their_entries():
    class Token:
        def __call__(self, *args):
            return True

    for kill in ("code", "region"):
        token = Token()
        alive = weakref.ref(token)
        space = {}
        exec("def f(x): return x\ndef g(x): return x + 1", space)
        region = Region(None)
        region.add(space["f"].__code__, Entry(token, space["g"].__code__))
        del token
        with activate(region):
            assert space["f"](1) == 2
        if kill == "code":
            space.clear()
        else:
            del region
        gc.collect()
        assert alive() is None, kill


def test_cycle_through_a_region_is_collected():
    class Token:
        pass

    token = Token()
    token.region = Region(lambda view, token=token: SKIP)
    token.region.add(raise_old.__code__, Entry(lambda *args, token=token: True, one.__code__))
    alive = weakref.ref(token)
    del token
    gc.collect()
    assert alive() is None


def test_calls_leak_nothing(mode, leaked_blocks):
    marker = object()

    def old(x, y):
        return x

    def new(x, y):
        a = [x, y]
        c = lambda: y  # noqa: E731
        return a[0] if c() else None

    def failing(x, y):
        raise ValueError(x)

    region, _ = replacing((old, new), guard=lambda *args: True)
    failing_region, _ = replacing((old, failing))

    def run(n):
        for _ in range(n):
            with activate(region):
                old(marker, marker)
            with activate(failing_region):
                try:
                    old(marker, marker)
                except ValueError:
                    pass

    run(100)
    counts = [
        sys.getrefcount(thing) for thing in (marker, new.__code__, old.__code__, failing.__code__)
    ]
    assert abs(leaked_blocks(lambda: run(10_000))) < 60
    assert [
        sys.getrefcount(thing) for thing in (marker, new.__code__, old.__code__, failing.__code__)
    ] == counts
