"""Decoding and encoding the standard library gives the same code objects."""

from __future__ import annotations

import dis
import os
import random
import sys
import sysconfig
import warnings
from pathlib import Path
from types import CodeType

import pytest
from bytecode_dynamo.bytecode import Label, UnsupportedCode, decode, encode, format_code
from bytecode_dynamo.bytecode.decode import decode_anew
from bytecode_dynamo.bytecode.tables import read_exception_table

STDLIB = Path(sysconfig.get_path("stdlib"))
SMALL = [
    "dataclasses.py",
    "contextlib.py",
    "functools.py",
    "asyncio/tasks.py",
    "typing.py",
    "argparse.py",
    "_pydecimal.py",
    "enum.py",
]
SCALARS = (
    *(
        "co_flags",
        "co_argcount",
        "co_posonlyargcount",
        "co_kwonlyargcount",
        "co_name",
        "co_qualname",
        "co_firstlineno",
    ),
    *("co_nlocals", "co_varnames", "co_cellvars", "co_freevars", "co_names"),
)


def code_objects(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            pending = [compile(path.read_bytes(), str(path), "exec", dont_inherit=True)]
        except (SyntaxError, ValueError, RecursionError):
            return
    while pending:
        code = pending.pop()
        yield code
        pending += [const for const in code.co_consts if isinstance(const, CodeType)]


def shape(neutral):
    """Neutral code with labels numbered, lines and handlers included."""
    number: dict[Label, int] = {}
    out = []
    for item in neutral.instructions:
        label = item.label and number.setdefault(item.label, len(number))
        arg = number.setdefault(item.arg, len(number)) if type(item.arg) is Label else item.arg
        handler = item.handler and (
            number.setdefault(item.handler.target, len(number)),
            *item.handler[1:],
        )
        out.append((item.op, repr(arg), item.position[0], handler, label))
    return out


def table(code):
    """The exception table with neighbouring ranges joined."""
    merged = []
    for entry in read_exception_table(code.co_exceptiontable):
        if merged and merged[-1][1] == entry.start and merged[-1][2:] == entry[2:]:
            merged[-1] = (merged[-1][0], *entry[1:])
        else:
            merged.append(tuple(entry))
    return merged


def lines(code):
    return [(k, line) for start, end, line in code.co_lines() for k in range(start, end, 2)]


def check_round_trip(code):
    try:
        neutral = decode_anew(code)
    except UnsupportedCode:
        return False
    again = encode(neutral)
    where = (code.co_filename, code.co_qualname)
    for name in SCALARS:
        assert getattr(again, name) == getattr(code, name), (where, name)
    assert again.co_stacksize <= code.co_stacksize + 1, where
    assert all(a is b for a, b in zip(again.co_consts, code.co_consts, strict=True)), where
    if again.co_code == code.co_code:
        assert table(again) == table(code), where
        assert lines(again) == lines(code), where
    else:
        assert shape(decode_anew(again)) == shape(neutral), where
    return True


@pytest.mark.parametrize("name", SMALL)
def test_module_round_trips(name):
    done = [check_round_trip(code) for code in code_objects(STDLIB / name)]
    assert done.count(True) >= 10


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("STRATA_PROFILE") != "thorough", reason="minutes")
def test_standard_library_round_trips():
    for path in sorted(STDLIB.rglob("*.py")):
        if "site-packages" not in path.parts:
            for code in code_objects(path):
                check_round_trip(code)


def test_random_sample_of_the_standard_library_round_trips():
    paths = [path for path in sorted(STDLIB.glob("*.py")) if path.stat().st_size < 60_000]
    for path in random.Random(3).sample(paths, 25):
        for code in code_objects(path):
            check_round_trip(code)


@pytest.mark.skipif(
    sys.version_info >= (3, 14), reason="loads that borrow are written as loads that don't"
)
def test_identical_code_is_the_common_case():
    same = total = 0
    for code in code_objects(STDLIB / "dataclasses.py"):
        total += 1
        same += encode(decode_anew(code)).co_code == code.co_code
    assert same / total > 0.95


def test_decode_gives_one_object_while_the_code_lives():
    def f(x):
        return x

    assert decode(f.__code__) is decode(f.__code__)
    assert decode(f.__code__.replace(co_name="g")) is not decode(f.__code__)


def test_format_code_shows_lines_labels_and_handlers():
    def f(x):
        try:
            return x.y
        except AttributeError:
            return None

    text = format_code(decode(f.__code__))
    assert text.startswith("f(x)")
    assert "LOAD_ATTR" in text
    assert " at 0]" in text
    assert str(f.__code__.co_firstlineno + 2) in text


def test_every_native_instruction_is_known():
    """The rows, folds and fuses cover what the compiler emits, so `decode` meets no unknown
    name.
    """
    names = set()
    for code in code_objects(STDLIB / "asyncio/tasks.py"):
        names |= {item.opname for item in dis.get_instructions(code)}
        decode_anew(code)
    assert len(names) > 40
