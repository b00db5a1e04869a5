import json

import pytest
from loopir import BuildError, UnsupportedKernelError, check_kernel, format_kernel, parse_kernel
from loopir.testing import CASES, EvaluatorCodeGenerator, check_code_generator
from symshapes.testing.report import run_kit


def test_evaluator_generator_conforms():
    assert check_code_generator(EvaluatorCodeGenerator()).passed >= len(CASES)


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


class WithoutExp(EvaluatorCodeGenerator):
    def supports(self, kernel):
        return all(step.op != "exp" for step in kernel.steps)

    def generate(self, kernel):
        if not self.supports(kernel):
            raise UnsupportedKernelError("no exp")
        return super().generate(kernel)


def test_refusals_are_counted_by_reason():
    report = check_code_generator(WithoutExp(), programs=40)
    assert not report.failures
    assert report.areas["random kernels"].cases == 40
    assert set(report.areas["unary operations"].refusals) == {"no exp"}
    assert report.passed + report.refused == report.cases


def test_what_fails_alone_is_named_alone():
    class Halting(EvaluatorCodeGenerator):
        def build(self, sources, store):
            if any("softmax" in source.text for source in sources):
                raise BuildError("no softmax")
            return super().build(sources, store)

    report = check_code_generator(Halting(), strict=False)
    assert report.failures and all("softmax" in name for name, _ in report.failures)
    assert report.passed > 400


@pytest.mark.parametrize("answer", [True, False])
def test_supports_and_generate_must_agree(answer):
    class Torn(EvaluatorCodeGenerator):
        def supports(self, kernel):
            return answer

        def generate(self, kernel):
            if answer:
                raise UnsupportedKernelError("no")
            return super().generate(kernel)

    report = check_code_generator(Torn(), cases=CASES[:99], strict=False)
    assert len(report.failures) == report.cases


def wrong():
    class Wrong(EvaluatorCodeGenerator):
        def build(self, sources, store):
            return [lambda *args: None for _ in sources]

    return Wrong()


WRONG = wrong()


def test_the_command_prints_a_table_and_writes_json(tmp_path, capsys):
    file, module = tmp_path / "kit.json", "loopir.testing:EvaluatorCodeGenerator"
    options = ["--programs", "5", "--json", str(file)]
    assert run_kit(check_code_generator, "generator", ["--generator", module, *options]) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[0].split() == "area cases passed refused wrong seconds".split()
    assert "random kernels" in printed
    read = json.loads(file.read_text())
    assert read["passed"] == read["cases"] > 400 and read["areas"]["reductions"]["failures"] == []
    module = f"{__name__}:WRONG"
    assert run_kit(check_code_generator, "generator", ["--generator", module, *options]) == 1
    assert json.loads(file.read_text())["areas"]["reductions"]["failures"]
    for missing in ("no_module:X", "loopir.testing:None_", "loopir"):
        assert run_kit(check_code_generator, "generator", ["--generator", missing]) == 2
        assert missing in capsys.readouterr().err
