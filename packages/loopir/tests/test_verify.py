from dataclasses import replace

import pytest
from loopir import VerificationError, check_kernel, parse_kernel

GOOD = """\
@kernel(device='cpu', vector='r0')
def good(in0: In('float32', 64*s0), in1: In('int64', s0), out0: Out('float32', s0), out1: Out('float32', 64*s0), \\
s0: Size(hint=8)):
    for x0 in range(s0):
        for r0 in reduce(64):
            v0 = load(in0, [64*x0 + r0], 'float32')
            v1 = reduce('sum', v0, 'float32')
        v2 = load(in1, [x0], 'int64')
        i0 = indirect(v2, s0)
        store(out0, [x0], v1)
        for r0 in reduce(64):
            v3 = load(in0, [64*i0 + r0], 'float32')
            v4 = add(v3, v1)
            store(out1, [64*x0 + r0], v4)
"""


def test_good_kernel_passes():
    check_kernel(parse_kernel(GOOD))


@pytest.mark.parametrize(
    ("clause", "old", "new"),
    [
        ("C4.1", "vector='r0'", "vector='x7'"),
        ("C4.1", "reduce('sum', v0", "reduce('mean', v0"),
        ("C4.2", "add(v3, v1)", "add(v3, v0)"),
        ("C4.2", "v4 = add(v3, v1)", "v4 = add(v3, v1)\n            v4 = add(v3, v1)"),
        ("C4.2", "load(in0, [64*x0 + r0]", "load(in7, [64*x0 + r0]"),
        ("C4.3", "load(in0, [64*x0 + r0], 'float32')", "load(in0, [64*x0 + r0], 'float64')"),
        ("C4.3", "v4 = add(v3, v1)", "v5 = cast(v3, 'bfloat16')\n            v4 = add(v5, v5)"),
        ("C4.3", "v4 = add(v3, v1)", "v4 = add(v3, v2)"),
        ("C4.3", "v4 = add(v3, v1)", "v4 = and_(v3, v1)"),
        ("C4.4", "load(in0, [64*x0 + r0]", "load(in0, [64*x0 + r0 + 1]"),
        ("C4.4", "load(in0, [64*x0 + r0]", "load(in0, [64*x0 + r5]"),
        ("C4.4", "load(in0, [64*x0 + r0]", "load(in0, [64*x0 + r0 - 3]"),
        ("C4.5", "store(out0, [x0], v1)", "store(in0, [x0], v1)"),
        ("C4.5", "store(out0, [x0], v1)", "v7 = load(in0, [x0], 'float32')"),
        ("C4.5", "v3 = load(in0, [64*i0 + r0], 'float32')", "v3 = load(out0, [i0], 'float32')"),
        ("C4.6", "store(out1, [64*x0 + r0], v4)", "store(out1, [64*x0], v4)"),
        ("C4.3", "v4 = add(v3, v1)", "v5 = load(in1, [x0], 'int64')\n            v4 = mul(v3, v5)"),
        ("C4.3", "v4 = add(v3, v1)", "v5 = lt(v3, v1)\n            v4 = where(v5, v3, v2)"),
        (
            "C4.3",
            "v4 = add(v3, v1)",
            "v5 = lt(v3, v1)\n            v6 = constant(1, 'int64')\n            v4 = where(v5, "
            "v6, v3)",
        ),
        ("C4.3", "v4 = add(v3, v1)", "v4 = where(v3, v3, v1)"),
        ("C4.3", "v4 = add(v3, v1)", "v4 = uniform(v3, v1)"),
        ("C4.3", "store(out0, [x0], v1)", "store(out0, [x0], v2)"),
        (
            "C4.3",
            "v3 = load(in0, [64*i0 + r0], 'float32')",
            "v3 = load(in0, [64*i0 + r0], 'float32', mask=v2, other=0.0)",
        ),
        ("C4.7", "v2 = load(in1, [x0], 'int64')", "v2 = load(in0, [x0], 'float32')"),
    ],
)
def test_violation_names_its_clause(clause, old, new):
    assert old in GOOD
    with pytest.raises(VerificationError) as error:
        check_kernel(parse_kernel(GOOD.replace(old, new, 1)))
    assert error.value.clause == clause, str(error.value)
    assert "kernel good" in str(error.value)


def of_add(**changes):
    return lambda steps: tuple(
        replace(step, **changes) if step.op == "add" else step for step in steps
    )


@pytest.mark.parametrize(
    ("clause", "edit"),
    [
        ("C4.1", lambda steps: ()),
        ("C4.2", of_add(op="addition")),
        ("C4.3", of_add(dtype=None)),
        (
            "C4.3",
            lambda steps: tuple(
                replace(s, args=(*s.args[:3], 0.0)) if s.op == "load" else s for s in steps
            ),
        ),
    ],
    ids=["no instructions", "unknown operation", "no dtype", "a number for no mask"],
)
def test_what_no_text_says_is_found_as_well(clause, edit):
    kernel = parse_kernel(GOOD)
    bodies = tuple(replace(body, instructions=edit(body.instructions)) for body in kernel.bodies)
    with pytest.raises(VerificationError) as error:
        check_kernel(replace(kernel, bodies=bodies))
    assert error.value.clause == clause, str(error.value)


def test_masked_load_may_be_out_of_bounds():
    text = """\
@kernel(device='cpu', vector='x0')
def padded(in0: In('float32', 4), out0: Out('float32', 8)):
    for x0 in range(8):
        v0 = index_expr(x0, 'int64')
        v1 = constant(4, 'int64')
        v2 = lt(v0, v1)
        v3 = load(in0, [x0], 'float32', mask=v2, other=0.0)
        store(out0, [x0], v3)
"""
    check_kernel(parse_kernel(text))
    with pytest.raises(VerificationError, match=r"C4\.4"):
        check_kernel(parse_kernel(text.replace(", mask=v2, other=0.0", "")))
