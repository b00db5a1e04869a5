# ruff: noqa
"""What special methods, exception groups, class attributes, names as values and small library objects mean."""

import collections
import contextvars
import copy
import json
import logging
import math
import os.path
import re
import sys
import threading
import types
import typing

import torch


def group_by_class(x, log):
    try:
        raise ExceptionGroup("g", [ValueError(1), TypeError(2), ValueError(3)])
    except* ValueError as group:
        log.append([str(error) for error in group.exceptions])
    except* TypeError as group:
        log.append(len(group.exceptions))
    return x + 1


def plain_exception_as_group(x, log):
    try:
        raise ValueError("p")
    except* ValueError as group:
        log.append((type(group).__name__, group.exceptions[0].args))
    else:
        log.append("else")
    try:
        log.append("nothing raised")
    except* ValueError:
        log.append("wrong")
    else:
        log.append("else")
    return x + 1


def rest_of_group(x, log):
    try:
        try:
            raise ExceptionGroup(
                "g", [ValueError(1), ExceptionGroup("inner", [TypeError(2), ValueError(3)])]
            )
        except* ValueError:
            log.append("values")
    except ExceptionGroup as group:
        log.append((group.message, group.exceptions[0].exceptions[0].args))
    return x + 1


def raised_in_group_handler(x, log):
    try:
        try:
            raise ExceptionGroup("g", [ValueError(1), TypeError(2)])
        except* ValueError:
            raise KeyError("new")
    except ExceptionGroup as group:
        log.append([type(error).__name__ for error in group.exceptions])
    return x + 1


def split_group(x):
    group = ExceptionGroup("g", [ValueError(1), ExceptionGroup("h", [KeyError(2)])])
    found, rest = group.split(KeyError)
    same = group.subgroup(lambda error: isinstance(error, ValueError))
    return x + 1, len(found.exceptions), rest.exceptions[0].args, same.message


def attributes_of_exceptions(x, log):
    try:
        x.nothing
    except AttributeError as error:
        log.append((error.name, error.obj is x))
    try:
        nothing
    except NameError as error:
        log.append(error.name)
    error = OSError(2, "missing")
    return x + error.errno, error.strerror, SystemExit(3).code, log


class Failure(KeyError, ValueError):
    def __init__(self, code):
        super().__init__(f"code {code}")
        self.code = code


def exception_with_two_bases(x):
    try:
        raise Failure(3)
    except ValueError as error:
        return x + error.code, error.args


def not_an_exception(x, log):
    for raising in (
        lambda: _raise(3),
        lambda: _raise(int),
        lambda: isinstance(1, 1),
        lambda: object() < object(),
    ):
        try:
            raising()
        except TypeError as error:
            log.append(str(error))
    return x + 1


def _raise(value):
    raise value


def not_a_manager(x, log):
    for manager in (3, Entered()):
        try:
            with manager:
                pass
        except TypeError as error:
            log.append(str(error))
    return x + 1


class Entered:
    def __enter__(self):
        return self


def raise_again_in_helper(x, log):
    def again():
        raise

    try:
        try:
            raise KeyError("k")
        except KeyError:
            again()
    except KeyError as error:
        log.append(error.args)
    return x + 1


def stop_thrown_into_generator(x, log):
    def generator():
        yield 1

    def stopping():
        yield 1
        next(iter(()))

    for using in (lambda: generator().throw(StopIteration(3)), lambda: list(stopping())):
        try:
            using()
        except (RuntimeError, StopIteration) as error:
            log.append((type(error).__name__, str(error), type(error.__cause__).__name__))
    return x + 1


def dict_grows_while_iterated(x, log):
    d = {"a": 1}
    try:
        for key in d:
            d[key + "z"] = 1
    except RuntimeError as error:
        log.append(str(error))
    return x + 1


def views_of_dicts(x):
    d = {"a": [1], "b": 2}
    return (
        x + 1,
        d.items() >= {("b", 2)},
        d.keys() < {"a", "b", "c"},
        d.keys().mapping["b"],
        {1} <= {1, 2},
        {1} < {1},
    )


def sums_of_deques(x):
    d = collections.deque([1, 2], 3)
    return x + 1, d + collections.deque([3, 4]), d * 2, d


def read_only_view(x, log):
    view = types.MappingProxyType({"a": x})
    try:
        view["b"] = 1
    except TypeError as error:
        log.append(str(error))
    return view["a"] + 1


