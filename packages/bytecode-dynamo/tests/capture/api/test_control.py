"""Functions that stay out of graphs or stand in them, stances, breaks as errors."""

from __future__ import annotations

import math

import bytecode_dynamo as bd
import pytest
import torch

X = torch.tensor([1.0, 2.0, 3.0])


def counted():
    """A backend and the list that grows with each run of a graph."""
    runs = []

    def backend(gm, example_inputs):
        def call(*inputs):
            runs.append(gm)
            return gm.forward(*inputs)

        return call

    return backend, runs


def breaking(x):
    y = x + 1
    bd.graph_break("here")
    return y * 2


# -- stances ---------------------------------------------------------------------------------------


def test_force_eager_ignores_what_is_compiled_and_compiles_nothing():
    backend, runs = counted()
    captured = bd.optimize(backend)(lambda x: x + 1)
    captured(X)
    with bd.set_stance("force_eager"):
        assert torch.equal(captured(X), X + 1)
        captured(torch.ones(5))
    assert (len(runs), bd.counters["graphs"]) == (1, 1)
    captured(X)
    assert len(runs) == 2


def test_eager_on_recompile_uses_what_fits():
    backend, runs = counted()
    captured = bd.optimize(backend)(lambda x: x + 1)
    captured(X)
    with bd.set_stance("eager_on_recompile"):
        captured(X)
        assert torch.equal(captured(torch.ones(5)), torch.full((5,), 2.0))
    assert (len(runs), bd.counters["graphs"]) == (2, 1)


def test_fail_on_recompile_says_which_guard_failed():
    captured = bd.optimize("eager")(lambda x: x + 1)
    captured(X)
    with bd.set_stance("fail_on_recompile"):
        captured(X)
        with pytest.raises(bd.exc.RecompileError, match=r"size\(0\) was 3, now 5"):
            captured(torch.ones(5))
        with pytest.raises(RuntimeError, match="nothing is compiled"):
            bd.optimize("eager")(lambda x: x + 2)(X)
    captured(torch.ones(5))


def test_stance_as_function_and_decorator():
    backend, runs = counted()
    captured = bd.optimize(backend)(lambda x: x + 1)
    bd.set_stance("force_eager")
    captured(X)
    bd.set_stance("default")

    @bd.set_stance("force_eager")
    def eagerly(x):
        return captured(x)

    assert torch.equal(eagerly(X), X + 1)
    assert runs == []
    captured(X)
    assert len(runs) == 1


def test_stances_nest():
    backend, runs = counted()
    captured = bd.optimize(backend)(lambda x: x + 1)
    with bd.set_stance("force_eager"):
        with bd.set_stance("default"):
            captured(X)
        captured(X)
    assert len(runs) == 1


# -- breaks as errors ------------------------------------------------------------------------------


def test_error_on_graph_break_around_a_call():
    captured = bd.optimize("eager")(breaking)
    with bd.error_on_graph_break(True), pytest.raises(bd.exc.Unsupported, match="here"):
        captured(X)
    assert torch.equal(captured(X), (X + 1) * 2)


def test_error_on_graph_break_inside_captured_code():
    def allowed(x):
        x = x + 1
        bd.graph_break()
        with bd.error_on_graph_break(True):
            x = x * 2
            with bd.error_on_graph_break(False):
                bd.graph_break()
                x = x + 3
        return x

    def forbidden(x):
        x = x + 1
        bd.graph_break()
        with bd.error_on_graph_break(True):
            x = x * 2
            bd.graph_break()
        return x

    assert torch.equal(bd.optimize("eager")(allowed)(X), (X + 1) * 2 + 3)
    assert bd.counters["graph_breaks"] == 2
    with pytest.raises(bd.exc.Unsupported, match="BD009"):
        bd.optimize("eager")(forbidden)(X)


def test_error_on_graph_break_as_decorator():
    strict = bd.error_on_graph_break(True)(breaking)
    assert torch.equal(strict(X), (X + 1) * 2)
    with pytest.raises(bd.exc.Unsupported, match="BD009"):
        bd.optimize("eager")(lambda x: strict(x * 2))(X)


def test_fullgraph_wins_over_allowed_breaks():
    with bd.error_on_graph_break(False), pytest.raises(bd.exc.Unsupported):
        bd.optimize("eager", fullgraph=True)(breaking)(X)


# -- functions with a meaning of their own ---------------------------------------------------------


def test_allowed_function_is_one_call_of_the_graph():
    @bd.allow_in_graph
    def twice(x):
        for _ in range(3):
            x = x + 1
        return {"sum": x}, 3

    found = bd.explain(lambda x: twice(x)[0]["sum"] * twice(x)[1])(X)
    assert (found.graph_count, found.graph_break_count) == (1, 0)
    assert torch.equal(found.result, (X + 3) * 3)
    assert sum(node.target is twice for node in found.graphs[0].graph.nodes) == 2


