import inspect

import pytest
import sympy
import torch
from loopir import OPS, OpsHandler, Recorder, Value, replay, symbol
from loopir.ir.simplify import Facts
from loopir.ir.text import method_name
from loopir.schedule.recorder import KernelRecorder

x = symbol("x0")


def test_handler_has_a_method_for_every_operation_and_no_others():
    methods = {
        name
        for name, member in inspect.getmembers(OpsHandler, inspect.isfunction)
        if not name.startswith("_")
    }
    generic = {"elementwise", "convert", "collective"}
    assert methods - generic == {method_name(op) for op in OPS}
    assert not hasattr(OpsHandler, "__getattr__")


def test_equal_operations_are_one():
    ops = Recorder()
    a, b = ops.load("in0", x, torch.float32), ops.load("in0", x, torch.float32)
    assert a == b and ops.exp(a) == ops.exp(b)
    assert len(ops.instructions) == 2


def test_numbers_that_compare_equal_stay_apart():
    ops = Recorder()
    assert ops.constant(0.0, torch.float32) != ops.constant(-0.0, torch.float32)
    assert ops.constant(1, torch.int64) != ops.constant(1.0, torch.float32)
    assert ops.constant(float("nan"), torch.float32) == ops.constant(float("nan"), torch.float32)


def test_stores_never_merge_and_forward_their_value():
    ops = Recorder()
    old = ops.load("buf", x, torch.float32)
    value = ops.exp(old)
    ops.store("buf", x, value)
    ops.store("buf", x, value)
    assert ops.load("buf", x, torch.float32) == value
    assert sum(step.op == "store" for step in ops.instructions) == 2


def test_store_forgets_other_loads_of_its_buffer():
    ops = Recorder()
    before = ops.load("buf", x + 1, torch.float32)
    ops.store("buf", x, before)
    assert ops.load("buf", x + 1, torch.float32) != before


def test_add_store_forwards_nothing():
    ops = Recorder()
    value = ops.load("in0", x, torch.float32)
    ops.store("buf", x, value, "add")
    assert ops.load("buf", x, torch.float32) != value


def test_identities_are_not_recorded():
    ops = Recorder()
    v = ops.load("in0", x, torch.bfloat16)
    wide = ops.cast(v, torch.float32)
    assert ops.cast(wide, torch.bfloat16) == v
    assert ops.mul(wide, ops.constant(1.0, torch.float32)) == wide
    narrow = ops.cast(ops.load("in1", x, torch.float32), torch.bfloat16)
    assert ops.cast(ops.cast(narrow, torch.float32), torch.bfloat16) == narrow
    assert ops.cast(narrow, torch.float32) != ops.load("in1", x, torch.float32)
    mask = ops.lt(wide, wide)
    assert ops.not_(ops.not_(mask)) == mask
    assert ops.where(mask, ops.constant(True, torch.bool), ops.constant(False, torch.bool)) == mask


def test_replay_reproduces_the_record():
    ops = Recorder()
    index = ops.indirect(ops.load("in0", x, torch.int64), 10)
    value = ops.load(
        "in1", 4 * index + x, torch.float32, ops.lt(*[ops.index_expr(x, torch.int64)] * 2), 0.5
    )
    ops.store(
        "out0",
        x,
        ops.where(
            ops.le(value, value), ops.bitcast(ops.bitcast(value, torch.int32), torch.float32), value
        ),
    )
    ops.store("out1", 0, ops.uniform(ops.constant(1, torch.int64), ops.index_expr(x, torch.int64)))
    again = Recorder()
    values = replay(ops.instructions, again, {})
    assert again.instructions == ops.instructions
    assert all(values[name] == Value(name) for name in values)


@pytest.mark.parametrize("slot", [0, 1])
def test_a_store_in_a_kernel_forgets_what_was_loaded(slot):
    point = symbol("p0")
    recorder = KernelRecorder(Facts(), {point: sympy.Integer(8)}, set(), {"b"})
    recorder.enter(slot)
    here, next_one = (recorder.load("b", index, torch.float32) for index in (point, point + 1))
    recorder.store("b", point, recorder.add(here, next_one), "add")
    again = [recorder.load("b", index, torch.float32) for index in (point, point + 1)]
    assert len({value.name for value in (here, next_one, *again)}) == 4
