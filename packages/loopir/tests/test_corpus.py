"""The corpus of kernels and programs, and that it fixes what each operation means."""

import json
from pathlib import Path

import pytest
import torch
from loopir import OPS, REDUCTIONS, parse_kernel
from loopir.ir import evaluate
from loopir.ir.text import KERNELS
from loopir.testing import corpus
from symshapes.testing.stored import assert_stored

LOCK = Path(__file__).parents[1] / "kernel_ops.json"
KERNEL_CASES = corpus.stored_kernels()
CALLS = [
    (case, {step.op for body in parse_kernel(case.text).bodies for step in body.instructions})
    for case in KERNEL_CASES
]


def meanings():
    """What the form promises of each operation and reduction."""
    return {
        **{name: f"{op.rule.value}; {op.domain.value}; {op.meaning}" for name, op in OPS.items()},
        **{f"reduce {name}": meaning for name, meaning in REDUCTIONS.items()},
    }


def test_every_file():
    report = corpus.check_corpus()
    assert report.passed == report.cases > 900


def test_every_operation_occurs():
    assert {op for _, ops in CALLS for op in ops} >= {*OPS}
    for kind in REDUCTIONS:
        assert any(f"reduce({kind!r}" in case.text for case, _ in CALLS), kind


def test_changed_operations_need_a_new_version():
    kept = json.loads(LOCK.read_text())
    changed = {k for k, v in {**kept["operations"], **meanings()}.items()
               if kept["operations"].get(k) != v or meanings().get(k) != v}  # fmt: skip
    assert not changed or kept["version"] < KERNELS.version, (
        f"{changed} changed: raise the version of loopir.kernel, with an upgrade of older texts"
    )


def test_a_file_of_a_future_version_is_one_failure(monkeypatch, tmp_path):
    (tmp_path / "kernels").mkdir()
    for name, version in (("exp_float32", 1), ("neg_float32", 9)):
        text = (corpus.FOLDER / "kernels" / f"{name}.txt").read_text()
        text = text.replace("loopir.kernel 1", f"loopir.kernel {version}")
        (tmp_path / "kernels" / f"{name}.txt").write_text(text)
    monkeypatch.setattr(corpus, "FOLDER", tmp_path)
    report = corpus.check_corpus(strict=False)
    ((name, message),) = report.failures
    assert report.passed == 1 and name == "neg_float32"
    assert "version 9 of loopir.kernel" in message and "install a newer loopir" in message


def is_noticed(op):
    """Whether a stored kernel with the operation has other results now."""
    for case, ops in CALLS:
        if op in ops:
            try:
                results = corpus.run_kernel(parse_kernel(case.text), case.given)
                assert_stored(results, case.gives)
            except (AssertionError, RuntimeError, IndexError):
                return True
    return False


PLANTED = {
    "round": lambda a: (a + 0.5).floor(),
    "remainder": torch.fmod,
    "fmod": torch.remainder,
    "floordiv": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "minimum": torch.fmin,
    "maximum": torch.fmax,
    "trunc": torch.floor,
    "rshift": lambda a, b: (a.to(torch.int64) & 0xFFFF).to(a.dtype) >> b,
    "lt": torch.le,
    "expm1": torch.exp,
    "log1p": torch.log,
    "where": lambda c, a, b: torch.where(c, b, a),
}


@pytest.mark.parametrize("op", PLANTED)
def test_planted_meaning(op, monkeypatch):
    assert not is_noticed(op)
    monkeypatch.setitem(evaluate.ELEMENTWISE, op, PLANTED[op])
    assert is_noticed(op)


@pytest.mark.parametrize("op", evaluate.ELEMENTWISE)
def test_no_operation_may_be_another_one(op, monkeypatch):
    arity = OPS[op].arity
    others = [o for o in evaluate.ELEMENTWISE if OPS[o].arity == arity and o != op]
    for other in others:
        monkeypatch.setitem(evaluate.ELEMENTWISE, op, evaluate.ELEMENTWISE[other])
        assert is_noticed(op), f"{op} may mean {other}"


@pytest.mark.parametrize("kind", REDUCTIONS)
def test_no_reduction_may_be_another_one(kind, monkeypatch):
    real = evaluate.reduce_tensor
    same = {"any": {"max", "sum"}, "all": {"min", "prod"}}.get(kind, set())  # of bools
    for other in {*REDUCTIONS} - {kind} - same:
        monkeypatch.setattr(
            evaluate, "reduce_tensor",
            lambda k, value, dtype, other=other: real(other if k == kind else k, value, dtype),
        )  # fmt: skip
        assert is_noticed("reduce"), f"{kind} may mean {other}"
