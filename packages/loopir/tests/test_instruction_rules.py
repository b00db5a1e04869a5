"""Rules on instructions: what a pattern matches, and what replaces it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loopir import (
    Instruction,
    Value,
    apply_rules,
    call,
    definitions,
    matches,
    parse_pattern,
    remove_dead,
    rule,
    write_call,
)


def step(text: str) -> Instruction:
    """``'c = add(a, b)'`` or ``'k = constant(1.5)'`` as an instruction."""
    result, _, rest = text.partition(" = ")
    op, _, args = rest.rstrip(")").partition("(")

    def operand(arg: str) -> object:
        try:
            return float(arg)
        except ValueError:
            return arg.strip("'") if arg.startswith("'") else Value(arg)

    operands = tuple(operand(arg) for arg in args.split(", ") if arg)
    return Instruction(result if result != "_" else None, op, operands, torch.float32)  # type: ignore[arg-type]


def show(instruction: Instruction) -> str:
    return (
        f"{instruction.result or '_'} = {instruction.op}({', '.join(map(str, instruction.args))})"
    )


def found(pattern: str, *steps: str) -> list[dict[str, str]]:
    instructions = [step(text) for text in steps]
    ways = matches(parse_pattern(pattern), instructions[-1], definitions(instructions[:-1]))
    return [{name: str(value) for name, value in way.items()} for way in ways]


def applied(rules, *steps: str, facts: object = None) -> list[str]:
    (block,) = apply_rules([[step(text) for text in steps]], rules, facts)
    return [show(instruction) for instruction in block]


def test_names_match_any_operand():
    assert found("sub(x, y)", "c = sub(a, b)") == [{"x": "a", "y": "b"}]
    assert found("sub(x, y)", "c = div(a, b)") == []


def test_a_name_matches_one_operand():
    assert found("sub(x, x)", "c = sub(a, a)") == [{"x": "a"}]
    assert found("sub(x, x)", "c = sub(a, b)") == []


def test_commutative_operations_match_in_either_order():
    assert found("mul(exp(x), y)", "e = exp(a)", "c = mul(b, e)") == [{"x": "a", "y": "b"}]
    assert found("sub(exp(x), y)", "e = exp(a)", "c = sub(b, e)") == []
    both = found("add(exp(x), y)", "e = exp(a)", "f = exp(b)", "c = add(e, f)")
    assert both == [{"x": "a", "y": "f"}, {"x": "b", "y": "e"}]


def test_constants():
    assert found("mul(x, 0.5)", "k = constant(0.5)", "c = mul(k, a)") == [{"x": "a"}]
    assert found("mul(x, 0.5)", "k = constant(0.25)", "c = mul(k, a)") == []
    assert found("mul(x, K)", "k = constant(0.25)", "c = mul(a, k)") == [{"x": "a", "K": "0.25"}]
    assert found("mul(x, K)", "c = mul(a, b)") == []


def test_kinds_and_results():
    steps = ("m = reduce('max', a)", "d = sub(a, m)", "e = exp(d)")
    assert found("exp(difference := sub(x, reduce('max', x)))", *steps) == [
        {"difference": "d", "x": "a"}
    ]
    assert found("exp(sub(x, reduce('sum', x)))", *steps) == []


@pytest.mark.parametrize("text", ["x", "1.0", "f.g(x)", "(add)(x)(y)", "x + y"])
def test_a_pattern_is_a_call(text):
    with pytest.raises(ValueError, match="no call of an operation"):
        parse_pattern(text)


@rule("exp(sub(x, log(y)))")
def quotient(facts, step, x, y):
    return call("mul", call("exp", x), call("reciprocal", y))


@rule("exp(x)")
def fast(facts, step, x):
    return call("fast_exp", x) if step.result in facts else None


def test_a_replacement_keeps_the_name_of_the_result():
    steps = ("l = log(s)", "d = sub(a, l)", "r = exp(d)", "_ = store(r)")
    assert applied([quotient], *steps) == [
        "l = log(s)",
        "d = sub(a, l)",
        "r_exp = exp(a)",
        "r_reciprocal = reciprocal(s)",
        "r = mul(r_exp, r_reciprocal)",
        "_ = store(r)",
    ]


def test_rules_apply_to_what_they_made():
    steps = ("l = log(s)", "d = sub(a, l)", "r = exp(d)")
    rewritten = applied([quotient, fast], *steps, facts={"r_exp"})
    assert rewritten[2:4] == ["r_exp = fast_exp(a)", "r_reciprocal = reciprocal(s)"]


def test_a_rule_may_decline():
    assert applied([fast], "b = exp(a)", "c = exp(a)", facts={"c"}) == [
        "b = exp(a)",
        "c = fast_exp(a)",
    ]


def test_equal_new_instructions_of_a_block_are_one():
    steps = [step(text) for text in ("l = log(s)", "d = sub(a, l)", "r = exp(d)", "q = exp(d)")]
    first, second = apply_rules([steps, [step("t = exp(d)")]], [quotient])
    assert [show(each) for each in first][-1] == "q = mul(r_exp, r_reciprocal)"
    assert [each.op for each in second] == ["exp", "reciprocal", "mul"]


def test_new_names_are_free():
    assert applied([quotient], "r_exp = log(s)", "d = sub(a, r_exp)", "r = exp(d)")[2:] == [
        "r_exp_1 = exp(a)",
        "r_reciprocal = reciprocal(s)",
        "r = mul(r_exp_1, r_reciprocal)",
    ]


def test_a_call_is_written_operands_first():
    mean = call("mul", Value("t"), call("constant", 0.25), name="mean")
    total = call("reduce", "sum", call("mul", mean, mean))
    assert [show(each) for each in write_call(total, "s", torch.float32)] == [
        "s_constant = constant(0.25)",
        "mean = mul(t, s_constant)",
        "s_mul = mul(mean, mean)",
        "s = reduce(sum, s_mul)",
    ]


def test_dead_instructions():
    outer = [step("a = load('x')"), step("b = exp(a)"), step("c = log(a)")]
    inner = [step("d = add(b, b)"), step("_ = store('y', d)"), step("_ = store('z', c)")]
    live = remove_dead([outer, inner], stored={"y"})
    assert [[each.result for each in block] for block in live] == [["a", "b"], ["d", None]]
    assert len(remove_dead([outer, inner])[1]) == 3


@given(st.permutations(["a", "b", "c"]), st.booleans(), st.booleans())
def test_a_product_matches_however_it_is_written(names, left, right):
    """(x * y) + z: every order of operands matches in one way."""
    x, y, z = names
    product = f"p = mul({x}, {y})" if left else f"p = mul({y}, {x})"
    total = f"t = add(p, {z})" if right else f"t = add({z}, p)"
    ways = found("add(mul(u, v), w)", product, total)
    assert {(frozenset((way["u"], way["v"])), way["w"]) for way in ways} == {(frozenset((x, y)), z)}
