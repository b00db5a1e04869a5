"""Functions cut after every instruction behave as before, whether the resume function is called or
continued.
"""

from __future__ import annotations

import importlib.util
import os
import random
import re
import sys
from pathlib import Path
from types import CodeType, FunctionType

import pytest
from bytecode_dynamo.bytecode import (
    Analysis,
    Op,
    body_start,
    can_split,
    decode,
    encode,
    has_raw_cells,
    replace_before,
    replacement,
    resume_mark,
    split_at,
    split_points,
)
from bytecode_dynamo.guards.source import SourceEmitter
from bytecode_dynamo.hook.frame_hook import SKIP, Activated, Continuation, Region
from bytecode_dynamo.hook.frame_hook import Entry as CacheEntry


def load_cases():
    spec = importlib.util.spec_from_file_location(
        "bytecode_cases", Path(__file__).with_name("cases.py")
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.CASES


CASES = load_cases()
SMALL = [function for function in CASES if len(function.__code__.co_code) < 1500]
INPUTS = range(5)
CALLS = (Op.CALL, Op.CALL_FUNCTION_EX)


def text(value):
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def describe(error):
    if error is None:
        return None
    context = describe(error.__cause__), describe(error.__context__), error.__suppress_context__
    return (type(error).__name__, text(error.args), *context)


def outcome(function, n):
    """Result or exception with its chain, what was logged, and whether the exception state is as
    before.
    """
    record: list[str] = []

    def log(value):
        record.append(text(value))
        assert len(record) < 2000, "runaway"
        return value

    before = sys.exc_info()
    try:
        result = text(function(log, n))
    except Exception as error:
        result = describe(error)
    record.append(text(sys.exc_info() == before))
    return result, record


def variants(code, cut, keep):
    """Code objects with one cut in them or in a function inside."""
    if can_split(code):
        neutral = decode(code)
        analysis = Analysis(neutral)
        for k in split_points(neutral, analysis):
            if keep(neutral.instructions[k]):
                yield (code.co_qualname, k, neutral.instructions[k]), cut(neutral, k, analysis)
    for index, const in enumerate(code.co_consts):
        if isinstance(const, CodeType):
            for what, changed in variants(const, cut, keep):
                consts = list(code.co_consts)
                consts[index] = changed
                yield what, code.replace(co_consts=tuple(consts))


def with_code(function, code):
    made = FunctionType(code, function.__globals__, function.__name__, function.__defaults__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def calling(neutral, k, analysis):
    return encode(split_at(neutral, k, analysis).first_half)


def check_everywhere(function, cut, keep, inputs=INPUTS):
    wanted = [outcome(function, n) for n in inputs]
    for what, code in variants(function.__code__, cut, keep):
        changed = with_code(function, code)
        for n in inputs:
            assert outcome(changed, n) == wanted[n], what


@pytest.mark.parametrize("function", CASES, ids=lambda function: function.__name__)
def test_cut_after_every_call_changes_nothing(function):
    check_everywhere(function, calling, lambda item: item.op in CALLS)


@pytest.mark.parametrize(
    "function", random.Random(11).sample(SMALL, 25), ids=lambda function: function.__name__
)
def test_cut_after_every_instruction_changes_nothing_sample(function):
    check_everywhere(function, calling, lambda item: True)


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("STRATA_PROFILE") != "thorough", reason="minutes")
@pytest.mark.parametrize("function", CASES, ids=lambda function: function.__name__)
def test_cut_after_every_instruction_changes_nothing(function):
    check_everywhere(function, calling, lambda item: True)


def cutting_region(rnd):
    """A region that cuts every function of the cases at a random place, resume functions too, and
    continues.
    """

    def callback(view):
        if not view.code.co_filename.endswith("cases.py") or not can_split(view.code):
            return SKIP
        neutral = decode(view.code)
        analysis = Analysis(neutral)
        points = [k for k in split_points(neutral, analysis) if k >= body_start(neutral)]
        if not points or rnd.random() < 0.2:
            return SKIP
        split = split_at(neutral, rnd.choice(points), analysis, Continuation)
        return CacheEntry(None, encode(split.first_half), returns_continuation=True)

    return Region(callback)


LIFETIMES = ("f_weakref", "f_iterator_released")


@pytest.mark.parametrize("function", CASES, ids=lambda function: function.__name__)
def test_continuing_through_the_hook_changes_nothing(function):
    if function.__name__ in LIFETIMES:
        pytest.skip("a hooked call keeps its arguments on the caller's stack")
    rnd = random.Random(function.__name__)
    wanted = [outcome(function, n) for n in INPUTS]
    for _ in range(4):
        run = Activated(function, cutting_region(rnd))
        for _ in range(2):
            assert [outcome(run, n) for n in INPUTS] == wanted


@pytest.mark.parametrize("function", CASES[::3], ids=lambda function: function.__name__)
def test_replacing_what_leads_to_a_call_changes_nothing(function):
    """`replace_before` with the original instructions as prefix is the same function."""

    def cut(neutral, k, analysis):
        prefix = neutral.instructions[body_start(neutral) : k]
        known = {item.label for item in prefix}
        if any(
            item.op is not Op.NOP and (item.label is not None or item.arg in known)
            for item in prefix
        ):
            return calling(neutral, k, analysis)
        if any(item.handler is not None for item in prefix) or any(
            x.op.name.endswith(("JUMP", "IF_FALSE")) for x in prefix
        ):
            return calling(neutral, k, analysis)
        return encode(replace_before(neutral, k, prefix, analysis).first_half)

    check_everywhere(function, cut, lambda item: item.op in CALLS, range(5))


def test_resume_function_cut_again_leads_back_to_the_same_code():
    def f(log, n):
        for i in range(n):
            log(i)

    neutral = decode(f.__code__)
    k = next(
        k
        for k, item in enumerate(neutral.instructions)
        if item.op is Op.CALL and item.arg.argc == 1 and k > 8
    )
    resume = split_at(neutral, k).resumes[0]
    assert decode(resume.native) is resume.code
    mark = resume_mark(resume.code)
    assert mark is not None
    assert mark.origin.code is neutral
    again = next(j for j, place in mark.places.items() if place == k)
    assert split_at(resume.code, again).resumes[0].native is resume.native


def test_raw_cells_of_a_resume_function():
    def f(log, x):
        log(1)
        return lambda: x

    neutral = decode(f.__code__)
    k = next(k for k, item in enumerate(neutral.instructions) if item.op is Op.CALL)
    resume = split_at(neutral, k).resumes[0]
    assert has_raw_cells(resume.code)
    assert not has_raw_cells(neutral)
    assert resume.code.instructions[body_start(resume.code)].op is not Op.MAKE_CELL
    emit = SourceEmitter(resume.code)
    emit.load_deref("x")
    emit.return_value()
    made = FunctionType(encode(replacement(resume.code, emit.instructions)), {})
    cell = (lambda v: (lambda: v).__closure__[0])(7)
    arguments = [
        cell if name == "x" else None for name in resume.code.varnames[: resume.code.argcount]
    ]
    assert made(*arguments) == 7


def test_replacement_keeps_signature_and_place():
    def f(a, /, b, *args, c=1, **kw):
        inner = lambda: (a, b)  # noqa: E731
        return inner

    neutral = decode(f.__code__)
    emit = SourceEmitter(neutral)
    emit.load_argument("a")
    emit.load_fast("kw")
    emit.build_tuple(2)
    emit.store_fast("extra")
    emit.load_callee_const(sorted)
    emit.load_fast("args")
    emit.load_const(True)
    emit.call(2, ["reverse"])
    emit.load_fast("extra")
    emit.build_list(2)
    emit.return_value()
    code = encode(replacement(neutral, emit.instructions, ["extra"]))
    made = with_code(f, code)
    assert made(1, 2, 3, 4, c=5, d=6) == [[4, 3], (1, {"d": 6})]
    for name in (
        "co_name",
        "co_qualname",
        "co_filename",
        "co_firstlineno",
        "co_argcount",
        "co_posonlyargcount",
        "co_cellvars",
    ):
        assert getattr(code, name) == getattr(f.__code__, name)
