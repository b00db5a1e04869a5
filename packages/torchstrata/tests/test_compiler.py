"""The names of ``torch.compiler``: each does what its namesake does for ``torch.compile``."""

from __future__ import annotations

import logging
from types import ModuleType
from typing import Any

import pytest
import torch
import torchstrata
from torchstrata import UsageError, compiler

BOTH = pytest.mark.parametrize(
    ("compile", "names"),
    [(torchstrata.compile, compiler), (torch.compile, torch.compiler)],
    ids=["torchstrata", "torch"],
)
"""A test with this mark says of both stacks what they do."""


@pytest.fixture(autouse=True)
def fresh() -> Any:
    yield
    for names in (compiler, torch.compiler):
        names.reset()
        names.set_default_backend(None)
        names.set_stance("default")


class Graphs:
    """A backend that runs graphs as they are; ``sizes`` has the first input's shape of each."""

    def __init__(self) -> None:
        self.sizes: list[list[Any]] = []
        self.runs = 0
        self.given: list[dict[str, Any]] = []

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any], **given: Any) -> Any:
        self.given.append(given)
        metas = [node.meta for node in graph.graph.find_nodes(op="placeholder")]
        values = [meta.get("val", meta.get("example_value")) for meta in metas]
        tensor = next(one for one in values if isinstance(one, torch.Tensor))
        self.sizes.append([type(size) for size in tensor.shape])

        def run(*values: Any) -> Any:
            self.runs += 1
            return graph.forward(*values)

        return run


def test_each_public_name_is_there_or_has_a_reason() -> None:
    for name in torch.compiler.__all__:
        if name in compiler.__all__:
            assert callable(getattr(compiler, name)), name
        else:
            with pytest.raises(AttributeError, match=f"no '{name}': ."):
                getattr(compiler, name)
    with pytest.raises(AttributeError, match=r"no 'is_compilin'$"):
        compiler.is_compilin


@BOTH
def test_flags_differ_inside_and_outside(compile: Any, names: ModuleType) -> None:
    def flags(x: torch.Tensor) -> Any:
        return x + 1, names.is_compiling(), names.is_dynamo_compiling(), names.is_exporting()

    assert flags(torch.ones(2))[1:] == (False, False, False)
    inside = compile(flags, backend="eager", fullgraph=True)
    assert inside(torch.ones(2))[1:] == (True, True, False)


@BOTH
def test_default_backend_is_asked_when_compile_is_called(compile: Any, names: ModuleType) -> None:
    backend = Graphs()
    assert names.get_default_backend() == "inductor"
    names.set_default_backend(backend)
    assert names.get_default_backend() is backend
    compiled = compile(lambda x: x + 1)
    names.set_default_backend(None)
    assert names.get_default_backend() == "inductor"
    compiled(torch.ones(2))
    assert backend.runs == 1


def test_default_backend_must_be_a_name_or_a_callable() -> None:
    with pytest.raises(UsageError, match="a name or a callable, not int"):
        compiler.set_default_backend(3)


@BOTH
def test_eager_then_compile_learns_from_the_first_call(compile: Any, names: ModuleType) -> None:
    backend = Graphs()
    compiled = compile(lambda x: x * 2, backend=backend)
    with names.set_stance("eager_then_compile"):
        compiled(torch.ones(3, 4))
        assert backend.sizes == []
        assert torch.equal(compiled(torch.ones(5, 4)), torch.full((5, 4), 2.0))
        compiled(torch.ones(6, 4))
    assert backend.sizes == [[torch.SymInt, int]]
    assert backend.runs == 2


@BOTH
def test_eager_then_compile_keeps_what_stays(compile: Any, names: ModuleType) -> None:
    backend = Graphs()
    compiled = compile(lambda x: x * 2, backend=backend)
    with names.set_stance("eager_then_compile"):
        compiled(torch.ones(3))
        compiled(torch.ones(3))
    assert backend.sizes == [[int]]


def test_eager_then_compile_looks_into_containers() -> None:
    backend = Graphs()
    compiled = compiler.compile(lambda d, n: d["x"][0] * n, backend=backend)
    with compiler.set_stance("eager_then_compile"):
        for size in (3, 5, 7):
            x = torch.ones(size)
            assert torch.equal(compiled({"x": [x]}, size), x * size)
    assert backend.sizes == [[torch.SymInt]]


@BOTH
def test_stance_as_decorator(compile: Any, names: ModuleType) -> None:
    backend = Graphs()
    compiled = compile(lambda x: x + 1, backend=backend)

    @names.set_stance("force_eager")
    def eagerly(x: torch.Tensor) -> torch.Tensor:
        return compiled(x)

    assert torch.equal(eagerly(torch.ones(2)), torch.full((2,), 2.0))
    assert backend.runs == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"skip_guard_eval_unsafe": True}, "guards can't be left out"),
        ({"force_backend": "eager"}, "keeps its backend"),
    ],
)
def test_unsound_stances_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        compiler.set_stance(**arguments)


