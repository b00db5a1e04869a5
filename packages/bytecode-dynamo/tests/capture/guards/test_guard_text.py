"""The text form of guards."""

from __future__ import annotations

import contextlib
import itertools
import operator
import re
import sys
import types
from typing import Any

import bytecode_dynamo as bd
import pytest
import sympy
import torch
from bytecode_dynamo.guards.computed_source import ComputedSource
from bytecode_dynamo.guards.guards import compile_guards
from bytecode_dynamo.guards.records import (
    ABSENT,
    STATE,
    Answer,
    FunctionFacts,
    GuardKind,
    GuardRecord,
    ShapeGuards,
)
from bytecode_dynamo.guards.references import Live, Named, OpenRecord
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
    NamespaceSource,
    ReferentSource,
    TypeSource,
    scope_of,
)
from bytecode_dynamo.guards.tensor_facts import TensorFacts
from bytecode_dynamo.guards.tensor_source import (
    ElementSource,
    PlainTensorSource,
    SizeSource,
    StorageOffsetSource,
    StrideSource,
)
from bytecode_dynamo.testing import corpus
from hypothesis import given
from hypothesis import strategies as st
from symshapes import FloorDiv, ParseError, SizeGuard, VersionError
from torch import nn

X, N = LocalSource("x"), LocalSource("n")
HEADER = "# bytecode_dynamo.guards 1\n"
PLAIN = torch._C._dispatch_keys(torch.ones(1)).raw_repr()
PLAIN_KEYS = "keys('AutogradCPU', 'CPU', 'ADInplaceOrView', 'AutocastCPU')"


def facts(shape, strides, kind=torch.Tensor, grad=False, device="cpu", dtype=torch.float32):
    return TensorFacts(kind, dtype, torch.device(device), grad, shape, strides, PLAIN)


RECORDS = {
    "type_is(L['n'], named('builtins:int'))": (N, GuardKind.TYPE_IS, int),
    "type_is(L['n'], named('types:FunctionType'))": (N, GuardKind.TYPE_IS, type(facts)),
    "identity(G['nn'], named('torch.nn'))": (GlobalSource("nn"), GuardKind.IDENTITY, nn),
    "identity(L['x'].grad, None)": (AttrSource(X, "grad"), GuardKind.IDENTITY, None),
    "identity(L['n'], named('re:RegexFlag.ASCII'))": (N, GuardKind.IDENTITY, re.ASCII),
    "identity(L['n'], torch.float32)": (N, GuardKind.IDENTITY, torch.float32),
    "equals(L['n'], -0.0)": (N, GuardKind.EQUALS, -0.0),
    "equals(L['n'], (1, 'a', b'b', range(0, 4, 1), slice(1, None, None)))": (
        N, GuardKind.EQUALS, (1, "a", b"b", range(4), slice(1, None))),
    "equals(L['n'], torch.Size((2, 3)))": (N, GuardKind.EQUALS, torch.Size([2, 3])),
    "equals(L['n'], torch.device('cuda:0'))": (N, GuardKind.EQUALS, torch.device("cuda:0")),
    "length(L['n'], 2)": (N, GuardKind.LENGTH, 2),
    "dict_keys(L['n'], ('a', 1, named('torch:Tensor')))": (
        N, GuardKind.DICT_KEYS, ("a", 1, torch.Tensor)),
    "has_attr(L['n'], 'a')": (N, GuardKind.HAS_ATTR, "a"),
    "no_attr(globals(), 'a')": (NamespaceSource(False), GuardKind.NO_ATTR, "a"),
    "no_attr(builtins, 'a')": (NamespaceSource(True), GuardKind.NO_ATTR, "a"),
    f"tensor(L['x'], f32[2, 3], keys={PLAIN_KEYS})": (
        X, GuardKind.TENSOR, facts((2, 3), (3, 1))),
    f"tensor(L['x'], bf16[_, 3](_, 2, device='meta', requires_grad=True), keys={PLAIN_KEYS}, "
    "type=named('torch.nn.parameter:Parameter'))": (X, GuardKind.TENSOR, facts(
        (None, 3), (None, 2), nn.Parameter, True, "meta", torch.bfloat16)),
    f"tensor(L['x'], f32[()], keys={PLAIN_KEYS}, strides=None)": (
        X, GuardKind.TENSOR, facts((), None)),
    "aliased(L['x'], L['n'][0])": (X, GuardKind.ALIASED, ItemSource(N, 0)),
    "not_aliased(L['x'], L['n'][-1])": (X, GuardKind.NOT_ALIASED, ItemSource(N, -1)),
    "class_attr(named('torch.nn.modules.linear:Linear'), 'forward', "
    "named('torch.nn.modules.linear:Linear.forward'))": (
        ConstSource(nn.Linear), GuardKind.CLASS_ATTR, ("forward", nn.Linear.forward)),
    "class_attr(named('torch.nn.modules.linear:Linear'), 'lost', ABSENT)": (
        ConstSource(nn.Linear), GuardKind.CLASS_ATTR, ("lost", ABSENT)),
    "finite(L['x'].item())": (ElementSource(X), GuardKind.FINITE, True),
}  # fmt: skip
SOURCES = {
    "B['len']": BuiltinSource("len"),
    "C['c']": ClosureCellSource("c"),
    "C['c'].cell_contents": ClosureSource("c"),
    "L['x'].cell_contents": CellSource(X),
    "getattr(L['x'], 'class')": AttrSource(X, "class"),
    "getattr(L['x'], 'a b')": AttrSource(X, "a b"),
    "object.__getattribute__(L['x'], 'a')": AttrSource(X, "a", generic=True),
    "L['x'][named('torch:Tensor')]": ItemSource(X, torch.Tensor),
    "lookup(named('builtins:dict.__getitem__'), L['x'], 'k')": ItemSource(X, "k", dict.__getitem__),
    "L['x'].__defaults__[1]": DefaultsSource(X, 1),
    "L['x'].__kwdefaults__['k']": DefaultsSource(X, "k"),
    "type(L['x']).__mro__[1].__dict__['a']": ClassDictSource(TypeSource(X), 1, "a"),
    "L['x'].ref().size(1)": SizeSource(ReferentSource(AttrSource(X, "ref")), 1),
    "L['x'].as_subclass(Tensor).stride(0)": StrideSource(PlainTensorSource(X), 0),
    "L['x'].storage_offset()": StorageOffsetSource(X),
    "computed(named('_operator:add'), L['n'], constant(3))": ComputedSource(
        operator.add, (N, ConstSource(3))
    ),
    "named('torch.nn').functional": AttrSource(ConstSource(nn), "functional"),
}


