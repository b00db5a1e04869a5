"""Bad backends, exceptions inside, bad names; threads and several regions on one function."""

from __future__ import annotations

import threading
import traceback
import types

import bytecode_dynamo as bd
import pytest
import torch

X = torch.tensor([1.0, 2.0, 3.0])


def two(x):
    return x + 1, x * 2


@pytest.mark.parametrize(
    "returned", [lambda out: out[:1], lambda out: (*out, out[0])], ids=["too few", "too many"]
)
def test_wrong_number_of_outputs_is_named(returned):
    def short(gm, example_inputs):
        return lambda *inputs: returned(gm.forward(*inputs))

    with pytest.raises(bd.exc.BackendCompilerFailed, match=r"'short' .*2"):
        bd.optimize(short)(two)(X)


@pytest.mark.parametrize("value", [3, None, X], ids=["int", "None", "tensor"])
def test_outputs_must_be_a_tuple_or_list(value):
    def wrong(gm, example_inputs):
        return lambda *inputs: value

    with pytest.raises(bd.exc.BackendCompilerFailed, match="'wrong'"):
        bd.optimize(wrong)(two)(X)


def test_backend_that_mutates_its_example_inputs_is_named():
    def mutating(gm, example_inputs):
        example_inputs[0].add_(100)
        return gm.forward

    x = X.clone()
    with pytest.raises(bd.exc.BackendCompilerFailed, match=r"'mutating' .*L\['x'\]"):
        bd.optimize(mutating)(lambda x: x + 1)(x)


def test_backend_may_change_the_list_and_the_graph():
    def greedy(gm, example_inputs):
        example_inputs.clear()
        forward = gm.forward
        for node in list(gm.graph.nodes):
            node.meta.clear()
        return forward

    assert torch.equal(bd.optimize(greedy)(lambda x: x + 1)(X), X + 1)


def test_unknown_backend_lists_the_known_ones():
    with pytest.raises(bd.exc.UserError, match=r"'nope'.*eager.*print"):
        bd.optimize("nope")


def register(monkeypatch, point):
    found = types.SimpleNamespace(
        entry_points=lambda group: [point] if group == "torch_dynamo_backends" else []
    )
    monkeypatch.setattr("bytecode_dynamo.backends.importlib", types.SimpleNamespace(metadata=found))


def test_entry_point_that_cannot_be_loaded_is_named(monkeypatch):
    def load():
        raise ImportError("no module")

    register(monkeypatch, types.SimpleNamespace(name="broken", value="gone:backend", load=load))
    assert "broken" in bd.list_backends()
    with pytest.raises(bd.exc.UserError, match="gone:backend"):
        bd.optimize("broken")


def test_entry_point_is_found(monkeypatch):
    register(
        monkeypatch, types.SimpleNamespace(name="mine", value="mine:backend", load=lambda: bd.eager)
    )
    assert torch.equal(bd.optimize("mine")(lambda x: x + 1)(X), X + 1)


# -- exceptions inside -----------------------------------------------------------------------------


class Refused(Exception):
    def __init__(self, code, *, detail):
        super().__init__(f"{code}: {detail}")
        self.code = code


def refuse(log, n):
    log.append(n)
    raise Refused(n, detail="too many")


def test_exception_has_type_message_attributes_frames_and_effects_of_eager():
    def f(x, log):
        y = x + 1
        log.append("before")
        x.add_(1)
        refuse(log, y.shape[0])
        log.append("after")

    def run(call):
        x, log = X.clone(), []
        with pytest.raises(Refused) as caught:
            call(x, log)
        frames = [
            frame.name
            for frame in traceback.extract_tb(caught.value.__traceback__)
            if frame.filename == __file__
        ]
        return str(caught.value), caught.value.code, frames[1:], x.tolist(), log

    expected = run(f)
    assert run(bd.optimize("eager")(f)) == expected
    assert run(bd.optimize("eager", fullgraph=True)(f)) == expected


def test_exception_of_a_torch_call_is_eagers():
    def f(x, w):
        return torch.relu(x) @ w

    with pytest.raises(RuntimeError) as expected:
        f(torch.ones(2, 3), torch.ones(4, 5))
    with pytest.raises(RuntimeError) as found:
        bd.optimize("eager")(f)(torch.ones(2, 3), torch.ones(4, 5))
    assert str(found.value) == str(expected.value)
    names = [frame.name for frame in traceback.extract_tb(found.value.__traceback__)]
    assert names[-1] == "f"


def test_chained_exceptions_keep_their_cause():
    def f(x):
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise ValueError("outer") from error

    with pytest.raises(ValueError, match="outer") as caught:
        bd.optimize("eager")(f)(X)
    assert isinstance(caught.value.__cause__, KeyError)


# -- threads and regions ---------------------------------------------------------------------------


def in_threads(work, count=4):
    errors = []

    def run(k):
        try:
            work(k)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_one_optimized_function_from_several_threads():
    captured = bd.optimize("eager", fullgraph=True)(lambda x, k: torch.relu(x) * k + x.shape[0])

    def work(k):
        for n in range(2, 12):
            x = torch.full((n,), float(k))
            assert torch.equal(captured(x, k), torch.full((n,), float(k * k + n)))

    in_threads(work)
    assert not torch.compiler.is_compiling()


def test_threads_with_breaks_keep_their_order():
    def f(x, log):
        y = x + 1
        log.append("first")
        bd.graph_break()
        log.append("second")
        return y * 2

    captured = bd.optimize("eager")(f)

    def work(k):
        for _ in range(10):
            log = []
            assert torch.equal(captured(X * k, log), (X * k + 1) * 2)
            assert log == ["first", "second"]

    in_threads(work)


def test_regions_with_different_backends_in_different_threads():
    def scaled(factor):
        def backend(gm, example_inputs):
            return lambda *inputs: tuple(out * factor for out in gm.forward(*inputs))

        return backend

    def f(x):
        return x + 1

    regions = [bd.optimize(scaled(k))(f) for k in range(1, 5)]

    def work(k):
        for _ in range(20):
            assert torch.equal(regions[k](X), (X + 1) * (k + 1))

    in_threads(work)
    assert torch.equal(f(X), X + 1)


def test_breaks_as_errors_belong_to_a_thread():
    def f(x):
        bd.graph_break()
        return x + 1

    captured = bd.optimize("eager")(f)
    with bd.error_on_graph_break(True):
        in_threads(lambda k: captured(X))


def test_optimized_inside_optimized_is_one_graph():
    inner = bd.optimize("eager")(lambda x: x * 2)
    module = bd.optimize("eager")(torch.nn.Linear(3, 3))
    captured = bd.optimize("eager", fullgraph=True)(
        lambda x: inner(x) + module(x) + module.weight.sum()
    )
    assert torch.allclose(captured(X), X * 2 + module(X) + module.weight.sum())
    assert bd.counters["graphs"] == 2  # the whole, and the module alone in the line above


def test_exception_that_leaves_a_handler_keeps_its_frames():
    def f(x):
        y = x + 1
        try:
            {}["key"]
        except KeyError as error:
            raise Refused(len(y), detail="again") from error

    def run(call):
        with pytest.raises(Refused) as caught:
            call(X)
        chain = (caught.value, caught.value.__cause__)
        return [
            [(frame.name, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)][-1]
            for error in chain
        ]

    assert run(bd.optimize("eager")(f)) == run(f)