def test_allowed_lambda_and_method():
    class Scale:
        factor = 3

        def by(self, x):
            return x * self.factor

    f, scale = (lambda x: x + 1), Scale()
    bd.allow_in_graph([f, scale.by])
    captured = bd.optimize("eager", fullgraph=True)(lambda x: scale.by(f(x)))
    assert torch.equal(captured(X), (X + 1) * 3)


def test_disallowed_function_breaks_until_allowed_again():
    def f(x):
        return torch.sub(x + 1, x) * 2

    bd.disallow_in_graph(torch.sub)
    try:
        found = bd.explain(f)(X)
        assert (found.graph_break_count, found.break_reasons[0].id) == (1, "BD018")
        assert torch.equal(found.result, f(X))
    finally:
        bd.allow_in_graph(torch.sub)
    assert bd.explain(f)(X).graph_break_count == 0


def test_constant_result_is_computed_once():
    calls = []

    @bd.assume_constant_result
    def lookup(n):
        calls.append(n)
        return {"scale": n * 2}

    captured = bd.optimize("eager", fullgraph=True)(lambda x, n: x * lookup(n)["scale"])
    for _ in range(3):
        assert torch.equal(captured(X, 3), X * 6)
    assert calls == [3]
    assert torch.equal(captured(X, 4), X * 8)


def test_substitute_is_evaluated_in_place_of_the_original():
    def f(x):
        return x * math.perm(5, 2)

    @bd.substitute_in_graph(math.perm, skip_signature_check=True)
    def perm(n, k):
        return n * (n - 1) if k == 2 else 0

    assert torch.equal(bd.optimize("eager", fullgraph=True)(f)(X), X * 20)


def test_substitute_for_a_python_function_must_have_its_signature():
    def original(a, b=1):
        return a + b

    with pytest.raises(TypeError, match="signature"):
        bd.substitute_in_graph(original)(lambda a: a)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: bd.allow_in_graph(3), "int"),
        (lambda: bd.disallow_in_graph([3]), "int"),
        (lambda: bd.assume_constant_result(None), "NoneType"),
        (lambda: bd.substitute_in_graph(int), "int"),
        (lambda: bd.substitute_in_graph(math.perm)(3), "int"),
        (lambda: bd.set_stance("eager"), "force_eager"),
        (lambda: bd.error_on_graph_break("yes"), "yes"),
        (lambda: bd.disable(7), "int"),
        (lambda: bd.mark_unbacked(3, 0), "int"),
        (lambda: bd.mark_dynamic(X, "0"), "'0'"),
        (lambda: bd.mark_dynamic(X, 0, min=4), "between"),
    ],
)
def test_bad_arguments_are_named(call, words):
    with pytest.raises(bd.exc.UserError, match=words):
        call()


@pytest.mark.parametrize("mark", [bd.mark_dynamic, bd.mark_static, bd.mark_unbacked])
def test_marks_reject_dimensions_that_are_not_there(mark):
    with pytest.raises(IndexError, match="dimension 7"):
        mark(torch.ones(3), 7)


def test_disable_says_why():
    quiet = bd.disable(lambda x: x + 1, reason="keeps a log")
    found = bd.explain(lambda x: quiet(x * 2) * 3)(X)
    assert "keeps a log" in str(found)


def test_disable_without_recursion_captures_what_is_called():
    @bd.disable(recursive=False)
    def outer(x):
        return inner(x) + 1

    def inner(x):
        return x * 2

    found = bd.explain(lambda x: outer(x + 1))(X)
    assert torch.equal(found.result, (X + 1) * 2 + 1)
    assert [len(g.graph.nodes) - 2 for g in found.graphs] == [1, 1]


def test_disabled_module_runs_eagerly():
    module = torch.nn.Linear(3, 3)
    quiet = bd.disable(module)
    found = bd.explain(lambda x: quiet(x * 2))(X)
    assert torch.equal(found.result, module(X * 2))
    assert found.op_count == 1


# -- marks -----------------------------------------------------------------------------------------


def test_specialised_mark_is_an_error_with_the_line():
    x = torch.ones(4, 4)
    bd.mark_dynamic(x, 0)
    with pytest.raises(
        bd.exc.UserError, match=r"(?s)size\(0\).*works for 4 only.*torch.ones\(4, 1\)"
    ):
        bd.optimize("eager")(lambda x: x + torch.ones(4, 1))(x)


def test_unbacked_size_has_one_graph_for_every_size():
    captured = bd.optimize("eager", fullgraph=True)(lambda x: (x * 2 + x.shape[0], x.shape[0]))
    for n in (1, 0, 5):
        x = torch.ones(n, 4)
        bd.mark_unbacked(x, 0)
        result, size = captured(x)
        assert torch.equal(result, torch.full((n, 4), 2.0 + n))
        assert size == n
    assert bd.counters["graphs"] == 1


def test_question_about_an_unbacked_size_breaks_the_graph():
    x = torch.ones(5, 4)
    bd.mark_unbacked(x, 0)
    found = bd.explain(lambda x: x + 1 if x.shape[0] > 3 else x - 1)(x)
    assert found.break_reasons[0].id == "BD001"
    assert torch.equal(found.result, x + 1)
