"""Generators that take some kernels (contract G10)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import loopir
import primops
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loopir.testing import EvaluatorCodeGenerator
from primops.testing import trace

from packages.loopir.tests.conftest import assert_same
from packages.loopir.tests.programs import TensorProgram, tensor_programs


@dataclass(frozen=True)
class Selective(EvaluatorCodeGenerator):
    """Takes kernels of at most ``most`` operations, without those in ``lacks``."""

    lacks: frozenset[str] = frozenset()
    most: int = 1000

    def supports(self, kernel: loopir.Kernel) -> bool:
        return not self._reason(kernel)

    def generate(self, kernel: loopir.Kernel) -> loopir.KernelSource:
        if reason := self._reason(kernel):
            raise loopir.UnsupportedKernelError(reason)
        return super().generate(kernel)

    def _reason(self, kernel: loopir.Kernel) -> str:
        steps = kernel.steps
        lacking = self.lacks.intersection(step.op for step in steps)
        return f"no {min(lacking)}" if lacking else "too long" if len(steps) > self.most else ""


class Rest(EvaluatorCodeGenerator):
    pass


def shared(first: loopir.CodeGenerator) -> dict[str, loopir.CodeGenerator]:
    return loopir.share_devices({"cpu": first}, {"cpu": Rest})


def compiled(
    function: Callable[..., Any], args: list[Any], codegens: dict[str, Any]
) -> loopir.HostProgram:
    options = loopir.Options(check=True, threads=2)
    return loopir.compile_graph(
        primops.decompose(trace(function, *args)), args, codegens=codegens, options=options
    )


def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x * 2 + 1
    return (y.exp() - 1) * x, y.sum(1)


def ops(host: loopir.HostProgram) -> list[set[str]]:
    return [{step.op for step in kernel.steps} for kernel in host.program.kernels]


def test_no_fusion_takes_a_kernel_away() -> None:
    x = torch.randn(64, 80)
    (whole,) = ops(compiled(program, [x], shared(Selective())))
    assert {"exp", "reduce"} <= whole
    host = compiled(program, [x], shared(Selective(lacks=frozenset({"exp"}))))
    assert_same(host(x), program(x), 1e-4)
    kernels = ops(host)
    assert [{"exp", "reduce"} & kernel for kernel in kernels].count({"exp"}) == 1
    assert {"reduce"} in [{"exp", "reduce"} & kernel for kernel in kernels]
    reasons = {decision.reason for decision in host.program.decisions if not decision.accepted}
    assert "the code generator does not support the fused loops" in reasons


def test_each_kernel_goes_to_its_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: dict[str, list[str]] = {}

    def noted(self: object, sources: Any, store: Any) -> Any:
        taken[type(self).__name__] = [source.text for source in sources]
        return build(self, sources, store)

    build = EvaluatorCodeGenerator.build
    monkeypatch.setattr(EvaluatorCodeGenerator, "build", noted)
    x = torch.randn(64, 80)
    compiled(program, [x], shared(Selective(lacks=frozenset({"exp"}))))
    assert all("exp" in text for text in taken["Rest"])
    assert not any("exp" in text for text in taken["Selective"])


def test_column_sums_are_right_whoever_takes_them() -> None:
    def norm(x: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = (x - x.mean(1, keepdim=True)) * g
        return y, (y * x).sum(0)

    x, g = torch.randn(400, 48), torch.randn(400, 48)
    for lacks in ({"reduce"}, {"mul"}, {"sub"}, set()):
        host = compiled(norm, [x, g], shared(Selective(lacks=frozenset(lacks))))
        assert_same(host(x, g), norm(x, g), 1e-3)


@given(
    drawn=tensor_programs(sizes=(0, 1, 2, 3, 6)),
    lacks=st.frozensets(st.sampled_from(["exp", "reduce", "mul", "add", "where", "load"])),
    most=st.sampled_from([4, 8, 1000]),
)
def test_any_selection_computes_the_same(
    drawn: TensorProgram, lacks: frozenset[str], most: int
) -> None:
    args = drawn.arguments()
    first = Selective(lacks=lacks, most=most)
    host = compiled(drawn, args, shared(first))
    whole = compiled(drawn, args, {"cpu": Rest()})
    for got, expected in zip(host(*args), whole(*args), strict=True):
        torch.testing.assert_close(got, expected, equal_nan=True, rtol=1e-4, atol=1e-4)


def test_without_another_generator_torch_evaluates() -> None:
    x = torch.randn(5, 6)
    with pytest.warns(loopir.GeneratorWarning, match=r"Selective.*no exp.*torch operators"):
        host = compiled(program, [x], {"cpu": Selective(lacks=frozenset({"exp"}))})
    assert_same(host(x), program(x), 1e-4)


def test_a_wrong_answer_is_named() -> None:
    class Vague(EvaluatorCodeGenerator):
        def supports(self, kernel: loopir.Kernel) -> Any:
            return "perhaps"

    class Raising(EvaluatorCodeGenerator):
        def supports(self, kernel: loopir.Kernel) -> bool:
            raise KeyError("exp")

    for kind, message in ((Vague, "returned 'perhaps'"), (Raising, "raised when asked to say")):
        with pytest.raises(loopir.GeneratorError, match=f"{kind.__name__}.*{message}"):
            compiled(program, [torch.randn(5, 6)], shared(kind()))


def test_identity_is_that_of_both() -> None:
    class Known(Selective):
        def identity(self) -> tuple[str, ...]:
            return ("a",)

    class KnownRest(Rest):
        def identity(self) -> tuple[str, ...]:
            return ("b",)

    (pair,) = loopir.share_devices({"cpu": Known()}, {"cpu": KnownRest}).values()
    assert {"a", "b"} <= set(pair.identity())  # type: ignore[attr-defined]
    (pair,) = shared(Known()).values()
    assert pair.identity() is None  # type: ignore[attr-defined]


def test_cached_programs_are_shared_and_warn_too(tmp_path: Any) -> None:
    class Known(Selective):
        def identity(self) -> tuple[str, ...]:
            return ("a",)

    store, x = loopir.ArtifactStore(tmp_path), torch.randn(5, 6)
    options = loopir.Options(check=False)
    for hits in range(2):
        codegens = {"cpu": Known(lacks=frozenset({"exp"}))}
        with pytest.warns(loopir.GeneratorWarning, match="no exp"):
            host = loopir.compile_graph(
                trace(program, x), [x], codegens=codegens, store=store, options=options
            )
        assert_same(host(x), program(x), 1e-4)
        assert store.hits == hits