def test_misspelt_stance() -> None:
    with pytest.raises(Exception, match="did you mean 'force_eager'"):
        compiler.set_stance("force-eager")


@BOTH
def test_nested_region_runs_as_its_function(compile: Any, names: ModuleType) -> None:
    @names.nested_compile_region
    def layer(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * 2

    def stacked(x: torch.Tensor) -> torch.Tensor:
        return layer(layer(x)) + 1

    x = torch.randn(4)
    assert torch.equal(layer(x), x.sin() * 2)
    backend = Graphs()
    assert torch.equal(compile(stacked, backend=backend, fullgraph=True)(x), stacked(x))
    assert backend.runs == 1


@BOTH
def test_maybe_mark_dynamic_gives_way(compile: Any, names: ModuleType) -> None:
    from torch._dynamo import maybe_mark_dynamic as torch_mark

    mark = compiler.maybe_mark_dynamic if names is compiler else torch_mark
    free, specialised = Graphs(), Graphs()
    x = torch.ones(3)
    mark(x, 0)
    compile(lambda x: x + 1, backend=free)(x)
    assert free.sizes == [[torch.SymInt]]
    compile(lambda x: x + 1 if x.shape[0] == 3 else x, backend=specialised)(x)
    assert specialised.runs == 1


def test_lists_of_backends() -> None:
    def mine(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        return graph.forward

    assert compiler.register_backend(mine, name="test_mine") is mine
    assert {"inductor", "test_mine"} <= set(compiler.list_backends())
    assert "eager" not in compiler.list_backends()
    assert "eager" in compiler.list_backends(exclude_tags=())
    assert "eager" in torch.compiler.list_backends(exclude_tags=())
    assert torchstrata.compile(lambda x: x + 1, backend="test_mine")(torch.ones(1)).item() == 2
    with pytest.raises(Exception, match="another backend is called 'test_mine'"):
        compiler.register_backend(lambda graph, inputs: graph, name="test_mine")


@BOTH
def test_step_mark_is_harmless(compile: Any, names: ModuleType) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        names.cudagraph_mark_step_begin()
        return x + 1

    assert step(torch.ones(1)).item() == 2
    if names is compiler:  # torch's is for the loop around: inside, it ends the graph
        assert compile(step, backend="eager", fullgraph=True)(torch.ones(1)).item() == 2


@BOTH
@pytest.mark.parametrize(
    "given", [{}, {"mode": "default"}, {"mode": "fast"}, {"options": {"level": 3}}]
)
def test_backends_get_mode_and_options(compile: Any, names: ModuleType, given: Any) -> None:
    backend = Graphs()
    compile(lambda x: x + 1, backend=backend, **given)(torch.ones(2))
    expected = {} if given == {"mode": "default"} else given
    assert backend.given == [expected]


def test_equal_options_share_and_others_do_not() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    backend = Graphs()
    for level in (1, 1, 2):
        compiled = torchstrata.compile(function, backend=backend, options={"level": level})
        compiled(torch.ones(2))
    assert backend.given == [{"options": {"level": 1}}, {"options": {"level": 2}}]


def test_backend_that_takes_no_options_is_told_at_once() -> None:
    def plain(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        return graph.forward

    with pytest.raises(UsageError, match=r"plain is called as plain\(graph.*mode=\.\.\."):
        torchstrata.compile(lambda x: x, backend=plain, mode="max-autotune")


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_debugging_backends_ignore_mode_and_say_so(
    backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "torchstrata"):
        compiled = torchstrata.compile(
            lambda x: x + 1, backend=backend, mode="max-autotune", options={"fallback": "error"}
        )
    assert compiled(torch.ones(1)).item() == 2
    assert [one.message for one in caplog.records] == [f"the backend {backend!r} ignores mode"]


def test_nopython_is_fullgraph() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        torchstrata.graph_break()
        return x + 1

    with pytest.raises(torchstrata.UsageError, match="nopython must be True or False"):
        torchstrata.compile(broken, nopython=1)
    for compiled in (
        torchstrata.compile(broken, nopython=True),
        torchstrata.compile(nopython=True)(broken),
    ):
        with pytest.raises(Exception, match="BD009"):
            compiled(torch.ones(2))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "max_autotune"}, "did you mean 'max-autotune'"),
        ({"backend": "inducter"}, "did you mean 'inductor'"),
        ({"options": {"cuda_graph": True}}, "did you mean 'cuda_graphs'"),
        ({"options": {"guard_filter_fn": len}}, "guards can't be left out"),
    ],
)
def test_misspelt_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        torchstrata.compile(lambda x: x, **arguments)
