"""ShapeEnv: symbols, guards with provenance, replacements, unbacked symbols, freezing."""

from __future__ import annotations

import threading

import pytest
import sympy
import torch
from symshapes import (
    DataDependentError,
    FloorDiv,
    FrozenEnvError,
    GuardOnDataDependent,
    Mod,
    ShapeEnv,
    WhileAny,
    expr_of,
    free_symbols,
    hint_of,
    python_text,
    statically_known_true,
    sym_int,
)
from symshapes.guards import current_user_line
from symshapes.process import OneThread


def test_every_size_has_its_own_symbol_until_a_guard_merges_them() -> None:
    env = ShapeEnv()
    a, b = env.create_symbol(8, "L['x'].size(0)"), env.create_symbol(8, "L['y'].size(0)")
    assert expr_of(a) != expr_of(b)
    assert a == b
    assert expr_of(a) == expr_of(b)
    assert [str(g.expr) for g in env.guards] == ["Eq(s0, s1)"]
    assert env.replacements == {expr_symbol(env, 1): expr_symbol(env, 0)}
    assert statically_known_true(a * 2 == b + a)


def expr_symbol(env: ShapeEnv, index: int) -> sympy.Symbol:
    return list(env.hints)[index]


def test_guard_carries_the_users_line() -> None:
    env = ShapeEnv()
    size = env.create_symbol(8, "x.size(0)")
    if size > 5:
        pass
    (guard,) = env.guards
    assert "test_env.py" in guard.provenance and "if size > 5:" in guard.provenance
    assert env.sources[expr_symbol(env, 0)] == ["x.size(0)"]


def test_provenance_is_replaceable() -> None:
    env = ShapeEnv(provenance=lambda: "line 7")
    assert env.create_symbol(8) > 5
    assert env.guards[0].provenance == "line 7"


def test_numbers_are_their_own_bounds() -> None:
    env = ShapeEnv()
    size = env.create_symbol(8, "x.size(0)")
    assert size == 8 and env.replacements
    assert env.bounds(3) == (3, 3) and env.bounds(2.5) == (2.5, 2.5)


def test_declared_bounds_are_input_guards() -> None:
    env = ShapeEnv()
    env.create_symbol(8, "a")
    env.create_symbol(8, "b", lower=4, upper=16)
    assert [str(g.expr) for g in env.input_guards()] == ["s0 >= 2", "s1 >= 4", "s1 <= 16"]
    s0, s1 = env.hints
    assert env.failing_guards({s0: 8, s1: 16}) == []
    assert [g.provenance for g in env.failing_guards({s0: 1, s1: 17})] == ["a", "b"]


def test_hint_outside_its_bounds_is_refused() -> None:
    with pytest.raises(ValueError, match=r"example size 1 of x is outside \[2, None\]"):
        ShapeEnv().create_symbol(1, "x")


