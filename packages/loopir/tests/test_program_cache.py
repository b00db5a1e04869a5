"""Programs that are kept: what was compiled before is only built, and never in the place of
something else.
"""

import json
import math
import operator
import sys
import types

import pytest
import torch
from loopir import (
    ArtifactStore,
    ExternError,
    GeneratorError,
    KernelSource,
    Options,
    ProgramCacheEntry,
    Undescribed,
    compile_graph,
    describe,
    format_program,
    package_versions,
    parse_kernel,
    parse_program,
    schedule,
)
from loopir.testing import EvaluatorCodeGenerator
from primops.testing import trace
from symshapes import FakeTensorMode


class Reproducible(EvaluatorCodeGenerator):
    def identity(self):
        return ("evaluator",)


class Stored(Reproducible):
    """Describes its launchers by the texts of kernels, and loads what ``kept`` says."""

    kept = None

    def build(self, sources, store):
        made = super().build(sources, store)
        for launcher, source in zip(made, sources, strict=True):
            launcher.text = source.text
        return made

    link = None

    def describe_launchers(self, launchers):
        return json.dumps([launcher.text for launcher in launchers])

    def load_launchers(self, text, store):
        if isinstance(self.kept, Exception):
            raise self.kept
        if self.kept is not None:
            return self.kept.pop()
        sources = [KernelSource(parse_kernel(each), each) for each in json.loads(text)]
        return super().build(sources, store)


@pytest.fixture
def store(tmp_path):
    return ArtifactStore(tmp_path)


@pytest.fixture
def compiled(store, monkeypatch):
    """``compiled(fn, *args)`` is the host program and whether it was scheduled."""
    scheduled = []

    def counting(*args):
        scheduled.append(args)
        return schedule(*args)

    monkeypatch.setattr("loopir.compile.schedule", counting)

    def compile_traced(fn, *args, codegens=None, **options):
        before = len(scheduled)
        host = compile_graph(
            trace(fn, *args),
            args,
            codegens=codegens or {"cpu": Reproducible()},
            store=store,
            options=Options(check=False, **options),
        )
        return host, len(scheduled) - before

    return compile_traced


def test_the_same_graph_is_only_built(compiled):
    x = torch.randn(4, 6)
    first, made = compiled(lambda x: torch.softmax(x * 2, 1).mm(x.t()), x)
    again, made_again = compiled(lambda y: torch.softmax(y * 2, 1).mm(y.t()), x)
    assert made > 0 and made_again == 0
    assert (
        again.source == first.source
        and again.extern_ops == first.extern_ops
        and again.kernel_count == first.kernel_count
    )
    assert torch.equal(again(x)[0], first(x)[0])


@pytest.mark.parametrize(
    ("fn", "x"),
    [
        (lambda x: x * 3 + 1, torch.ones(4, 6)),
        (lambda x: x * 2.0 + 1, torch.ones(4, 6)),
        (lambda x: x * True + 1, torch.ones(4, 6)),
        (lambda x: x * 2 + 1, torch.ones(6, 4).t()),
        (lambda x: x * 2 + 1, torch.ones(4, 6, dtype=torch.float64)),
        (lambda x: x * 2 + 1, torch.ones(4, 1)),
        (lambda x: (x * 2 + 1).to(torch.bfloat16), torch.ones(4, 6)),
        (lambda x: x * 2 + x, torch.ones(4, 6)),
    ],
)
def test_another_graph_is_another(compiled, fn, x):
    compiled(lambda x: x * 2 + 1, torch.ones(4, 6))
    host, made = compiled(fn, x)
    assert made == 1
    assert torch.equal(host(x)[0], fn(x))


def test_settings_and_the_process_count(compiled):
    x = torch.ones(300)
    compiled(lambda x: x.exp().sum(), x)
    assert compiled(lambda x: x.exp().sum(), x, threads=7)[1] > 0
    torch.use_deterministic_algorithms(True)
    try:
        assert compiled(lambda x: x.exp().sum(), x)[1] > 0
    finally:
        torch.use_deterministic_algorithms(False)
    assert compiled(lambda x: x.exp().sum(), x)[1] == 0


def test_constants_are_the_graphs_own(compiled):
    x = torch.randn(3, 100)
    for _ in range(2):
        weight = torch.randn(100)
        host, made = compiled(lambda x, weight=weight: x * weight, x)
        assert torch.equal(host(x)[0], x * weight)
    assert made == 0
    number = torch.tensor(2.5)  # its value is in the kernel
    assert torch.equal(compiled(lambda x: x * number, x)[0](x)[0], x * number)
    number = torch.tensor(3.5)
    assert torch.equal(compiled(lambda x: x * number, x)[0](x)[0], x * number)


