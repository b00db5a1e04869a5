# ruff: noqa
"""What belongs to the interpreter: warnings' filters, context variables."""

import contextvars
import warnings

import torch

STYLE = contextvars.ContextVar("STYLE", default=2)
EMPTY = contextvars.ContextVar("EMPTY")


def warnings_ignored(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("not shown")
        y = x + 1
    warnings.warn("shown")
    return y


def warnings_filtered_by_message(x):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="not.*", category=UserWarning)
        warnings.warn("not shown")
        warnings.warn("shown")
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("not hidden here")
    return x * 2


def warnings_caught_around_a_raise(x):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            raise KeyError("a")
    except KeyError as error:
        return x + len(error.args)


def warnings_decorated(x):
    def quiet(function):
        def inner(*args):
            with warnings.catch_warnings(action="ignore") if False else warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                return function(*args)

        return inner

    @quiet
    def noisy(t):
        warnings.warn("noise")
        return t + 3

    return noisy(x)


def warnings_recorded(x):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn("kept")
    return x + len(caught)


warnings_recorded.any_graphs = True


def context_variable_reset(x):
    token = STYLE.set(5)
    try:
        y = x * STYLE.get()
    finally:
        STYLE.reset(token)
    return y + STYLE.get()


def context_variable_set_twice(x):
    first = STYLE.set(x)
    second = STYLE.set(x + 1)
    held = STYLE.get()
    STYLE.reset(second)
    inner = STYLE.get()
    STYLE.reset(first)
    return held * inner, STYLE.get()


def context_variable_without_default(x):
    try:
        EMPTY.get()
    except LookupError:
        token = EMPTY.set(3)
    y = x * EMPTY.get()
    EMPTY.reset(token)
    return y, EMPTY.get("none")


def context_variable_stays(x):
    STYLE.set(7)
    return x + STYLE.get()


context_variable_stays.any_graphs = True