def test_int_specialises_with_a_guard() -> None:
    env = ShapeEnv()
    size = env.create_symbol(8)
    assert int(size) == 8
    assert [str(g.expr) for g in env.guards] == ["Eq(s0, 8)"]
    assert expr_of(size) == 8


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda s: (s * 4) // 4, "s0"),
        (lambda s: (s * 4 + 3) // 4, "s0"),
        (lambda s: s // 2 // 3, "(s0 // 6)"),
        (lambda s: (s * 6) % 4, "2*(s0 % 2)"),
        (lambda s: s % (s * 4), "s0"),
        (lambda s: (s * s) // s, "s0"),
        (lambda s: s - s, "0"),
        (lambda s: int(s * 2.0) if False else torch.sym_int(s * 2.0), "2*s0"),
        (lambda s: torch.sym_int(s / 2), "(s0 // 2)"),
        (lambda s: torch.sym_max(s, 2), "s0"),
    ],
)
def test_simplification(build: object, expected: str) -> None:
    env = ShapeEnv()
    result = build(env.create_symbol(8))  # type: ignore[operator]
    text = str(expr_of(result))
    assert text == expected or (
        expected == "s0" and env.statically_known(sympy.Eq(expr_of(result), next(iter(env.hints))))
    )
    assert not env.guards


@pytest.mark.parametrize(
    "relation",
    [
        lambda a, b: a >= 2,
        lambda a, b: a * b > 3,
        lambda a, b: a + 1 != 0,
        lambda a, b: a * b >= a,
        lambda a, b: a // 2 <= a,
        lambda a, b: (a + 3) // 4 >= 1,
        lambda a, b: a % 5 < 5,
        lambda a, b: torch.sym_max(a, b) >= a,
        lambda a, b: a % (a * 4) != 0,
        lambda a, b: (a - 1) // 2 + 1 >= 1,
    ],
)
def test_known_without_guard(relation: object) -> None:
    env = ShapeEnv()
    assert bool(relation(env.create_symbol(8), env.create_symbol(12)))  # type: ignore[operator]
    assert not env.guards


def test_recorded_facts_answer_later_questions() -> None:
    env = ShapeEnv()
    a, b = env.create_symbol(8), env.create_symbol(12)
    assert b > a
    assert a < b and b - a >= 1 and b != a and not b <= a
    assert len(env.guards) == 1
    assert a > 5
    assert a >= 6 and env.bounds(expr_of(a)) == (6, float("inf"))
    assert len(env.guards) == 2


def test_unbacked_symbols_cannot_be_decided() -> None:
    env = ShapeEnv(allow_unbacked=True)
    u = env.create_unbacked()
    with pytest.raises(GuardOnDataDependent, match=r"cannot decide .*u0") as caught:
        bool(u > 3)
    assert "test_env.py" in caught.value.user_line
    assert isinstance(caught.value, DataDependentError)
    assert u.node.hint is None and not u.node.has_hint()
    with pytest.raises(GuardOnDataDependent):
        hint_of(u)


def test_checks_on_unbacked_symbols_become_deferred_asserts() -> None:
    env = ShapeEnv(allow_unbacked=True)
    u = env.create_unbacked()
    torch._check(u >= 4)
    assert u >= 3
    assert [str(a.expr) for a in env.deferred_asserts] == ["u0 >= 4"]
    assert not env.guards


def test_suppressed_and_frozen() -> None:
    env = ShapeEnv()
    size = env.create_symbol(8)
    with env.suppress_guards():
        assert size > 5
    assert not env.guards
    with env.freeze(), pytest.raises(FrozenEnvError, match="s0 > 5"):
        bool(size > 5)
    with env.freeze():
        assert size > 1


def test_helpers() -> None:
    env = ShapeEnv()
    size = env.create_symbol(8)
    (symbol,) = env.hints
    assert expr_of(3) == 3 and hint_of(3) == 3 and free_symbols(3) == set()
    assert hint_of(size * 2) == 16 and free_symbols([size, 4]) == {symbol}
    twice = sym_int(symbol * 2, env)
    assert isinstance(twice, torch.SymInt) and hint_of(twice) == 16
    assert sym_int(sympy.Integer(3), env) == 3 and type(sym_int(sympy.Integer(3), env)) is int
    assert env.evaluate(FloorDiv(symbol, 3) + Mod(symbol, 3), {symbol: 11}) == 5
    with pytest.raises(KeyError, match="s0"):
        env.evaluate(symbol, {})
    assert python_text(
        sympy.And(sympy.Ge(FloorDiv(symbol, 2), 1), sympy.Ne(symbol, 7)), {symbol: "n"}
    ) in (
        "((n // 2) >= 1 and n != 7)",
        "(((n // 2) >= 1) and (n != 7))",
        "((n != 7) and ((n // 2) >= 1))",
    )


def test_a_symbolic_bool_as_a_number_is_a_number() -> None:
    size = ShapeEnv().create_symbol(8, "L['x'].size(0)")
    for wanted, number in ((float, torch.sym_float(size > 4)), (int, torch.sym_int(size > 4))):
        node = getattr(number, "node", None)
        assert (type(number) if node is None else node.pytype) is wanted
        assert number == 1


def test_a_bool_among_numbers_is_a_number() -> None:
    node = ShapeEnv().create_symbol(8, "L['x'].size(0)").node
    for method, wanted in (
        ("add", 9),
        ("mul", 8),
        ("gt", True),
        ("eq", False),
        ("int_floordiv", 8),
    ):
        assert getattr(node, method)(node.wrap_bool(True)).hint == wanted


def test_conjunctions_are_known_by_their_parts() -> None:
    env = ShapeEnv()
    env.create_symbol(8), env.create_symbol(9)
    a, b = env.hints
    yes, no, unknown = sympy.Ge(a + b, 3), sympy.Lt(a * b, 4), sympy.Gt(a, 5)
    for parts, conjunction, disjunction in (
        ((yes, no), False, True), ((yes, unknown), None, True), ((no, unknown), False, None),
        ((yes, yes), True, True),
    ):  # fmt: skip
        assert env.statically_known(sympy.And(*parts, evaluate=False)) is conjunction
        assert env.statically_known(sympy.Or(*parts, evaluate=False)) is disjunction
    assert env.statically_known(sympy.Not(no, evaluate=False)) is True
    assert env.statically_known(sympy.Symbol("flag")) is None
    assert not env.guards


@pytest.mark.parametrize("divisor", [2.5, -1.5, 3.0, 4])
def test_quotients_and_remainders_of_floats_are_pythons(divisor: float) -> None:
    env = ShapeEnv()
    size = env.create_symbol(8)
    (symbol,) = env.hints
    for make in (
        lambda x: x // divisor,
        lambda x: x % divisor,
        lambda x: (x * 0.5) // divisor,
        lambda x: (x / 3) % divisor,
    ):
        made = make(size)
        assert type(made) is (torch.SymInt if type(make(8)) is int else torch.SymFloat)
        for value in (8, 11):
            found, wanted = env.evaluate(expr_of(made), {symbol: value}), make(value)
            assert type(wanted)(found) == pytest.approx(wanted)


def test_a_node_of_a_bool_becomes_one_of_a_number() -> None:
    truth = (ShapeEnv().create_symbol(8) > 4).node
    assert truth.sym_int().pytype is int and truth.sym_float().pytype is float


def test_frames_of_files_are_left_out_of_the_users_line() -> None:
    assert "test_env.py" in current_user_line()
    assert "test_env.py" not in current_user_line(lambda path: path.endswith("test_env.py"))


def test_a_setting_of_the_process_ends_with_its_last_user() -> None:
    calls: list[str] = []
    setting = WhileAny(
        lambda: calls.append("begin") or len(calls), lambda before: calls.append(f"end {before}")
    )
    for _ in range(2):
        with setting, setting:
            assert setting.before is not None
        assert setting.before is None
    assert calls == ["begin", "end 1", "begin", "end 3"]


def test_one_thread_is_inside_until_it_lets_others_in() -> None:
    lock, order = OneThread(), []

    def enter(name: str) -> None:
        with lock.held():
            order.append(name)

    def start(name: str) -> threading.Thread:
        thread = threading.Thread(target=enter, args=(name,))
        thread.start()
        return thread

    with lock.held(), lock.held():
        first = start("first")
        first.join(0.05)
        order.append("inside")
        with lock.released():
            first.join()
            with lock.held(), lock.released():
                start("second").join()
        third = start("third")
        third.join(0.05)
        order.append("inside")
    third.join()
    assert order == ["inside", "first", "second", "inside", "third"]


def test_a_wait_may_be_given_up() -> None:
    lock, found = OneThread(), []

    def give_up() -> None:
        raise TimeoutError

    def wait() -> None:
        try:
            with lock.held(give_up):
                found.append("inside")
        except TimeoutError:
            found.append("gave up")

    with lock.held():
        thread = threading.Thread(target=wait)
        thread.start()
        thread.join()
    wait()
    assert found == ["gave up", "inside"]
