"""Which parameters of a Triton kernel are written through; the kernels here are read, never run."""

from __future__ import annotations

import types

from bytecode_dynamo.polyfills.kernel_writes import written_parameters

tl = types.ModuleType("triton.language")
for name in (
    "load",
    "store",
    "atomic_add",
    "arange",
    "program_id",
    "make_block_ptr",
    "advance",
    "dot",
    "inline_asm_elementwise",
):
    function = types.FunctionType((lambda *args: None).__code__, {}, name)
    function.__module__ = "triton.language.core"
    setattr(tl, name, function)


class Helper:
    """As a decorated function looks."""

    def __init__(self, fn):
        self.fn, self.arg_names = fn, list(fn.__code__.co_varnames)


def copied(x, out):
    i = tl.program_id(0) + tl.arange(0, 16)
    tl.store(out + i, tl.load(x + i))


def gathered(x, places, out):
    i = tl.load(places)
    here = out + i
    for _ in range(3):
        here += 1
    tl.store(here, tl.load(x + i))


def added(x, count, lock):
    tl.atomic_add(count, tl.load(x))
    tl.store(pointer=lock, value=0)


def in_blocks(x, out, n):
    source, target = tl.make_block_ptr(x, 8), tl.make_block_ptr(out, 8)
    while n > 0:
        tl.store(target, tl.dot(tl.load(source), 1).to(n))
        source, target = tl.advance(source, 1), tl.advance(target, 1)
        n -= 1


def described(x, out):
    x.load([0])
    out.store([0], 1)


def _helped(a, b):
    tl.store(b, tl.load(a))


helped = Helper(_helped)


def through_a_helper(x, out, other):
    helped(x, b=out)
    print(other)


def recursive(x, out):
    calls_itself(out, x)
    tl.store(out, 1)


calls_itself = Helper(recursive)


def not_understood(x, out, n):
    tl.inline_asm_elementwise("", x)
    unknown(out)  # noqa: F821


def test_stores_and_atomics_write_through_pointers_and_what_is_made_of_them():
    assert written_parameters(copied) == {"out"}
    assert written_parameters(gathered) == {"out"}
    assert written_parameters(added) == {"count", "lock"}
    assert written_parameters(in_blocks) == {"out"}
    assert written_parameters(described) == {"out"}


def test_calls_of_other_kernels_functions_are_read():
    assert written_parameters(through_a_helper) == {"out"}
    assert written_parameters(recursive) == {"x", "out"}


def test_what_is_not_understood_may_write():
    assert written_parameters(not_understood) == {"x", "out"}
    assert written_parameters(eval("lambda x, out: tl.load(x)")) == {"x", "out"}
