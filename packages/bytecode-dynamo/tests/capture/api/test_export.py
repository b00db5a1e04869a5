"""Whole programs as one GraphModule: signature, nesting, state, and what is refused."""

from __future__ import annotations

import collections
import inspect

import bytecode_dynamo as bd
import pytest
import torch

X = torch.tensor([1.0, 2.0, 3.0])
Pair = collections.namedtuple("Pair", "left right")


def scaled(x, y=2, *rest, k=1, **others):
    return {"a": x * y + k, "b": [x, 3, others["z"] + rest[0]], "c": Pair(x + 1, None)}


def test_arguments_and_result_are_nested_as_in_the_program(alike):
    graph, guards = bd.export(scaled)(X, 5, X * 2, k=3, z=X)
    arguments, named = (X * 7, 5, X * 3), {"k": 3, "z": X + 1}
    assert alike(graph(*arguments, **named), scaled(*arguments, **named))
    assert guards


def test_parameters_are_those_of_the_original():
    graph, _ = bd.export(scaled)(X, 5, X, z=X)
    kinds = [(p.name, p.kind) for p in inspect.signature(graph.forward).parameters.values()]
    assert kinds == [(p.name, p.kind) for p in inspect.signature(scaled).parameters.values()]


def test_keyword_only_and_positional_only(alike):
    def f(x, /, y, *, scale=2):
        return x * scale + y

    graph, _ = bd.export(f)(X, X, scale=3)
    assert alike(graph(X, y=X * 2, scale=3), f(X, X * 2, scale=3))


def test_module_keeps_the_names_of_its_state_and_is_not_run(alike):
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    graph, _ = bd.export(module)(torch.ones(5, 3))
    assert set(graph.state_dict()) == set(module.state_dict())
    assert module[1].num_batches_tracked == 0
    module.eval()
    graph, _ = bd.export(module)(torch.ones(5, 3))
    x = torch.randn(5, 3)
    assert alike(graph(x), module(x))


def test_marked_sizes_are_symbolic(alike):
    def f(x):
        return torch.zeros(x.shape[0]), x.reshape(-1) * x.shape[0]

    x = torch.randn(5, 3)
    bd.mark_dynamic(x, 0)
    graph, _ = bd.export(f)(x)
    for n in (2, 7):
        y = torch.randn(n, 3)
        assert alike(graph(y), f(y))


def test_other_sizes_and_numbers_are_refused():
    graph, _ = bd.export(lambda x, n: x * n)(X, 2)
    for arguments, words in [
        ((torch.ones(4), 2), r"size\(0\) was 3, now 4"),
        ((X, 3), "was 2, now 3"),
        (([X], 2), "nested"),
    ]:
        with pytest.raises(bd.exc.UserError, match=words):
            graph(*arguments)


def test_inputs_written_in_place(alike):
    def f(x):
        x.add_(1)
        return x * 2

    given, expected, result = X.clone(), X.clone(), X.clone()
    graph, _ = bd.export(f)(given)
    assert torch.equal(given, X)
    assert alike((f(expected), expected), (graph(result), result))


def test_program_with_a_break_is_unsupported():
    def f(x):
        y = x + 1
        print("out")
        return y

    with pytest.raises(bd.exc.Unsupported, match=r'(?s)BD003.*print\("out"\)'):
        bd.export(f)(X)


def test_program_that_changes_python_state_is_refused():
    log = []

    def f(x):
        log.append(x + 1)

    with pytest.raises(bd.exc.UserError, match="log"):
        bd.export(f)(X)
    assert log == []


def test_result_that_is_no_pytree_of_tensors_is_refused():
    with pytest.raises(bd.exc.UserError, match="object"):
        bd.export(lambda x: (x + 1, object()))(X)


def test_source_text_of_a_graph_runs():
    found = bd.explain(lambda x: torch.relu(x) * 2)(X)
    scope = {"torch": torch}
    exec(found.graphs[0].code, scope)
    assert torch.equal(scope["forward"](None, -X)[0], torch.zeros(3))


class Collector:
    active, depth = None, 0


def test_an_attribute_that_gets_what_it_has_is_no_change():
    collector = Collector()
    collector.active, collector.depth = None, 1

    def collects(x):
        collector.active = [x]
        y = x + 1
        collector.active = None
        return y

    def counts(x):
        collector.depth = 2
        return x + 1

    graph, _ = bd.export(collects)(X)
    assert torch.equal(graph(X), X + 1) and collector.active is None
    with pytest.raises(bd.UserError, match="changes Python state.*depth"):
        bd.export(counts)(X)
    collector.active = "something else"
    with pytest.raises(bd.UserError, match="changes Python state.*active"):
        bd.export(collects)(X)


def test_precompile_needs_a_backend_that_can():
    compiled = bd.optimize("eager")(lambda x: x + 1)
    with pytest.raises(bd.UserError, match="backend eager can't precompile"):
        compiled.precompile(X)
    with pytest.raises(bd.UserError, match="not a compiled function"):
        bd.precompiled(len)
    assert bd.precompiled(compiled) == []