class Setting:
    level = 1

    def __init__(self):
        Setting.made = getattr(Setting, "made", 0) + 1


class SubSetting(Setting):
    pass


def class_attributes(x):
    SubSetting.level = x.dim()
    made = SubSetting()
    SubSetting.method = lambda self, k: k + self.level
    found = made.level, SubSetting.level, Setting.level, made.method(1), SubSetting.method(made, 2)
    del SubSetting.method, SubSetting.level
    made.level += 5
    return (
        x * made.level,
        found,
        hasattr(SubSetting, "method"),
        Setting.__subclasses__() == [SubSetting],
    )


class_attributes.any_graphs = True


class Named(type):
    def __getattr__(cls, name):
        if name.startswith("is_"):
            return name[3:]
        raise AttributeError(name)


class WithNames(metaclass=Named):
    pass


def attributes_of_metaclass(x):
    return x + 1, WithNames.is_red, hasattr(WithNames, "blue")


class Attributes(dict):
    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__
    __delattr__ = dict.__delitem__


def methods_of_dict_as_hooks(x):
    a = Attributes(k=1)
    a.z = x
    a.k += 1
    found = a.k
    del a.k
    return a, found, x + 1


class Options:
    def __init__(self, **options):
        self.__dict__.update(options)

    def __eq__(self, other):
        return self.__dict__ == other.__dict__

    def __float__(self):
        return 4.0

    def __complex__(self):
        return 1j

    def __floor__(self):
        return 7

    def __bytes__(self):
        return b"options"

    def __format__(self, spec):
        return f"<{spec}>"

    def __str__(self):
        return "O"

    def __deepcopy__(self, memo):
        return Options(a=copy.deepcopy(self.a, memo), copied=True)


def attributes_compared(x):
    return (
        x + 1,
        Options(a=1) == Options(a=1),
        Options(a=1) == Options(a=2),
        Options(a=1) != Options(a=1),
    )


def conversions_of_objects(x):
    o = Options(a=1)
    return x * math.sqrt(o), complex(o), bytes(o), math.floor(o), float(o), math.ceil(2.5)


def text_of_objects(x):
    o = Options(a=1)
    names = types.SimpleNamespace(a=1, b="z")
    return (
        x + 1,
        f"{o:>3}",
        "%s|%5s|%d" % (o, o, 3),
        "{:q} {} {0.a}".format(o, 1) if False else "{:q} {}".format(o, 1),
        repr(names),
    )


def deep_copies(x):
    same = [x, x, {"k": x}]
    made = copy.deepcopy(same)
    made[0].add_(1)
    return made, made[0] is made[1], x + 1, copy.deepcopy(Options(a=[1]))


class Typed(typing.TypedDict, total=False):
    k: int


def typed_dict(x):
    made = Typed(k=1)
    return x + made["k"], made


CONTEXT = contextvars.ContextVar("context", default=4)
UNSET = contextvars.ContextVar("unset")
LOCAL = threading.local()
LOCAL.count = 3
COUNT = 5
QUIET = logging.getLogger("quiet")


def context_variables(x):
    return x + CONTEXT.get(), UNSET.get(3)


def thread_local(x):
    found = x + LOCAL.count
    LOCAL.last = LOCAL.count
    return found, LOCAL.last, getattr(LOCAL, "nothing", None)


def names_as_values(x):
    a = 1
    y = x + a
    own = sorted(name for name in locals() if name.isidentifier())
    return y, own, (lambda b: list(locals()))(2), globals()["COUNT"], "COUNT" in globals()


def logger_asked(x):
    return x + 1 if QUIET.isEnabledFor(logging.DEBUG) else x - 1, QUIET.getEffectiveLevel()


def library_functions(x):
    replaced = re.sub(r"\d", lambda match: str(int(match.group()) + 1), "a1b2", count=1)
    return (
        x + 1,
        replaced,
        json.dumps({"a": [1, None]}),
        json.loads("[1, 2]"),
        os.path.normpath("a/../b"),
    )


def versions(x):
    return (
        x + 1 if sys.version_info >= (3, 8) else x,
        sys.version_info[:1],
        list(sys.version_info)[0],
    )


def of_sizes(x):
    return (
        x[: math.ceil(x.shape[0] / 2)] * math.sqrt(x.shape[1]),
        math.prod(x.shape),
        math.floor(x.shape[1] * 0.5),
    )
