import pytest
from loopir import check_kernel, format_kernel, parse_kernel
from loopir.testing import CASES, EvaluatorCodeGenerator, check_code_generator


def test_evaluator_generator_conforms():
    assert check_code_generator(EvaluatorCodeGenerator()) >= len(CASES)


def test_cases_are_valid_kernels_and_round_trip():
    for case in CASES:
        kernel = parse_kernel(case.text)
        check_kernel(kernel)
        assert parse_kernel(format_kernel(kernel)) == kernel


def test_wrong_generator_is_named():
    class Wrong(EvaluatorCodeGenerator):
        def build(self, sources, store):
            return [lambda *args: None for _ in sources]

    with pytest.raises(AssertionError, match="softmax"):
        check_code_generator(Wrong(), cases=[case for case in CASES if "softmax" in case.name])
