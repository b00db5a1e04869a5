"""Functions of one element as bodies of kernels."""

import pytest
from loopir import LoweringError, lower_functions

HEAD = "score: f32[1, 1, 1, 1], q: i32[1, 1, 1, 1], k: i32[1, 1, 1, 1]"


def lowered(lines, more=""):
    body = "\n    ".join(lines)
    return lower_functions(f"s0 = Size(lower=2, hint=4)\ndef f({HEAD}{more}):\n    {body}\n")["f"]


def test_a_function_is_one_body_that_reads_its_inputs_by_name():
    function = lowered(
        [
            "sub: i32[1, 1, 1, 1] = ops.aten.sub.Tensor(q, k)",
            "mul: f32[1, 1, 1, 1] = ops.aten.mul.Tensor(sub, 0.5)",
            "add: f32[1, 1, 1, 1] = ops.aten.add.Tensor(score, mul)",
            "return (add,)",
        ]
    )
    steps = function.body.instructions
    assert {step.args[0] for step in steps if step.op == "load"} == {"score", "q", "k"}
    assert steps[-1].args[0] == function.result
    assert function.inputs == ("score", "q", "k")
    assert not function.sizes


def test_lookups_name_the_sizes_that_they_check():
    function = lowered(
        [
            "index: f32[1, 1, 1, 1] = ops.aten.index.Tensor(table, [k])",
            "add: f32[1, 1, 1, 1] = ops.aten.add.Tensor(score, index)",
            "return (add,)",
        ],
        ", table: f32[s0]",
    )
    assert [*function.sizes.values()] == [("table", 0)]
    assert "indirect" in {step.op for step in function.body.instructions}


def test_a_function_without_a_loop_is_refused():
    with pytest.raises(LoweringError, match="no single loop body"):
        lowered(["return (score,)"])
