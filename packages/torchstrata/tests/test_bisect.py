"""Stages are compared with each other; what differs is located, made smaller and written."""

from __future__ import annotations

import operator

import bytecode_dynamo.builtins.operators as operators
import inductor_cpp.kernels.elementwise as elementwise
import loopir
import pytest
import torch
import torchstrata
from torchstrata.__main__ import main
from torchstrata.bisect.compare import difference
from torchstrata.bisect.python_source import NotAlone, function_text, smaller_texts
from torchstrata.bisect.repro import read_repro


@pytest.fixture
def wrong_negation(monkeypatch, tmp_path):
    """Kernels lose minus signs; nothing of that gets into the cache of this machine."""
    monkeypatch.setitem(elementwise.EXPRESSIONS, "neg", lambda args, dtype: f"({args[0]})")
    with torchstrata.config.patch(cache_dir=str(tmp_path / "cache"), verify=False):
        yield
    torchstrata.reset()


def negated(x: torch.Tensor) -> torch.Tensor:
    return (-x).exp() * 2


def test_a_search_ends_at_the_kernel(wrong_negation, tmp_path, capsys) -> None:
    compiled = torchstrata.compile(negated)

    def check() -> bool:
        x = torch.linspace(-1, 1, 30).view(5, 6)
        return torch.allclose(compiled(x), negated(x))

    found = torchstrata.bisect(check, tmp_path)
    assert (found.layer, found.stage) == ("code generation", "kernels")
    assert "kernel0" in found.decision
    assert found.nodes == ("prims.neg",)
    assert found.repro is not None
    assert found.repro.read_text().startswith("# torchstrata.repro 1\n")
    assert read_repro(found.repro).source == "program"
    assert "differ" in torchstrata.replay(found.repro)
    assert main(["replay", str(found.repro)]) == 1
    assert capsys.readouterr().out.startswith("differs: ")
    with pytest.raises(torchstrata.UsageError, match="kernels and host"):
        torchstrata.replay(found.repro, "prims")


def test_a_repaired_stage_no_longer_differs(tmp_path, monkeypatch) -> None:
    with monkeypatch.context() as broken, torchstrata.config.patch(cache_dir=str(tmp_path)):
        broken.setitem(elementwise.EXPRESSIONS, "neg", lambda args, dtype: f"({args[0]})")
        compiled = torchstrata.compile(negated)
        x = torch.ones(3)
        found = torchstrata.bisect(lambda: torch.allclose(compiled(x), negated(x)), tmp_path)
    torchstrata.reset()
    assert torchstrata.replay(found.repro) == ""
    assert main(["replay", str(found.repro)]) == 0


def test_a_pass_of_the_caller_is_named(tmp_path) -> None:
    def twice(graph: torch.fx.GraphModule) -> None:
        for node in graph.graph.nodes:
            if str(node.target) == "prims.neg":
                node.replace_all_uses_with(node.args[0])

    wrong = loopir.GraphPass("lose-signs", "prims", twice)
    compiled = torchstrata.compile(negated, passes=[wrong])
    x = torch.ones(3)
    found = torchstrata.bisect(lambda: torch.allclose(compiled(x), negated(x)), tmp_path)
    assert (found.layer, found.stage, found.nodes) == ("pattern", "passes", ("prims.neg",))
    assert "lose-signs" in found.decision


def test_a_check_that_holds_has_nothing_to_find(tmp_path) -> None:
    compiled = torchstrata.compile(negated)
    x = torch.ones(3)
    with pytest.raises(torchstrata.NothingFound, match="the same as in eager mode"):
        torchstrata.bisect(lambda: torch.allclose(compiled(x), negated(x)), tmp_path)
    with pytest.raises(torchstrata.NothingFound, match="without compilation, too"):
        torchstrata.bisect(lambda: False, tmp_path)


def test_a_comparison_at_every_call_is_an_error(wrong_negation) -> None:
    compiled = torchstrata.compile(negated, options={"verify": True})
    with pytest.raises(torchstrata.WrongResultError, match=r"stage kernels \(code generation\)"):
        compiled(torch.ones(3))


def test_a_sample_is_a_warning_once(wrong_negation) -> None:
    compiled = torchstrata.compile(negated, options={"verify": 0.9999})
    with pytest.warns(torchstrata.WrongResultWarning, match=r"replay .*kernels\.strata --shrink"):
        for _ in range(20):
            compiled(torch.ones(3))
    assert torchstrata.counters.compiler["wrong_calls"] == 1


def test_right_programs_pass_with_gradients_and_effects() -> None:
    def step(x: torch.Tensor, w: torch.Tensor, running: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.dropout(torch.nn.functional.gelu(x @ w), 0.5)
        running.mul_(0.9).add_(y.detach().mean(0), alpha=0.1)
        return torch.nn.functional.cross_entropy(y, torch.arange(4) % 3)

    compiled = torchstrata.compile(step, options={"verify": True, "fallback": "error"})
    running = torch.zeros(5)
    for _ in range(2):
        compiled(torch.randn(4, 6), torch.randn(6, 5, requires_grad=True), running).backward()
    assert torchstrata.counters.compiler["verified_calls"] >= 2


@pytest.mark.parametrize(
    ("actual", "expected", "exact", "differs"),
    [
        (
            torch.tensor([1.0, 2.0]),
            torch.tensor([1.0, 2.0 + 3e-7]),
            torch.tensor([1.0, 2.0]),
            False,
        ),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.1]), None, True),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), torch.tensor([1.0, 2.4]), False),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), torch.tensor([1.0, 3.0]), True),
        (torch.tensor([float("nan")]), torch.tensor([float("nan")]), None, False),
        (torch.tensor([float("nan")]), torch.tensor([1.0]), torch.tensor([1.0]), True),
        (torch.ones(2), torch.ones(3), None, True),
        ([torch.ones(2)], (torch.ones(2),), None, False),
    ],
)
def test_differences_are_beyond_rounding(actual, expected, exact, differs) -> None:
    wide = exact.double() if isinstance(exact, torch.Tensor) else exact
    assert bool(difference(actual, expected, wide)) is differs


SCALE = 3


def scaled(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) * SCALE


def test_functions_are_written_with_what_they_read() -> None:
    text, tensors = function_text(scaled)
    assert text.splitlines() == [
        "import torch as torch", "SCALE = 3", "", "def scaled(x: torch.Tensor) -> torch.Tensor:",
        "    return torch.relu(x) * SCALE",
    ]  # fmt: skip
    assert not tensors
    assert any("return SCALE" in each for each in smaller_texts(text))
    lock = object()
    with pytest.raises(NotAlone):
        function_text(lambda x: (x, lock))


def test_a_capture_ends_at_the_instruction(monkeypatch, tmp_path) -> None:
    right = operators.call_torch

    def swapped(ctx, function, args, *rest):
        is_wrong = function is operator.isub
        return right(ctx, operator.sub if is_wrong else function, args, *rest)

    monkeypatch.setattr(operators, "call_torch", swapped)

    def check() -> bool:
        compiled = torchstrata.compile(changed)
        return torch.equal(compiled(torch.ones(3)), changed(torch.ones(3)))

    found = torchstrata.bisect(check, tmp_path)
    assert (found.layer, found.nodes) == ("capture", ("BINARY_OP",))
    assert "test_bisect.py" in found.decision
    assert found.repro is not None
    assert " -= " in found.repro.read_text()
    assert "differ" in torchstrata.replay(found.repro, "capture")
    torchstrata.reset()


def changed(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    z = y
    z -= 1
    return y.exp()
