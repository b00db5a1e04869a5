"""Globals, closures, builtins, defaults, the environment: changed after the compilation."""

from __future__ import annotations

import builtins
import os
import sys
import types

import pytest
import torch
import torch.nn.functional as F

from .changing import States, X, box, changed, check_state, items, rows_of, setting

STATES: States = {}
row, rows = rows_of(STATES)


G_INT, G_LIST, G_DICT, G_TENSOR, G_NONE = 2, [1, 2], {"a": 1}, X * 2, None
HERE = globals()


def helper(x, k=2, *, j=3):
    return x * k + j


def scaled(x):
    return x * G_INT


def g_int(x):
    return x * G_INT


def g_tensor(x):
    return x * G_TENSOR


def g_none(x):
    return x if G_NONE is None else x * G_NONE


def g_list(x):
    return [x * k for k in G_LIST]


def g_dict(x):
    return [x * v + len(k) for k, v in G_DICT.items()]


def g_missing(x):
    return x * G_MISSING  # noqa: F821


def calls_helper(x):
    return helper(x)


def calls_deeper(x):
    return scaled(x)


def calls_relu(x):
    return F.relu(x) + torch.nn.functional.relu(-x)


def calls_len(x):
    return x * len([1, 2])


def calls_abs(x):
    return x * abs(-2)


def calls_max(x):
    return x * max(1, 2)


def calls_tensor_method(x):
    return x.sin()


def reads_environ(x):
    return x * int(os.environ.get("GUARD_TABLE", "2"))


def reads_environ_item(x):
    return x + 1 if "GUARD_TABLE" in os.environ else x


def reads_getenv(x):
    return x * len(os.getenv("GUARD_TABLE", ""))


def reads_modules(x):
    return x * sys.modules[__name__].G_INT


def reads_imported(x):
    import math

    return x * math.pi


def reads_globals(x):
    return x * globals()["G_INT"]


rows(
    global_int=lambda: (g_int, setting(sys.modules[__name__], G_INT=5)),
    global_type=lambda: (g_int, setting(sys.modules[__name__], G_INT=2.5)),
    global_tensor=lambda: (g_tensor, setting(sys.modules[__name__], G_TENSOR=X + 1)),
    global_tensor_dtype=lambda: (g_tensor, setting(sys.modules[__name__], G_TENSOR=X.double())),
    global_tensor_to_int=lambda: (g_tensor, setting(sys.modules[__name__], G_TENSOR=4)),
    global_none=lambda: (g_none, setting(sys.modules[__name__], G_NONE=4)),
    global_list=lambda: (g_list, setting(sys.modules[__name__], G_LIST=[3])),
    global_list_append=lambda: (g_list, changed(lambda: G_LIST.append(4), G_LIST.pop)),
    global_list_item=lambda: (
        g_list,
        changed(lambda: G_LIST.__setitem__(0, 9), lambda: G_LIST.__setitem__(0, 1)),
    ),
    global_list_reversed=lambda: (g_list, changed(G_LIST.reverse, G_LIST.reverse)),
    global_dict_key=lambda: (g_dict, items(G_DICT, bb=2)),
    global_dict_value=lambda: (g_dict, items(G_DICT, a=2)),
    global_dict_cleared=lambda: (g_dict, items(G_DICT, {}, clear=True)),
    global_defined=lambda: (g_missing, setting(sys.modules[__name__], G_MISSING=3)),
    global_of_a_callee=lambda: (calls_deeper, setting(sys.modules[__name__], G_INT=5)),
    helper_replaced=lambda: (calls_helper, setting(sys.modules[__name__], helper=lambda x: x - 1)),
    defaults=lambda: (calls_helper, setting(helper, __defaults__=(7,))),
    kwdefaults=lambda: (calls_helper, setting(helper, __kwdefaults__={"j": 9})),
    kwdefaults_item=lambda: (calls_helper, items(helper.__kwdefaults__, j=8)),
    code=lambda: (
        calls_helper,
        setting(helper, __code__=(lambda x, k=1, *, j=1: x - k - j).__code__),
    ),
    function_name=lambda: (lambda x: x * len(helper.__name__), setting(helper, __name__="other")),
    function_qualname=lambda: (
        lambda x: x * len(helper.__qualname__),
        setting(helper, __qualname__="A.other"),
    ),
    own_code=lambda: own_code(),
    relu=lambda: (calls_relu, setting(F, relu=lambda x: x * 3)),
    torch_function=lambda: (lambda x: torch.sin(x), setting(torch, sin=torch.cos)),
    tensor_method=lambda: (calls_tensor_method, setting(torch.Tensor, sin=lambda t: t * 3)),
    global_shadows_builtin=lambda: (calls_len, setting(sys.modules[__name__], len=lambda v: 7)),
    builtin_patched=lambda: (calls_max, setting(builtins, max=lambda *v: 7)),
    builtin_function_patched=lambda: (calls_abs, setting(builtins, abs=lambda v: v)),
    module_attribute=lambda: (lambda x: x * HELPERS.scale, setting(HELPERS, scale=5)),
    environ=lambda: (reads_environ, items(os.environ, GUARD_TABLE="5")),
    environ_membership=lambda: (reads_environ_item, items(os.environ, GUARD_TABLE="5")),
    getenv=lambda: (reads_getenv, items(os.environ, GUARD_TABLE="abc")),
    sys_modules=lambda: (reads_modules, setting(sys.modules[__name__], G_INT=6)),
    module_attribute_added=lambda: (
        lambda x: x + 1 if hasattr(HELPERS, "extra") else x,
        setting(HELPERS, extra=5),
    ),
    module_attribute_default=lambda: (
        lambda x: x + getattr(HELPERS, "extra", 1),
        setting(HELPERS, extra=5),
    ),
    imported=lambda: (reads_imported, setting(sys.modules["math"], pi=3.0)),
    imported_replaced=lambda: (reads_imported, items(sys.modules, math=box(pi=4.0))),
    globals_item=lambda: (reads_globals, setting(sys.modules[__name__], G_INT=6)),
)

HELPERS = types.ModuleType("helpers")
HELPERS.scale = 2  # type: ignore[attr-defined]


def own_code():
    def f(x):
        return x + 1

    def g(x):
        return x * 7

    return f, setting(f, __code__=g.__code__)


@row
def closure_cell():
    n = 2

    def set_to(v):
        nonlocal n
        n = v

    return (lambda x: x * n), changed(lambda: set_to(5), lambda: set_to(2))


@row
def closure_of_a_callee():
    n = 2

    def set_to(v):
        nonlocal n
        n = v

    def g(x):
        return x * n

    return (lambda x: g(x)), changed(lambda: set_to(X), lambda: set_to(2))


@row
def closure_unbound():
    n = 2

    def unset():
        nonlocal n
        del n

    def reset():
        nonlocal n
        n = 2

    def f(x):
        try:
            return x * n
        except NameError:
            return x

    return f, changed(unset, reset)


@pytest.mark.parametrize("name", STATES)
def test_state(name, alike):
    check_state(*STATES[name](), alike)
