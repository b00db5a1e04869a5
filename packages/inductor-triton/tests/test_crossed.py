"""Clamped indices without checks, and row reductions that read an operand across their rows."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from inductor_triton import Config, generate_source
from inductor_triton.kernels import heuristics, tiling
from inductor_triton.kernels.kernel_plan import symbol_bounds
from inductor_triton.kernels.passes.online_softmax import OnlinePair, one_pass
from inductor_triton.kernels.value_bounds import proven_indices
from inductor_triton.launching.compile import compile_ptx
from inductor_triton.launching.interpret import interpreted
from loopir import parse_kernel

ROWS, COLUMNS = 96, 128
CLAMPED = f"""
@kernel(device='cuda', vector='r')
def scores(idx: In('int64', {ROWS * COLUMNS}), x: In('bfloat16', {ROWS * COLUMNS}), t: In('bfloat16', {ROWS * COLUMNS}), out: Out('bfloat16', {ROWS * COLUMNS})):
    for i in range({ROWS}):
        for r in reduce({COLUMNS}):
            {{0}}
            m = reduce('max', a, 'float32')
        for r in reduce({COLUMNS}):
            {{1}}
            d = sub(b, m)
            e = exp(d)
            s = reduce('sum', e, 'float32')
        for r in reduce({COLUMNS}):
            {{2}}
            f = sub(c, m)
            g = exp(f)
            q = div(g, s)
            h = cast(q, 'bfloat16')
            store(out, [{COLUMNS}*i + r], h)
"""


def operand(name: str, is_clamped: bool = True) -> str:
    """The sum of a row's elements and of elements gathered across the rows."""
    clamp = f"""{name}2 = constant(0, 'int64')
            {name}3 = maximum({name}1, {name}2)
            {name}4 = constant({ROWS - 1}, 'int64')
            {name}5 = minimum({name}3, {name}4)
            """
    index = f"{name}5" if is_clamped else f"{name}1"
    return f"""{name}1 = load(idx, [{COLUMNS}*i + r], 'int64')
            {clamp if is_clamped else ""}i_{name} = indirect({index}, {ROWS})
            {name}6 = load(t, [{ROWS}*r + i_{name}], 'bfloat16')
            {name}7 = cast({name}6, 'float32')
            {name}8 = load(x, [{COLUMNS}*i + r], 'bfloat16')
            {name}9 = cast({name}8, 'float32')
            {name} = add({name}7, {name}9)"""


def scores(is_clamped: bool = True) -> str:
    return CLAMPED.format(*(operand(name, is_clamped) for name in "abc"))


def test_a_clamped_index_is_not_checked():
    clamped, other = (generate_source(parse_kernel(scores(flag))).text for flag in (True, False))
    assert "errors" not in clamped
    assert "errors" in other


def test_an_index_is_reported_once():
    kernel = parse_kernel(scores(False))
    source = generate_source(kernel, Config(x=4, r=COLUMNS, persistent=True)).text
    assert source.count("tl.store(errors") == 1


def test_several_rows_that_are_read_across_are_one_block():
    kernel = parse_kernel(scores())
    work = tiling.describe(kernel)
    assert work.crosses
    short = heuristics.reduction(replace(work, points=1 << 16))
    assert (short.x, short.r, short.persistent) == (8, COLUMNS, True)
    long = heuristics.reduction(replace(work, points=1 << 16, reduction=1 << 14))
    assert (long.x, long.r, long.persistent) == (8, 128, False)
    assert tiling.held_blocks(kernel, tiling.choose_tiling(kernel, work, long), work) == 0
    straight = parse_kernel(scores().replace(f"{ROWS}*r + i_", f"{COLUMNS}*i + i_"))
    assert not tiling.describe(straight).crosses


def test_one_pass_reads_the_gathered_elements():
    parts = one_pass(parse_kernel(scores()).bodies)
    assert sum(isinstance(part, OnlinePair) for part in parts) == 1
    # the second pass gathers other elements
    other = scores().replace(f"{ROWS}*r + i_b", f"{ROWS}*r + {ROWS - 1} - i_b")
    assert not any(isinstance(part, OnlinePair) for part in one_pass(parse_kernel(other).bodies))