def test_user_lines_are_those_of_the_graph(compiled, store):
    x = torch.randn(5)

    def traced(line):
        graph = trace(lambda x: torch.linalg.inv(x.exp().diag()), x)
        for node in graph.graph.nodes:
            node.meta["stack_trace"] = f'  File "model.py", line {line}, in forward\n    inverse'
        return compile_graph(
            graph, [x], codegens={"cpu": Reproducible()}, store=store, options=Options(check=False)
        )

    first, again = traced(3), traced(80)
    assert [k.origins[0][1] for k in first.program.kernels] == ["inverse  (model.py:3)"] * len(
        first.program.kernels
    )
    assert [k.origins[0][1] for k in again.program.kernels] == ["inverse  (model.py:80)"] * len(
        first.program.kernels
    )


@pytest.fixture
def unread(monkeypatch):
    """How many stored texts of programs were read."""
    read = []

    def counting(*args):
        read.append(args)
        return parse_program(*args)

    monkeypatch.setattr("loopir.ir.parse_program", counting)
    return read


def test_a_host_function_is_loaded_without_the_loop_ir(compiled, unread):
    weight = torch.randn(4, 6)

    def fn(x):
        return torch.linalg.inv((x @ weight.t()).exp()) * math.inf, x.sum(dtype=torch.float64)

    x, codegens = torch.randn(4, 6), {"cpu": Stored()}
    first, _ = compiled(fn, x, codegens=codegens)
    again, made = compiled(fn, x, codegens=codegens)
    assert made == 0 and unread == []
    assert again.source == first.source and again.facts == first.facts
    assert all(map(torch.equal, again(x), first(x)))
    assert again.planned_peak == first.planned_peak and len(unread) == 1
    assert format_program(again.program) == format_program(first.program)
    assert [source.text for source in again.sources] == [source.text for source in first.sources]


def test_launchers_that_are_gone_are_built_from_the_loop_ir(compiled, unread, monkeypatch):
    x, codegen = torch.randn(5), Stored()
    fn = lambda x: (x.exp() * 2).cumsum(0)  # noqa: E731
    first, _ = compiled(fn, x, codegens={"cpu": codegen})
    for kept in ([None], [[]]):
        monkeypatch.setattr(Stored, "kept", kept)
        again, made = compiled(fn, x, codegens={"cpu": codegen})
        assert made == 0 and len(unread) == 1
        assert torch.equal(again(x)[0], first(x)[0])
        unread.clear()


def test_a_generator_that_can_not_load_is_named(compiled, monkeypatch):
    x, codegen = torch.randn(5), Stored()
    compiled(lambda x: x.exp(), x, codegens={"cpu": codegen})
    monkeypatch.setattr(Stored, "kept", ValueError("torn"))
    with pytest.raises(GeneratorError, match=r"Stored.*raised when asked to load launchers.*torn"):
        compiled(lambda x: x.exp(), x, codegens={"cpu": codegen})