@pytest.mark.parametrize("text", RECORDS)
def test_a_record_of_each_kind(text):
    source, kind, expected = RECORDS[text]
    assert bd.format_guards([GuardRecord(source, kind, expected)]) == f"{HEADER}{text}\n"
    (read,) = bd.parse_guards(f"{HEADER}{text}\n").records
    assert (read.source, read.kind, read.expected) == (source, kind, expected)
    assert type(read.expected) is type(expected)
    assert type(read) is GuardRecord


@pytest.mark.parametrize("text", SOURCES)
def test_a_source_of_each_kind(text):
    line = f"{HEADER}finite({text})\n"
    assert bd.format_guards([GuardRecord(SOURCES[text], GuardKind.FINITE, True)]) == line
    assert bd.parse_guards(line).records[0].source == SOURCES[text]


def test_the_state_of_torch():
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.device("meta"), torch.no_grad():
        state = STATE.resolve(None)
    text = bd.format_guards([GuardRecord(STATE, GuardKind.GLOBAL_STATE, state)])
    assert "global_state(grad_mode=False" in text
    assert "autocast=(('cpu', True, torch.bfloat16)" in text
    assert "function_modes=(torch.device('meta'),)" in text
    (read,) = bd.parse_guards(text).records
    assert read.source is STATE
    assert read.expected == state
    assert read.expected.difference(state) is None


def called(x):
    return x


def test_conditions_on_sizes():
    s0 = sympy.Symbol("s0", integer=True, positive=True)
    f1, u0 = sympy.Symbol("f1", real=True), sympy.Symbol("u0", integer=True)
    guards = [
        SizeGuard(sympy.Eq(FloorDiv(s0, 2), 3), 'File "model.py", line 3, in f'),
        SizeGuard(sympy.And(s0 > 2, f1 < 1.5)),
        SizeGuard(u0 >= 0),
    ]
    shapes = ShapeGuards({s0: SizeSource(X, 0), f1: N}, guards)
    text = bd.format_guards([], shapes)
    assert text == HEADER + (
        "s0 = symbol(L['x'].size(0), integer=True, positive=True)\n"
        "f1 = symbol(L['n'], real=True)\n"
        "u0 = symbol(None, integer=True)\n"
        "require((s0 // 2) == 3, 'File \"model.py\", line 3, in f')\n"
        "require((f1 < 1.5) and (s0 > 2))\n"
        "require(u0 >= 0)\n"
    )
    assert bd.parse_guards(text).shapes == shapes


