"""The public functions, what they refuse, and what they leave behind."""

from __future__ import annotations

import gc
import threading
import traceback
import warnings
import weakref

import bytecode_dynamo as bd
import pytest
import torch

X = torch.tensor([1.0, 2.0, 3.0])


def prints(x):
    y = x + 1
    print("x")
    return y


def test_fullgraph_error_shows_id_and_line():
    with pytest.raises(bd.exc.Unsupported, match="BD003") as caught:
        bd.optimize("eager", fullgraph=True)(prints)(X)
    assert 'print("x")' in str(caught.value)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: bd.optimize("nope"), "nope"),
        (lambda: bd.optimize(3), "int"),
        (lambda: bd.optimize("eager")(3), "int"),
        (lambda: bd.optimize("eager")(int), "instances of int"),
        (lambda: bd.optimize("eager", dynamic="yes"), "dynamic"),
        (lambda: bd.optimize("eager", on_error="ignore"), "on_error"),
        (lambda: bd.disable(3), "int"),
        (lambda: bd.mark_dynamic(3, 0), "int"),
    ],
)
def test_bad_arguments_are_named(call, words):
    with pytest.raises(bd.exc.UserError, match=words):
        call()


def test_unknown_config_field_is_an_error():
    with pytest.raises(AttributeError, match="nothing"), bd.config.patch(nothing=1):
        pass


def test_backend_that_raises_is_named():
    def broken(gm, example_inputs):
        raise ValueError("boo")

    with pytest.raises(
        bd.exc.BackendCompilerFailed, match="'broken' raised ValueError: boo"
    ) as caught:
        bd.optimize(broken)(lambda x: x + 1)(X)
    assert isinstance(caught.value.__cause__, ValueError)


def test_backend_must_return_a_callable():
    with pytest.raises(bd.exc.BackendCompilerFailed, match="int"):
        bd.optimize(lambda gm, example_inputs: 3)(lambda x: x + 1)(X)


def test_print_backend_prints_the_graph(capsys):
    bd.optimize("print")(lambda x: x + 1)(X)
    assert "operator.add(l_x, 1)" in capsys.readouterr().out


def test_lookup_and_list():
    assert bd.lookup_backend("eager") is bd.eager
    assert {"eager", "print"} <= set(bd.list_backends())


def test_is_compiling_while_captured_only():
    def f(x):
        return x + 1, torch.compiler.is_compiling(), bd.is_compiling()

    assert bd.optimize("eager", fullgraph=True)(f)(X)[1:] == (True, True)
    assert not torch.compiler.is_compiling()


def test_runtime_error_keeps_type_message_and_frames():
    def pick(x, i):
        return x[i]

    captured = bd.optimize("eager", fullgraph=True)(pick)
    captured(X, torch.tensor([0]))
    with pytest.raises(IndexError, match="out of") as caught:
        captured(X, torch.tensor([7]))
    assert "pick" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]