@pytest.mark.parametrize(
    "config", [None, Config(x=4, r=COLUMNS, persistent=True), Config(x=64, r=8)]
)
@pytest.mark.parametrize("is_clamped", [True, False])
def test_values(config: Config | None, is_clamped: bool):
    torch.manual_seed(0)
    low, high = (-40, ROWS + 40) if is_clamped else (0, ROWS)
    idx = torch.randint(low, high, (ROWS, COLUMNS))
    x, t = torch.randn(ROWS, COLUMNS).bfloat16(), torch.randn(COLUMNS, ROWS).bfloat16()
    out = torch.zeros(ROWS * COLUMNS, dtype=torch.bfloat16)
    launch = interpreted(generate_source(parse_kernel(scores(is_clamped)), config))
    launch(idx.flatten(), x.flatten(), t.flatten(), out)
    gathered = t.float().gather(1, idx.clamp(0, ROWS - 1).t()).t()
    expected = (gathered + x.float()).softmax(-1)
    torch.testing.assert_close(out.view(ROWS, COLUMNS).float(), expected, rtol=1e-2, atol=1e-3)


def test_it_compiles():
    assert "ex2.approx" in compile_ptx(generate_source(parse_kernel(scores())))


OPERATIONS = ("add", "sub", "mul", "minimum", "maximum", "neg", "abs")


def chain(seed: int) -> str:
    """A kernel that looks up an element at an index from random arithmetic."""
    draw = random.Random(seed)
    names = ["p"]
    lines = ["p = index_expr(3*i - 7, 'int64')"]
    for number in range(draw.randint(1, 6)):
        op = draw.choice(OPERATIONS)
        lines.append(f"k{number} = constant({draw.randint(-9, 9)}, 'int64')")
        names.append(f"k{number}")
        first = draw.choice(names)
        second = None if op in ("neg", "abs") else draw.choice(names)
        lines.append(f"v{number} = {op}({first}{'' if second is None else ', ' + second})")
        names.append(f"v{number}")
    size = draw.choice([1, 10, 100, 1000])
    body = "\n        ".join(lines)
    return f"""
@kernel(device='cuda')
def look(x: In('float32', {size}), out: Out('float32', 11)):
    for i in range(11):
        {body}
        t = indirect({names[-1]}, {size})
        a = load(x, [t], 'float32')
        store(out, [i], a)
"""


@pytest.mark.parametrize("seed", range(40))
def test_what_is_proven_is_inside(seed: int):
    kernel = parse_kernel(chain(seed))
    proven = proven_indices(kernel.steps, symbol_bounds(kernel))
    (look,) = (step for step in kernel.steps if step.op == "indirect")
    functions = {
        "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
        "minimum": min, "maximum": max, "neg": lambda a: -a, "abs": abs,
    }  # fmt: skip
    found = []
    for i in range(11):
        values: dict[str, int] = {"p": 3 * i - 7}
        for step in kernel.steps:
            if step.op == "constant":
                values[str(step.result)] = int(step.args[0])  # type: ignore[call-overload]
            elif step.op in functions:
                values[str(step.result)] = functions[step.op](*(values[str(a)] for a in step.args))
        found.append(values[str(look.args[0])])
    if str(look.result) in proven:
        assert all(0 <= value < int(look.args[1]) for value in found)  # type: ignore[call-overload]


def test_some_are_proven():
    kernels = [parse_kernel(chain(seed)) for seed in range(40)]
    proven = [bool(proven_indices(kernel.steps, symbol_bounds(kernel))) for kernel in kernels]
    assert any(proven)
    assert not all(proven)


def test_sums_that_wrap_around_prove_nothing():
    text = """
@kernel(device='cuda')
def look(x: In('float32', 300), n: In('uint8', 4), out: Out('float32', 4)):
    for i in range(4):
        a = load(n, [i], 'uint8')
        {0}
        t = indirect(b, 300)
        c = load(x, [t], 'float32')
        store(out, [i], c)
"""
    wide, narrow = (
        parse_kernel(text.format(step))
        for step in ("b = cast(a, 'int32')", "d = cast(a, 'int8')\n        b = neg(d)")
    )
    assert proven_indices(wide.steps, symbol_bounds(wide))
    assert not proven_indices(narrow.steps, symbol_bounds(narrow))
