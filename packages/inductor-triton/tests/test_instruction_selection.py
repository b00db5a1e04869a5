"""The rules that choose instructions, each alone on the text of a kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from inductor_triton.kernels.facts import Facts
from inductor_triton.kernels.indexing import merge_loops
from inductor_triton.kernels.kernel_plan import plan_kernel
from inductor_triton.kernels.passes.instruction_selection import select_instructions
from inductor_triton.spec import Config
from loopir import Instruction, parse_kernel


def show(step: Instruction) -> str:
    text = f"{step.op}({', '.join(map(str, step.args))})"
    return text if step.result is None else f"{step.result} = {text}"


def selected(body: str, out: str = "float32") -> list[str]:
    """The instructions between loads of a, b (float32), n (int64) and the store of ``y``."""
    lines = "\n        ".join(line.strip() for line in body.strip().splitlines())
    kernel = parse_kernel(f"""
@kernel(device='cuda')
def k(a: In('float32', 64), b: In('float32', 64), n: In('int64', 1), o: Out('{out}', 64)):
    for i in range(64):
        x = load(a, [i], 'float32')
        z = load(b, [i], 'float32')
        s = load(n, [0], 'int64')
        {lines}
        w = cast(y, '{out}')
        store(o, [i], w)
""")
    (block,) = plan_kernel(merge_loops(kernel)).parts
    return [show(step) for step in block.instructions if step.op not in ("load", "store", "cast")]


@pytest.mark.parametrize(("op", "narrow"), [("exp", "exp16"), ("tanh", "tanh16")])
def test_precision_follows_what_is_stored(op, narrow):
    assert selected(f"y = {op}(x)", "bfloat16") == [f"y = {narrow}(x)"]
    assert selected(f"y = {op}(x)") == [f"y = {op}(x)"]


@pytest.mark.parametrize("jump", ["floor", "round"])
def test_what_jumps_reads_exact_operands(jump):
    """9 / 3 is not less than 3, whatever the result is rounded to later."""
    text = f"""
        q = div(x, z)
        e = exp(q)
        y = {jump}(e)
    """
    assert selected(text, "bfloat16") == ["q = div_rn(x, z)", "e = exp(q)", f"y = {jump}(e)"]


def test_a_quotient_is_rounded_correctly_unless_it_is_narrow():
    assert selected("y = div(x, z)") == ["y = div_rn(x, z)"]
    assert selected("y = div(x, z)", "bfloat16") == ["y = div(x, z)"]


ERF = """
    e = erf(x)
    one = constant(1.0, 'float32')
    g = add(e, one)
    y = {use}
"""


def test_one_plus_erf():
    assert selected(ERF.format(use="mul(g, z)")) == ["g = one_plus_erf32(x)", "y = mul(g, z)"]
    assert "g = one_plus_erf16(x)" in selected(ERF.format(use="sub(g, z)"), "float16")
    assert "g = add(e, one)" in selected(ERF.format(use="sub(g, z)")), "its relative error counts"


def test_an_erf_with_another_reader_stays():
    text = ERF.format(use="mul(g, e)")
    assert selected(text) == ["e = erf(x)", "g = one_plus_erf32(x)", "y = mul(g, e)"]


RANDOM = """
    c = index_expr({place}, 'int64')
    u = uniform(s, c)
    p = constant({limit}, 'float32')
    t = lt({test})
    y = where(t, x, z)
