# ruff: noqa
"""Generators that the program lets go of, and functions and names as objects."""

import bisect
import contextlib
import itertools

import torch


def _noting(log, n=3):
    try:
        yield from range(n)
    finally:
        log.append("closed")


def left_by_break(x, log):
    for v in _noting(log):
        break
    log.append("after")
    return x + v


def left_by_return(x, log):
    def find(wanted):
        for v in _noting(log, 5):
            if v == wanted:
                return v

    found = find(2)
    log.append("found")
    return x * found


def left_in_a_variable(x, log):
    held = _noting(log)
    return x + next(held)


def left_by_next(x, log):
    first = next(_noting(log))
    log.append("after")
    return x + first


def left_by_del(x, log):
    held = _noting(log)
    next(held)
    other = held
    del held
    log.append("still there")
    other = None
    log.append("gone")
    return x + 1


def left_by_zip(x, log):
    pairs = list(zip([1, 2], _noting(log, 9)))
    log.append(pairs)
    return x + len(pairs)


def left_under_no_grad(x):
    def inside():
        with torch.no_grad():
            yield 1
            yield 2

    for v in inside():
        break
    return x + v, torch.is_grad_enabled()


def left_inside_with(x, log):
    @contextlib.contextmanager
    def tagged():
        log.append("in")
        try:
            yield
        finally:
            log.append("out")

    def items():
        with tagged():
            yield 1
            yield 2

    held = items()
    next(held)
    del held
    log.append("end")
    return x + 1


def left_and_raises(x, log):
    def items():
        try:
            yield 1
        finally:
            log.append("closing")
            x.view(-1)

    for v in items():
        break
    return x * v


def repeat_is_returned(x):
    it = itertools.repeat(5, 3)
    next(it)
    return x + 1, list(zip(itertools.repeat(1, 2), itertools.repeat(2))), it


def function_dict(x):
    def f(t):
        f.calls += 1
        return t

    f.calls = 0
    f(x)
    return x * f.calls, f.__dict__


def bisect_by_key(x):
    items = [(1, "a"), (3, "b")]
    bisect.insort(items, (2, "c"), key=lambda item: item[0])
    return x + bisect.bisect_left(items, 2, key=lambda item: item[0]), items


def not_classes(x):
    found = []
    for cls, base in ((3, int), (int, 3), (int, (3,))):
        try:
            issubclass(cls, base)
        except TypeError as error:
            found.append(str(error))
    return x + 1, found


class _Slotted:
    __slots__ = ("a",)


def slots_have_no_dict(x):
    return x + 1, hasattr(_Slotted(), "__dict__")


def group_text(x):
    try:
        raise ExceptionGroup("some", [ValueError(1), KeyError(2)])
    except ExceptionGroup as error:
        return x + 1, str(error), str(error.subgroup(ValueError))


def global_by_name(x):
    global _TEMPORARY
    _TEMPORARY = 3
    held = globals()["_TEMPORARY"], "_TEMPORARY" in globals()
    del _TEMPORARY
    return x * held[0], "_TEMPORARY" in globals(), globals().get("_nowhere", 5)


def generators_under_a_grad_mode(x):
    @torch.no_grad()
    def quiet():
        yield torch.is_grad_enabled()
        yield (yield torch.is_grad_enabled())

    @torch.set_grad_enabled(False)
    def set_quiet():
        yield torch.is_grad_enabled()

    running = quiet()
    seen = [next(running), torch.is_grad_enabled(), next(running), running.send("sent")]
    return (
        x + 1,
        seen,
        list(set_quiet()),
        torch.is_grad_enabled(),
        [(y, torch.is_grad_enabled()) for y in quiet()],
    )


def set_grad_enabled_as_decorator(x):
    @torch.set_grad_enabled(False)
    def quiet():
        return torch.is_grad_enabled()

    return x + 1, torch.is_grad_enabled(), quiet(), torch.is_grad_enabled()
