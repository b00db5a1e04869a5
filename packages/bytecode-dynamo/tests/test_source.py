"""Sources: text, value and emitted instructions agree."""

from __future__ import annotations

from types import FunctionType

import pytest
import torch
from bytecode_dynamo.bytecode import decode, encode, replacement
from bytecode_dynamo.guards.source import (
    AttrSource,
    BuiltinSource,
    CellSource,
    ClassDictSource,
    ClosureCellSource,
    ClosureSource,
    ConstSource,
    DefaultsSource,
    GlobalSource,
    ItemSource,
    LocalSource,
    SourceEmitter,
    TypeSource,
    class_attribute,
    scope_of,
)
from bytecode_dynamo.guards.tensor_source import SizeSource, StorageOffsetSource, StrideSource

SETTING = 5


class Holder:
    items = (1, {"k": 7})

    def method(self):
        return self


def make():
    free = 9

    def function(x, w, t, d=3, *, k=4):
        def inner():
            return x

        return SETTING, free, inner, len, d, k

    return function


FUNCTION = make()
X, W, T = LocalSource("x"), LocalSource("w"), LocalSource("t")
SOURCES = {
    "L['x']": X,
    "L['w']": W,
    "G['SETTING']": GlobalSource("SETTING"),
    "B['len']": BuiltinSource("len"),
    "C['free'].cell_contents": ClosureSource("free"),
    "C['free']": ClosureCellSource("free"),
    "L['w'].items": AttrSource(W, "items"),
    "getattr(L['w'], 'not a name')": AttrSource(W, "not a name"),
    "L['w'].items[1]['k']": ItemSource(ItemSource(AttrSource(W, "items"), 1), "k"),
    "type(L['w'])": TypeSource(W),
    "type(L['w']).__mro__[0].__dict__['method']": ClassDictSource(TypeSource(W), 0, "method"),
    "L['t'].size(1)": SizeSource(T, 1),
    "L['t'].stride(0)": StrideSource(T, 0),
    "L['t'].storage_offset()": StorageOffsetSource(T),
    "3": ConstSource(3),
}


@pytest.mark.parametrize("text", SOURCES)
def test_text_value_and_code_agree(text):
    source = SOURCES[text]
    holder = Holder()
    setattr(holder, "not a name", 1)
    arguments = {"x": object(), "w": holder, "t": torch.ones(2, 3)}
    scope = scope_of(FUNCTION, arguments)
    assert source.name == text
    value = source.resolve(scope)
    names = {"L": scope.locals, "G": scope.globals, "B": scope.builtins, "C": scope.closure}
    assert eval(text, names) == value
    neutral = decode(FUNCTION.__code__)
    emit = SourceEmitter(neutral)
    source.emit(emit)
    emit.return_value()
    code = encode(replacement(neutral, emit.instructions))
    made = FunctionType(
        code, FUNCTION.__globals__, "made", FUNCTION.__defaults__, FUNCTION.__closure__
    )
    made.__kwdefaults__ = FUNCTION.__kwdefaults__
    assert made(**arguments) == value


def test_defaults_of_a_function():
    base = ConstSource(FUNCTION)
    scope = scope_of(FUNCTION, {})
    assert DefaultsSource(base, 0).resolve(scope) == 3
    assert DefaultsSource(base, "k").resolve(scope) == 4
    assert DefaultsSource(LocalSource("f"), "k").name == "L['f'].__kwdefaults__['k']"
    assert CellSource(ClosureCellSource("free")).resolve(scope) == 9


def test_sources_are_keys():
    assert AttrSource(LocalSource("x"), "a") == AttrSource(LocalSource("x"), "a")
    assert (
        len(
            {
                AttrSource(LocalSource("x"), "a"),
                AttrSource(LocalSource("x"), "a"),
                AttrSource(X, "b"),
            }
        )
        == 2
    )
    assert ConstSource([]) != ConstSource([])
    assert GlobalSource("x") != LocalSource("x")


def test_path_root_and_class_attribute():
    deep = ItemSource(AttrSource(W, "items"), 1)
    assert list(deep.path()) == [deep, AttrSource(W, "items"), W]
    assert deep.root is W
    assert class_attribute(TypeSource(W), Holder, "method") == ClassDictSource(
        TypeSource(W), 0, "method"
    )
    assert class_attribute(TypeSource(W), Holder, "missing") is None