"""


def test_a_threshold_is_one_instruction():
    text = RANDOM.format(place="i + 8", limit="0.25", test="u, p")
    assert (
        selected(text)
        == [
            "p = constant(0.25)",
            "t = uniform_below(s, i, 8, 0.25)",
            "y = where(t, x, z)",
        ][1:]
    )
    text = RANDOM.format(place="i + 8", limit="0.25", test="p, u")
    assert "t = uniform_above(s, i, 8, 0.25)" in selected(text)


@pytest.mark.parametrize("limit", ["0.0", "1.0", "-1.0", "2.0", "inf", "nan"])
def test_a_threshold_out_of_range_is_compared(limit):
    text = selected(RANDOM.format(place="i", limit=limit, test="u, p"))
    assert "u = uniform_at(s, i, 0)" in text and "t = lt(u, p)" in text


def test_a_random_number_that_is_used_twice_is_drawn():
    text = RANDOM.format(place="i", limit="0.5", test="u, p").replace(
        "where(t, x, z)", "where(t, u, z)"
    )
    assert {"u = uniform_at(s, i, 0)", "t = uniform_below(s, i, 0, 0.5)"} <= {*selected(text)}


def test_products_with_two_readers_are_rounded_before_additions():
    text = "p = mul(x, z)\ny = sub(p, p)"
    assert selected(text) == ["p = mul(x, z)", "y = sub_rn(p, p)"]
    assert selected("p = mul(x, z)\ny = add(p, x)") == ["p = mul(x, z)", "y = add(p, x)"]


SOFTMAX = """
@kernel(device='cuda')
def softmax(x: In('{dtype}', {size}), out: Out('{dtype}', {size})):
    for i in range(64):
        for r in reduce({columns}):
            v = load(x, [{columns}*i + r], '{dtype}')
            a = cast(v, 'float32')
            m = reduce('max', a, 'float32')
        for r in reduce({columns}):
            v1 = load(x, [{columns}*i + r], '{dtype}')
            a1 = cast(v1, 'float32')
            d1 = sub(a1, m)
            e1 = exp(d1)
            s = reduce('sum', e1, 'float32')
        l = log(s)
        for r in reduce({columns}):
            v2 = load(x, [{columns}*i + r], '{dtype}')
            a2 = cast(v2, 'float32')
            d2 = sub(a2, m)
            {last}
            w = cast(q, '{dtype}')
            store(out, [{columns}*i + r], w)
"""
QUOTIENT, LOG_SOFTMAX = (
    "e2 = exp(d2)\n            q = div(e2, s)",
    "f2 = sub(d2, l)\n            q = exp(f2)",
)


def last_body(last: str, config: Config | None = None, dtype: str = "bfloat16") -> list[str]:
    columns = 50304
    text = SOFTMAX.format(dtype=dtype, columns=columns, size=64 * columns, last=last)
    plan = plan_kernel(merge_loops(parse_kernel(text)), config)
    part = plan.parts[-1]
    return [show(step) for step in part.instructions if step.op not in ("load", "store", "cast")]


LOOP = Config(x=1, r=2048, num_warps=16)


def test_a_softmax_takes_the_reciprocal_of_its_sum():
    assert last_body(QUOTIENT, LOOP) == [
        "e2 = exp_difference(a2, m)",
        "s_inverse = reciprocal(s)",
        "q = mul(e2, s_inverse)",
    ]
    assert "e2 = exp(d2)" in last_body(QUOTIENT, LOOP, "float32")


def test_an_exponential_of_a_logarithm_is_a_quotient():
    assert last_body(LOG_SOFTMAX, LOOP) == [
        "q_exp = exp_difference(a2, m)",
        "s_inverse = reciprocal(s)",
        "q = mul(q_exp, s_inverse)",
    ]


def test_rows_in_registers_take_one_multiply_add():
    kept = replace(LOOP, grid=264)
    assert last_body(QUOTIENT, kept)[:3] == [
        "m_scale_1 = row_scale(m)",
        "m_scaled_1 = mul(m, m_scale_1)",
        "e2 = exp_scaled(a2, m_scale_1, m_scaled_1)",
    ]


def test_a_persistent_row_of_float32_keeps_its_division():
    persistent = Config(x=1, r=65536, num_warps=32, persistent=True)
    assert last_body(QUOTIENT, persistent, "float32")[-1] == "q = div_rn(e2, s)"
    assert last_body(QUOTIENT, persistent)[-1] == "q = mul(e2, s_inverse)"


def test_a_place_is_compared_in_32_bits():
    text = SOFTMAX.format(dtype="float32", columns=50304, size=64 * 50304, last=(
        "k = index_expr(r, 'int64')\n            t = load(n, [i], 'int64')\n"
        "            h = eq(k, t)\n            q = where(h, a2, d2)"
    )).replace("softmax(", "softmax(n: In('int64', 64), ")  # fmt: skip
    kernel = merge_loops(parse_kernel(text))
    lines = [show(step) for step in plan_kernel(kernel, LOOP).parts[-1].instructions]
    assert "t_place = narrow_place(t)" in lines and "h = eq_place(r, t_place)" in lines
    kept = [show(s) for s in plan_kernel(kernel, replace(LOOP, grid=264)).parts[-1].instructions]
    assert "t_late = after(t_place, s)" in kept and "h = eq_place(r, t_late)" in kept


def test_what_nothing_reads_is_dropped():
    step = Instruction("y", "exp", (), torch.float32)
    assert select_instructions([[step]], Facts([step], {})) == [()]
