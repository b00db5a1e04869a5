"""Passes, decompositions and graph backends of others: by object, by name, checked, cached."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import bytecode_dynamo
import loopir
import primops
import pytest
import torch
import torchstrata
from inductor_cpp import CppCodeGenerator
from loopir import GraphPass
from primops import DecompositionTable, prims
from primops.testing import trace
from torchstrata.__main__ import backends

from integration_tests.thirdparty.test_registry import install

calls: list[str] = []


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    calls.clear()
    yield
    torchstrata.reset()


def program(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * 2).sum(0)


def with_cosines(graph: torch.fx.GraphModule) -> None:
    calls.append("prims")
    for node in graph.graph.nodes:
        if node.target is prims.sin:
            node.target = prims.cos


def noting(form: loopir.Program) -> loopir.Program:
    calls.append("loops")
    return replace(form, decisions=())


COSINES = GraphPass("cosines", "prims", with_cosines, key="1")
NOTING = GraphPass("noting", "loops", noting, key="1")


def compiled(*passes: GraphPass | str, **given: Any) -> Callable[..., Any]:
    return torchstrata.compile(program, passes=passes, fullgraph=True, **given)


def expected(x: torch.Tensor) -> torch.Tensor:
    return (x.cos() * 2).sum(0)


def test_passes_run_in_order_on_what_they_take() -> None:
    x = torch.randn(4, 5)
    torch.testing.assert_close(compiled(NOTING, COSINES)(x), expected(x))
    assert calls == ["prims", "loops"]
    torch.testing.assert_close(compiled()(x), program(x))
    assert len(calls) == 2


def test_forward_and_backward_run_through_passes() -> None:
    x = torch.randn(4, 5, requires_grad=True)
    compiled(NOTING)(x).sum().backward()
    assert calls == ["loops", "loops"]
    torch.testing.assert_close(x.grad, 2 * x.cos())


def test_a_pass_may_return_another_graph() -> None:
    def rebuilt(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
        with_cosines(graph)
        return torch.fx.GraphModule(graph, graph.graph)

    x = torch.randn(4, 5)
    torch.testing.assert_close(compiled(GraphPass("rebuilt", "prims", rebuilt))(x), expected(x))


@pytest.mark.parametrize(("key", "runs"), [("1", 1), (None, 2)])
def test_programs_are_cached_by_the_keys_of_passes(
    tmp_path: Path, key: str | None, runs: int
) -> None:
    x, own = torch.randn(4, 5), {"cache_dir": str(tmp_path), "verify": False}
    chosen = replace(COSINES, key=key)
    for _ in range(2):
        torch.testing.assert_close(compiled(chosen, options=own)(x), expected(x))
        torchstrata.reset()
    assert calls == ["prims"] * runs
    torch.testing.assert_close(compiled(options=own)(x), program(x))
    torchstrata.reset()
    if key is not None:
        compiled(replace(COSINES, key="2"), options=own)(x)
        assert calls == ["prims"] * (runs + 1)


def test_one_dump_per_pass(tmp_path: Path) -> None:
    compiled(COSINES, NOTING, options={"dump": str(tmp_path)})(torch.randn(4, 5))
    names = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert {"inference-35-cosines.py", "inference-45-noting.txt"} <= names
    text = next(tmp_path.rglob("*35-cosines.py")).read_text()
    assert "= prims.cos(" in text and "= prims.sin(" not in text


def raising(form: object) -> None:
    raise KeyError("sin")


def dropping(graph: torch.fx.GraphModule) -> None:
    node = graph.graph.output_node()
    node.args, node.meta["val"] = ((),), ()


def untyped(graph: torch.fx.GraphModule) -> None:
    for node in graph.graph.nodes:
        if node.op == "call_function":
            node.meta.clear()


def foreign(graph: torch.fx.GraphModule) -> None:
    for node in graph.graph.nodes:
        if node.target is prims.sin:
            node.target = operator.neg


def shortened(form: loopir.Program) -> loopir.Program:
    return replace(form, steps=form.steps[1:])


BAD = {
    "raises": (GraphPass("raises", "prims", raising), "pass 'raises' raised KeyError: 'sin'"),
    "text": (GraphPass("text", "prims", str), "pass 'text' returned str; it must return a Graph"),
    "nothing": (GraphPass("nothing", "loops", lambda form: None), "returned NoneType; .* Program"),
    "dropping": (GraphPass("dropping", "prims", dropping), "pass 'dropping' .*outputs|returned is"),
    "untyped": (GraphPass("untyped", "prims", untyped), "what pass 'untyped' returned is wrong"),
    "foreign": (GraphPass("foreign", "prims", foreign), "what pass 'foreign' returned is .*C3.1"),
    "shortened": (GraphPass("shortened", "loops", shortened), "what pass 'shortened' returned is"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_pass_is_named(name: str) -> None:
    chosen, message = BAD[name]
    x = torch.randn(4, 5)
    with pytest.raises(bytecode_dynamo.BackendCompilerFailed, match=message):
        compiled(chosen)(x)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = torchstrata.compile(program, passes=[chosen])(x)
    torch.testing.assert_close(result, program(x))
    assert any(issubclass(w.category, torchstrata.FallbackWarning) for w in caught)


def test_passes_and_decompositions_of_installed_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(
        tmp_path, "passing", {"cosines": f"{__name__}:COSINES", "gone": "no_module:X"}, "passes"
    )
    install(tmp_path, "rules", {"tripling": f"{__name__}:TRIPLING"}, "decompositions")
    install(tmp_path, "running", {"noted": f"{__name__}:run_noted"}, "backends")
    monkeypatch.syspath_prepend(tmp_path)
    x = torch.randn(4, 5)
    torch.testing.assert_close(compiled("cosines")(x), expected(x))
    tripled = torchstrata.compile(twice, decompositions="tripling", fullgraph=True)
    torch.testing.assert_close(tripled(x), 3 * x)
    torch.testing.assert_close(torchstrata.compile(program, backend="noted")(x), program(x))
    assert calls == ["prims", "rule", "backend"]
    for name, message in {
        "gone": r"pass 'gone' \(passing 1.5, no_module:X\) can't be loaded: ModuleNotFoundError",
        "other": r"no installed pass is called 'other'; there are: 'cosines' \(passing",
    }.items():
        with pytest.raises(torchstrata.UsageError, match=message):
            compiled(name)
    with pytest.raises(
        torchstrata.UsageError,
        match="no installed decomposition table is called 'none'.*'tripling'",
    ):
        torchstrata.compile(twice, decompositions="none")
    lines = {line.split()[0]: line for line in backends(check=False)}
    assert "passing 1.5" in lines["cosines"] and "can't be loaded" in lines["gone"]
    assert "decompositions" in lines["tripling"] and "running 1.5" in lines["noted"]


def run_noted(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    calls.append("backend")
    return graph.forward


def test_two_backends_of_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "one", {"noted": f"{__name__}:run_noted"}, "backends")
    install(tmp_path, "two", {"noted": f"{__name__}:twice"}, "backends")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(torchstrata.UsageError, match="2 installed backends are called 'noted'"):
        torchstrata.compile(program, backend="noted")


@torch.library.custom_op("extension_tests::twice", mutates_args=())
def twice_op(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


@twice_op.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def twice(x: torch.Tensor) -> torch.Tensor:
    return torch.ops.extension_tests.twice(x)


def by_factor(factor: int, key: str | None = None) -> DecompositionTable:
    def rule(x: Any) -> Any:
        calls.append("rule")
        return prims.mul(x, factor)

    return DecompositionTable({"extension_tests::twice": rule}, key=key)


TRIPLING = by_factor(3)


@pytest.mark.parametrize(("key", "runs"), [("1", 1), (None, 2)])
def test_decompositions(tmp_path: Path, key: str | None, runs: int) -> None:
    x, own = torch.randn(4, 5), {"cache_dir": str(tmp_path), "verify": False}
    for _ in range(2):
        chosen = torchstrata.compile(twice, decompositions=by_factor(5, key), options=own)
        torch.testing.assert_close(chosen(x), 5 * x)
        torchstrata.reset()
    assert calls == ["rule"] * runs
    torch.testing.assert_close(torchstrata.compile(twice, options=own)(x), 2 * x)
    torchstrata.reset()
    both = [by_factor(5, key), by_factor(7, key)]  # the later one wins
    last = torchstrata.compile(twice, decompositions=both, options=own)
    torch.testing.assert_close(last(x), 7 * x)


def test_graphs_of_other_front_ends() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (twice(x).sin(),)

    x = torch.randn(4, 5)
    graph = torch.fx.symbolic_trace(function)
    run = torchstrata.compile_fx(graph, [x], passes=[COSINES], decompositions=TRIPLING)
    torch.testing.assert_close(run(x)[0], (3 * x).cos())
    prim_graph = primops.decompose(trace(program, x))
    host = loopir.compile_graph(
        prim_graph, [x], passes=[COSINES, NOTING], codegens={"cpu": CppCodeGenerator()}
    )
    torch.testing.assert_close(host(x)[0], expected(x))
    assert host.program.decisions == ()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"passes": 3}, "passes must be a list"),
        ({"passes": "cosines"}, "passes must be a list"),
        ({"passes": [with_cosines]}, "a pass is a GraphPass or the name"),
        ({"passes": [COSINES, COSINES]}, "two passes are called 'cosines'"),
        ({"decompositions": 3}, "3 is a int"),
        ({"decompositions": {"aten::sin": torch.cos}}, "is a dict"),
        ({"passes": [COSINES], "backend": "eager"}, "passes belong to the backend"),
        ({"decompositions": TRIPLING, "backend": "eager"}, "decompositions belong to the backend"),
    ],
)
def test_bad_choices(given: dict[str, Any], message: str) -> None:
    with pytest.raises(torchstrata.UsageError, match=message):
        torchstrata.compile(program, **given)


@pytest.mark.parametrize(
    "given",
    [(3, "prims", str), ("a/b", "prims", str), ("a", "atens", str), ("a", "prims", 3)],
)
def test_bad_passes(given: tuple[Any, ...]) -> None:
    with pytest.raises(loopir.ExtensionError):
        GraphPass(*given)
    with pytest.raises(loopir.ExtensionError, match="key must be a string"):
        GraphPass("a", "prims", str, 3)  # type: ignore[arg-type]