def test_guards_read_from_text_check_calls():
    text = HEADER + (
        f"tensor(L['x'], f32[_, 2], keys={PLAIN_KEYS})\n"
        "s0 = symbol(L['x'].size(0), integer=True)\n"
        "require(s0 % 2 == 0)\n"
    )
    x = torch.ones(4, 2)
    program = compile_guards(*bd.parse_guards(text), called.__code__, scope_of(called, {"x": x}))
    calls = torch.ones(6, 2), torch.ones(5, 2), torch.ones(4, 3)
    assert [program.check(called, (value,)) for value in calls] == [True, False, False]


class Local:
    pass


def test_live_objects_print_and_come_back_if_given():
    held, answer = Local(), Answer("len({})", len, 3)
    code = FunctionFacts.of(called)
    records = [
        GuardRecord(X, GuardKind.IDENTITY, held),
        GuardRecord(ItemSource(X, held), GuardKind.CUSTOM, answer),
        GuardRecord(ConstSource(held), GuardKind.FUNCTION_CODE, code),
        GuardRecord(X, GuardKind.EQUALS, 3),
    ]
    text = bd.format_guards(records)
    assert text == HEADER + (
        "identity(L['x'], live('a Local', 0))\n"
        "custom(L['x'][live('a Local', 0)], live(\"len(L['x'][live('a Local', 0)]) as it was\", 1))\n"
        "function_code(live('a Local', 0), name='called', code=live('a code', 2), defaults=None, "
        "keyword_defaults=None)\n"
        "equals(L['x'], 3)\n"
    )
    opened = bd.parse_guards(text)
    assert [type(record) is OpenRecord for record in opened.records] == [True, True, True, False]
    assert opened.records[0].missing == (Live("a Local", 0),)
    assert bd.format_guards(*opened) == text
    scope = scope_of(called, {"x": held})
    with pytest.raises(bd.UserError, match=r"objects that this process doesn't have: live\('a L"):
        compile_guards(*opened, called.__code__, scope)
    read = bd.parse_guards(text, {0: held, 1: answer, 2: called.__code__})
    assert bd.format_guards(*read) == text
    assert [record.expected for record in read.records] == [held, answer, code, 3]
    program = compile_guards(read.records[:1], read.shapes, called.__code__, scope)
    assert program.check(called, (held,))
    assert not program.check(called, (Local(),))


def test_a_name_of_a_module_that_is_not_loaded_stays_a_name():
    text = f"{HEADER}type_is(L['x'], named('not_there.at_all:Thing'))\n"
    opened = bd.parse_guards(text)
    assert opened.records[0].expected == Named("not_there.at_all:Thing")
    assert bd.format_guards(*opened) == text
    with pytest.raises(bd.UserError, match="not_there"):
        compile_guards(*opened, called.__code__, scope_of(called, {"x": 1}))