def test_own_exception_passes_fullgraph():
    def f(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        bd.optimize("eager", fullgraph=True)(f)(X)


def test_disable_runs_eagerly_inside():
    @bd.disable
    def eager_part(x):
        return x * 2

    captured = bd.optimize("eager")(lambda x: eager_part(x + 1) + 1)
    assert torch.equal(captured(X), (X + 1) * 2 + 1)
    assert (bd.counters["graphs"], bd.counters["graph_breaks"]) == (2, 1)


def test_run_compiles_nothing_new():
    captured = bd.optimize("eager")(lambda x: x + 5)
    bd.run(captured)(X)
    assert bd.counters["graphs"] == 0
    captured(X)
    assert torch.equal(bd.run(captured)(X), X + 5)


def test_graph_break_does_nothing_outside():
    assert bd.graph_break() is None


def test_optimized_function_looks_like_the_original():
    @bd.optimize("eager")
    def documented(x):
        """Text."""
        return x

    assert (documented.__name__, documented.__doc__) == ("documented", "Text.")
    assert documented.__wrapped__(X) is X


def test_optimized_method_binds():
    class Scale:
        factor = 3

        @bd.optimize("eager", fullgraph=True)
        def __call__(self, x):
            return x * self.factor

    assert torch.equal(Scale()(X), X * 3)


def test_optimized_module_forwards_attributes():
    module = torch.nn.Linear(3, 3)
    captured = bd.optimize("eager", fullgraph=True)(module)
    assert torch.equal(captured(X), module(X))
    assert captured.weight is module.weight
    captured.train(False)
    assert module.training is False


def test_recompile_limit_warns_once_and_stays_right():
    captured = bd.optimize("eager")(lambda x, s: x + len(s))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in range(12):
            assert torch.equal(captured(X, "a" * n), X + n)
    (warning,) = [str(w.message) for w in caught if "recompile_limit" in str(w.message)]
    assert "s was 'aaaaaaa', now 'aaaaaaaa'" in warning
    assert bd.counters["graphs"] == 8


def test_recompile_limit_under_fullgraph_is_an_error():
    captured = bd.optimize("eager", fullgraph=True)(lambda x, s: x + len(s))
    for n in range(8):
        captured(X, "a" * n)
    for _ in range(2):
        with pytest.raises(bd.exc.RecompileError, match="recompile_limit"):
            captured(X, "b")
    assert torch.equal(captured(X, "a"), X + 1)


def test_defect_falls_back_to_eager_with_a_warning(monkeypatch):
    def defective(*arguments):
        raise ZeroDivisionError("defect")

    monkeypatch.setattr("bytecode_dynamo.capture.frame_capture.run_root", defective)
    with (
        bd.config.patch(fallback="eager"),
        pytest.warns(UserWarning, match="bytecode_dynamo: capture of"),
    ):
        assert torch.equal(bd.optimize("eager")(lambda x: x * 2)(X), X * 2)
    assert bd.counters["fallbacks"] == 1
    with pytest.raises(bd.exc.InvariantError, match="defect"):
        bd.optimize("eager", on_error="error")(lambda x: x * 3)(X)


def test_explanation_counts_and_prints():
    found = bd.explain(prints)(X)
    assert (found.graph_count, found.graph_break_count, found.op_count) == (1, 1, 1)
    assert "BD003" in str(found)
    assert torch.equal(found.result, X + 1)
    assert any("L['x']" in guard for guard in found.guards)


def test_explanation_is_html_in_a_notebook():
    shown = bd.explain(prints)(X)._repr_html_()
    assert shown.startswith('<div class="bd-report">')
    assert "<td>BD003</td>" in shown
    assert "<summary>graph 1: " in shown
    assert "f32[" in shown


def test_a_compiled_function_reports_what_was_captured():
    def f(x, flag):
        if flag:
            print(end="")
        return x + 1

    compiled = bd.optimize()(f)
    assert compiled.report().graph_count == 0
    compiled(X, True)
    compiled(X, False)
    found = compiled.report()
    assert (found.graph_count, found.graph_break_count) == (2, 1)
    assert len(found.recompiles) == 1
    assert any(guard.startswith("x is a float32 tensor of shape") for guard in found.guards)
    bd.reset()
    assert compiled.report().graph_count == 0


def test_a_compiled_module_reports_unless_it_has_a_report():
    class Named(torch.nn.Linear):
        def report(self):
            return "its own"

    compiled = bd.optimize()(torch.nn.Linear(3, 3))
    compiled(torch.ones(2, 3))
    assert compiled.report().graph_count == 1
    assert bd.optimize()(Named(3, 3)).report() == "its own"


def test_a_report_keeps_no_graph_alive():
    def capture():
        compiled = bd.optimize()(torch.nn.Linear(3, 3))
        compiled(torch.ones(2, 3))
        (graph,) = compiled.report().graphs
        return weakref.ref(graph), compiled

    graph, compiled = capture()
    gc.collect()
    assert graph() is not None
    del compiled
    gc.collect()
    assert graph() is None


def test_reset_forgets():
    captured = bd.optimize("eager")(lambda x: x + 1)
    captured(X)
    bd.reset()
    assert bd.counters["graphs"] == 0
    captured(X)
    assert bd.counters["graphs"] == 1


def test_dropped_models_are_freed():
    optimizer = bd.optimize("eager")
    module = torch.nn.Linear(3, 3)
    captured = optimizer(module.forward)
    captured(X)
    gone, weight = weakref.ref(module), weakref.ref(module.weight)
    del module, captured
    gc.collect()
    assert gone() is None
    assert weight() is None


def test_two_backends_on_one_function_keep_their_graphs():
    def f(x):
        return x + 1

    def doubled(gm, example_inputs):
        return lambda *inputs: tuple(2 * out for out in gm.forward(*inputs))

    plain, double = bd.optimize("eager")(f), bd.optimize(doubled)(f)
    for _ in range(2):
        assert torch.equal(plain(X), X + 1)
        assert torch.equal(double(X), 2 * (X + 1))
    assert torch.equal(f(X), X + 1)


def test_threads_capture_on_their_own():
    results = []

    def work(k):
        captured = bd.optimize("eager")(lambda x: x * k + 1)
        results.extend(torch.equal(captured(X), X * k + 1) for _ in range(10))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 40


def test_recompile_reason_is_one_line():
    reasons = []
    captured = bd.optimize(
        "eager", dynamic=False, on_capture=lambda found: reasons.append(found.recompiled)
    )(lambda x: x + 1)
    captured(torch.ones(8))
    captured(torch.ones(5))
    assert reasons == [None, "x.size(0) was 8, now 5"]


def reasons_of(f, *calls, **options):
    """The reasons of the recompiles that calls cause."""
    found = []
    captured = bd.optimize("eager", on_capture=lambda one: found.append(one.recompiled), **options)(
        f
    )
    for arguments in calls:
        captured(*arguments)
    return [reason for reason in found if reason is not None]


def test_reason_after_a_break_names_the_expression_on_the_stack():
    def f(x):
        return torch.relu(x) * 2 + (bd.graph_break() or 1)

    assert reasons_of(f, [torch.ones(3)], [torch.ones(4)], dynamic=False) == [
        "x.size(0) was 3, now 4",
        "(torch.relu(x) * 2).size(0) was 3, now 4",
    ]


def test_reason_of_a_symbolic_int_that_becomes_a_float():
    calls = [(X, 2), (X, 3), (X, 3.5)]
    assert reasons_of(lambda x, k: x * k, *calls) == [
        "k was 2, now 3",
        "type(k) was int, now float",
    ]


def test_reason_of_a_condition_on_sizes_names_values_and_line():
    def f(x, y):
        return x + 1 if x.size(0) == y.size(0) else x - 1

    calls = [(torch.ones(3), torch.ones(3)), (torch.ones(3), torch.ones(4))]
    (reason,) = reasons_of(f, *calls, dynamic=True)
    assert reason.startswith("x.size(0) == y.size(0) was True, now False: x.size(0) is 3, ")
    assert "y.size(0) is 4; the condition is from File" in reason and "in f" in reason


def test_reason_of_a_module_names_its_attributes():
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.5))
    captured = []
    run = bd.optimize("eager", on_capture=lambda one: captured.append(one.recompiled))(net)
    run(X)
    net.eval()
    run(X)
    assert captured[-1].endswith(".training was True, now False") and "_modules" not in captured[-1]


def test_log_names_the_function_and_its_place(caplog):
    def f(x):
        return x + 1

    with caplog.at_level("INFO", "bytecode_dynamo"):
        reasons_of(f, [torch.ones(3)], [torch.ones(4)], dynamic=False)
    line = f.__code__.co_firstlineno
    assert f".f ({__file__}:{line}): x.size(0) was 3, now 4" in caplog.text


def test_a_captured_graph_that_never_ran_is_captured_again():
    graphs = []

    def keep(gm, inputs):
        graphs.append(gm)
        return lambda *values: (values[0].sum(),)

    bd.optimize(keep)(lambda x: (x * 3).sin().sum())(X)
    assert "_code" not in vars(graphs[0])
    again = bd.optimize("eager", fullgraph=True)(lambda x: graphs[0](x)[0] + 1)
    assert torch.equal(again(X), (X * 3).sin().sum() + 1)
