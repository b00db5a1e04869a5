"""The conformance kit of capture: ours passes, wrong ones are named by area."""

import bytecode_dynamo as bd
import pytest
from bytecode_dynamo.testing import check_capture, own_capture


def test_own_capture_conforms():
    report = check_capture(own_capture, programs=20)
    assert report.passed == report.cases > 100
    assert report.areas["contract C1"].cases > 60


def test_eager_mode_captures_nothing():
    report = check_capture(lambda function, backend: function, strict=False)
    assert len(report.failures) == report.cases
    assert all("no graph" in message for _, message in report.failures)


def test_entries_without_guards_are_wrong():
    def careless(function, backend):
        compiled = own_capture(function, backend)
        results = {}

        def call(x, n, items):
            if "first" not in results:
                results["first"] = compiled(x, n, items)
            return results["first"]

        return call

    report = check_capture(careless, strict=False)
    wrong = {name for name, _ in report.failures}
    assert {"arithmetic", "branches_on_numbers", "match_statement", "changed_arguments"} <= wrong
    with pytest.raises(AssertionError, match=r"careless: \d+ of \d+ programs are wrong \(arithm"):
        check_capture(careless)


def test_graphs_without_metadata_break_the_contract():
    def stripped(function, backend):
        def other(graph, inputs):
            for node in graph.graph.nodes:
                node.meta.clear()
            return backend(graph, inputs)

        bd.reset()
        return bd.optimize(other)(function)

    report = check_capture(stripped, strict=False)
    assert len(report.areas["contract C1"].failures) == report.areas["contract C1"].cases
    assert not report.areas["tensors"].failures
