"""The kit for tables of decompositions: right tables pass, a wrong rule is named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from primops import DEFAULT, DecompositionTable, prims
from primops.operand import elementwise
from primops.testing import check_decompositions

OTHERS = """
from primops import DecompositionTable, prims
from primops.operand import elementwise

table = DecompositionTable()


@table.register("relu")
def relu(self):
    return elementwise(lambda a: prims.maximum(a, 0), self)


@table.register("silu")
def silu(self):
    return elementwise(lambda a: prims.mul(a, prims.sigmoid(prims.mul(a, 1.01))), self)
"""


def part(*names: str) -> DecompositionTable:
    wanted = DecompositionTable()
    for name in names:
        rule = DEFAULT.get(name)
        assert rule is not None
        wanted.add(name, rule, DEFAULT.auxiliary(name))
    return wanted


def test_right_rules_pass():
    table = part("gelu", "gelu_backward", "add.Tensor", "slice.Tensor", "sum.dim_IntList")
    report = check_decompositions(table, programs=20)
    assert report.passed == report.cases > 60
    assert {"float32", "bfloat16", "int64", "bool", "random calls"} <= set(report.areas)


def test_a_wrong_rule_is_named():
    table = part("gelu")
    table.add("erf", lambda self: elementwise(lambda a: prims.erf(prims.mul(a, 1.001)), self))
    report = check_decompositions(table, strict=False)
    assert report.failures and report.passed
    assert {name.partition("(")[0] for name, _ in report.failures} == {"aten::erf"}
    with pytest.raises(AssertionError, match="aten::erf"):
        check_decompositions(table)


def test_a_wrong_size_and_a_raising_rule_are_named():
    table = DecompositionTable()
    table.add("t", lambda self: self)

    @table.register("neg")
    def neg(self):
        raise ValueError("no such prim")

    report = check_decompositions(table, strict=False)
    texts = {name.partition("(")[0]: text for name, text in report.failures}
    assert "eager" in texts["aten::t"] or "C3" in texts["aten::t"]
    assert "no such prim" in texts["aten::neg"]


def test_operators_without_calls_are_refused():
    table = DecompositionTable()
    table.add("made::up", lambda self: self)
    report = check_decompositions(table)
    assert (report.refused, report.cases) == (1, 1)


def test_command_scores_a_table(tmp_path: Path):
    (tmp_path / "others.py").write_text(OTHERS)
    result = tmp_path / "result.json"
    command = [sys.executable, "-m", "primops.testing", "--decompositions", "others:table"]
    done = subprocess.run(
        [*command, "--programs", "5", "--json", str(result)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 1 and "aten::silu" in done.stdout, done.stdout + done.stderr
    failures = [f for a in json.loads(result.read_text())["areas"].values() for f in a["failures"]]
    assert failures and all("aten::silu" in failure["case"] for failure in failures)