def test_names_are_looked_up_without_running_code(monkeypatch):
    module: Any = types.ModuleType("lazy_module")
    module.__getattr__ = lambda name: pytest.fail("the module was asked")
    monkeypatch.setitem(sys.modules, "lazy_module", module)
    (record,) = bd.parse_guards("identity(L['x'], named('lazy_module:thing'))").records
    assert type(record) is OpenRecord


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("sometimes(L['x'])", "line 2, column 1: not a guard: sometimes"),
        ("x = 3", "column 1: not a guard: x = 3"),
        ("type_is(L['x'])", "column 1: not the parts of type_is"),
        ("type_is(L['x'], 3)", "column 17: expected"),
        ("finite(L['x'], True)", "column 1: not the parts of finite"),
        ("class_attr(L['x'], 'a')", "column 1: not the parts of class_attr"),
        ("equals()", "column 1: not a source: equals()"),
        ("equals(M['x'], 3)", r"column 8: not a source: M\['x'\]"),
        ("equals(x.y, 3)", "column 8: not a source: x"),
        ("equals(open(L['x']), 3)", r"column 8: not a source: open\(L\['x'\]\)"),
        ("equals(L['x'], eval('3'))", "column 16: not a value"),
        ("equals(L['x'], {[]: 3})", "column 16: not a value"),
        ("length(L['x'], -1)", "column 16: expected an int from 0 on"),
        ("length(L['x'], True)", "column 16: expected int"),
        ("custom(L['x'], 3)", "column 16: expected"),
        ("tensor(L['x'], f32[2])", "column 1: not the parts of tensor"),
        ("tensor(L['x'], f32[s0], keys=keys())", "column 20: not a value: s0"),
        ("tensor(L['x'], f32[2](1, 1), keys=keys())", "column 16: 2 strides of 1 dims"),
        (
            "tensor(L['x'], f32[2](requires_grad=1), keys=keys())",
            "column 37: expected True or False",
        ),
        ("tensor(L['x'], f32[2](offset=3), keys=keys())", "column 16: not the type of a tensor"),
        ("tensor(L['x'], f33[2], keys=keys())", "column 16: not a dtype"),
        ("tensor(L['x'], f32[2], keys=keys('Mine'))", "column 34: not a dispatch key"),
        ("global_state(grad_mode=True)", "column 1: not the parts of global_state"),
        ("require(s0 > 2)", "column 9: not an expression of sizes: s0"),
        ("s0 = symbol(L['x'], integer=True)\nrequire(s0 + 2)", "line 3, column 9: not a condition"),
        ("s0 = symbol(L['x'], integer=True)\nrequire(s0 > 9**9**9)", "line 3.*too large"),
        (
            "s0 = symbol(L['x'], integer=True)\nrequire(math.floor(s0, 2) > 1)",
            "line 3.*malformed",
        ),
        ("s0 = symbol(None, positive=True)\ns0 = symbol(None)", "line 3.*not a decl"),
        ("s0 = symbol(M['x'])", "column 13: not a source"),
        ("equals(L['x'], 3", "line 2"),
        ("equals(" + "(" * 500 + "L['x']" + ")" * 500 + ", 3)", "nested|parentheses"),
        ("equals(L['x']" + "[0]" * 3000 + ", 3)", "nested"),
        ("equals(L['x'], " + "-" * 3000 + "3)", "nested"),
        ("equals(L['x'], " + "-" * 90000 + "3)", "nested"),
    ],
)
def test_texts_outside_the_grammar(line, message):
    with pytest.raises(ParseError, match=message):
        bd.parse_guards(HEADER + line)


def test_a_newer_version_is_one_error():
    with pytest.raises(VersionError, match="version 2 of bytecode_dynamo.guards.*install a newer"):
        bd.parse_guards("# bytecode_dynamo.guards 2\nfinite(L['x'])\n")


def test_the_guards_of_the_programs_of_the_kit():
    captured: list[bd.Captured] = []
    for name in itertools.chain.from_iterable(corpus.PROGRAMS.values()):
        bd.reset()
        program = bd.optimize("eager", on_capture=captured.append)(getattr(corpus, name))
        for call in range(3):
            with contextlib.suppress(ValueError):  # some programs raise
                program(*corpus.arguments(call))
    kinds = set()
    for found in captured:
        text = bd.format_guards(found.guards, found.shapes)
        read = bd.parse_guards(text)
        assert bd.format_guards(*read) == text
        assert read.shapes.guards == found.shapes.guards
        for old, new in zip(found.guards, read.records, strict=True):
            kinds.add(new.kind)
            assert (old.kind, old.source.name) == (new.kind, new.source.name)
            if type(new) is GuardRecord and old.kind not in (GuardKind.ALIASED, GuardKind.EQUALS):
                assert new.expected == old.expected
    assert len(captured) > 50
    assert len(kinds) > 8


SEED = (
    HEADER
    + "".join(f"{line}\n" for line in RECORDS)
    + (
        "s0 = symbol(L['x'].size(0), integer=True, positive=True)\nrequire((s0 // 2) == 3, 'File')\n"
    )
)


@given(st.data())
def test_damaged_texts_are_parse_errors(data):
    text = SEED
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        end = start + data.draw(st.integers(0, 12))
        piece = data.draw(st.sampled_from(PIECES) | st.text(max_size=3))
        text = text[:start] + piece + text[end:]
    try:
        read = bd.parse_guards(text)
    except ParseError:
        return
    again = bd.format_guards(*read)
    assert bd.format_guards(*bd.parse_guards(again)) == again


PIECES = [*re.findall(r"\w+|[^\w\s]", SEED), "()", "[]", "{}", "**", "//", "%", " if ", " else "]