@pytest.mark.parametrize("codegen", [Stored(), Reproducible()])
def test_results_of_operators_are_checked_with_the_line_of_the_graph(compiled, store, codegen):
    x = torch.randn(3)

    def traced(line):
        graph = trace(lambda x: torch.ops.stored_programs.twice(x).exp(), x)
        for node in graph.graph.nodes:
            node.meta["stack_trace"] = f'  File "model.py", line {line}, in forward\n    twice(x)'
        return compile_graph(
            graph, [x], codegens={"cpu": codegen}, store=store, options=Options(check=False)
        )

    with torch.library._scoped_library("stored_programs", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        results = [torch.randn(3) for _ in range(2)]
        library.impl("twice", lambda x: results.pop() if results else x.double(), "CPU")
        for line, host in [(line, traced(line)) for line in (3, 80)]:
            with pytest.raises(ExternError, match=f"model.py:{line}"):
                host(x)


def test_what_can_not_be_described_is_compiled_each_time(compiled, store):
    x = torch.ones(3)
    assert compiled(lambda x: x.exp(), x, codegens={"cpu": EvaluatorCodeGenerator()})[0](x)[
        0
    ].equal(x.exp())
    graph = torch.fx.symbolic_trace(lambda x: x.exp())
    value = FakeTensorMode().from_real(x, source="x", dynamic_dims=[0])
    graph.graph.find_nodes(op="placeholder")[0].meta["val"] = value
    assert ProgramCacheEntry.of(graph, {"cpu": Reproducible()}, store) is not None
    value.shape[0].node.shape_env.create_unbacked_symint()  # a size that depends on data
    assert ProgramCacheEntry.of(graph, {"cpu": Reproducible()}, store) is None
    graph.graph.find_nodes(op="placeholder")[0].meta["val"] = operator.add
    assert ProgramCacheEntry.of(graph, {"cpu": Reproducible()}, store) is not None
    graph.graph.find_nodes(op="placeholder")[0].meta["hook"] = lambda: None
    assert ProgramCacheEntry.of(graph, {"cpu": Reproducible()}, store) is None
    assert list(store.root.glob("*/*.program")) == []


def test_symbolic_sizes_are_part_of_the_key(store):
    def key(rows, dims, assume=lambda size: None):
        value = FakeTensorMode().from_real(torch.ones(rows, 3), source="x", dynamic_dims=dims)
        assume(value.shape[0])
        graph = torch.fx.symbolic_trace(lambda x: x.exp())
        graph.graph.find_nodes(op="placeholder")[0].meta["val"] = value
        return ProgramCacheEntry.of(graph, {"cpu": Reproducible()}, store).key

    keys = [
        key(4, []),
        key(4, [0]),
        key(6, [0]),  # the example decides what is not known
        key(4, [0, 1]),
        key(4, [0], lambda rows: bool(rows > 2)),
        key(4, [0], lambda rows: bool(rows % 2 == 0)),
    ]
    assert len(set(keys)) == len(keys)
    assert key(4, [0], lambda rows: bool(rows > 2)) == keys[4]


def test_a_file_of_another_form_is_a_miss(compiled, store):
    x = torch.ones(7)
    compiled(lambda x: x.exp(), x)
    (path,) = store.root.glob("*/*.program")
    store.put(path.stem, ".program", b"something else")
    host, made = compiled(lambda x: x.exp(), x)
    assert made == 1 and torch.equal(host(x)[0], x.exp())
    assert compiled(lambda x: x.exp(), x)[1] == 0


def test_only_the_generators_of_the_graphs_devices_are_asked(compiled):
    class Elsewhere(Reproducible):
        def identity(self):
            raise AssertionError("this wakes a device's driver")

    x = torch.ones(11)
    for made in (1, 0):
        assert (
            compiled(
                lambda x: x.cos(), x, codegens={"cpu": Reproducible(), "cuda": Elsewhere("cuda")}
            )[1]
            == made
        )


def test_what_a_generator_says_of_the_machine_counts(compiled, monkeypatch):
    x = torch.ones(13)
    assert compiled(lambda x: x.sin(), x)[1] == 1
    monkeypatch.setattr(Reproducible, "identity", lambda self: ("another processor",))
    assert compiled(lambda x: x.sin(), x)[1] == 1
    monkeypatch.undo()
    assert compiled(lambda x: x.sin(), x)[1] == 0


def test_texts_of_arguments():
    graph = torch.fx.Graph()
    node = graph.placeholder("x")
    text = describe(((node, 2), {"dim": [1, node]}, slice(None, node), ...))
    assert text == "tuple(tuple(%x, 2), {'dim': list(1, %x)}, slicetuple(None, %x, None), Ellipsis)"
    assert describe((len, torch.sin)) == "tuple(builtins.len, torch.sin)"


@pytest.mark.parametrize("function", [test_texts_of_arguments, lambda: 0, type("Local", (), {})])
def test_code_outside_torch_is_not_described_wherever_it_stands(function):
    for arguments in (
        function,
        (function,),
        [1, function],
        {"key": function},
        {"key": (function,)},
    ):
        with pytest.raises(Undescribed):
            describe(arguments)


def test_files_count_by_their_contents(tmp_path, monkeypatch):
    """A package that is installed anew elsewhere has the same key; an edited one has another."""
    keys = []
    for folder, text in (("a", "x = 1"), ("b", "x = 1"), ("c", "x = 2")):
        package = tmp_path / folder / "generator_of_test"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "part.py").write_text(text)
        (package / "notes.txt").write_text(folder)
        module = types.ModuleType("generator_of_test")
        module.__file__ = str(package / "__init__.py")
        monkeypatch.setitem(sys.modules, "generator_of_test", module)
        package_versions.cache_clear()
        keys.append(package_versions("generator_of_test.part"))
    package_versions.cache_clear()
    assert keys[0] == keys[1] != keys[2]
