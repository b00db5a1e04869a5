"""``compile()`` as function, decorator and on modules; its counters and its errors."""

from __future__ import annotations

import errno
import io
import os
import pickle
import warnings
from pathlib import Path

import aotgrad
import bytecode_dynamo
import primops.text
import pytest
import torch
import torchstrata


@pytest.fixture(autouse=True)
def fresh_compiler():
    torchstrata.reset()
    yield


class Scale(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([2.0]))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * self.weight if self.training else x


def test_decorator_with_and_without_arguments() -> None:
    @torchstrata.compile
    def plain(x):
        return x + 1

    @torchstrata.compile(fullgraph=True, dynamic=False)
    def configured(x):
        return x + 1

    x = torch.randn(3)
    assert torch.equal(plain(x), x + 1)
    assert torch.equal(configured(x), x + 1)
    assert plain.__wrapped__(x).equal(x + 1)
    assert plain.__name__ == "plain"


def test_compiled_module_shares_state() -> None:
    model = Scale()
    compiled = torchstrata.compile(model)
    assert isinstance(compiled, Scale)
    assert compiled.__wrapped__ is model
    assert compiled.weight is model.weight
    assert list(compiled.state_dict()) == list(model.state_dict())
    x = torch.randn(4)
    assert torch.equal(compiled(x), x * 2)
    compiled.eval()
    assert not model.training
    assert torch.equal(compiled(x), x)
    model.train()
    with torch.no_grad():
        model.weight.fill_(3)
    assert torch.equal(compiled(x), x * 3)
    compiled.weight = torch.nn.Parameter(torch.tensor([5.0]))
    assert torch.equal(compiled(x), x * 5)
    assert model.weight is compiled.weight
    assert model.calls == 4


def test_pickle_is_compiled() -> None:
    compiled = torchstrata.compile(Scale())
    restored = pickle.loads(pickle.dumps(compiled))
    assert isinstance(restored, Scale) and type(restored).__wrapped__ is Scale
    buffer = io.BytesIO()
    torch.save(compiled.state_dict(), buffer)


def test_compile_fx_takes_any_graph() -> None:
    graph = torch.fx.symbolic_trace(lambda x, y: torch.softmax(x @ y, dim=-1))
    x, y = torch.randn(3, 4), torch.randn(4, 5)
    (result,) = _as_tuple(torchstrata.compile_fx(graph, [x, y])(x, y))
    torch.testing.assert_close(result, torch.softmax(x @ y, dim=-1))


def _as_tuple(value):
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def test_counters_are_flat_and_reset() -> None:
    torchstrata.compile(lambda x: x + 1)(torch.ones(2))
    kinds = [
        "graphs",
        "kept_frames",
        "graph_breaks",
        "recompiles",
        "generated_kernels",
        "extern_calls",
        "cheaper_graphs",
        "fallbacks",
        "failed_graphs",
    ]
    assert list(torchstrata.counters) == [*kinds, "cache_hits", "cache_misses", "cuda_graphs"]
    assert torchstrata.counters["graphs"] == 1
    assert torchstrata.counters["generated_kernels"] == 1
    torchstrata.reset()
    assert set(torchstrata.counters.values()) == {0}


def test_second_compile_hits_the_store(tmp_path) -> None:
    options = {"cache_dir": str(tmp_path)}
    torchstrata.compile(lambda x: (x * 3).exp(), options=options)(torch.ones(5))
    assert torchstrata.counters["cache_misses"] > 0
    torchstrata.reset()
    torchstrata.compile(lambda x: (x * 3).exp(), options=options)(torch.ones(5))
    assert torchstrata.counters["cache_misses"] == 0
    assert torchstrata.counters["cache_hits"] > 0


def test_named_and_callable_backends() -> None:
    graphs = []

    def backend(graph, example_inputs):
        graphs.append(graph)
        return graph.forward

    x = torch.randn(3)
    assert torch.equal(torchstrata.compile(lambda x: x + 1, backend=backend)(x), x + 1)
    assert torch.equal(torchstrata.compile(lambda x: x + 2, backend="eager")(x), x + 2)
    assert len(graphs) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "fastest"}, "unknown mode 'fastest'.*default"),
        ({"mode": ["default"]}, "unknown mode"),
        ({"dynamic": "yes"}, "dynamic must be True, False or None"),
        ({"dynamic": 1}, "dynamic must be True, False or None, not 1"),
        ({"fullgraph": "no"}, "fullgraph must be True or False, not 'no'"),
        ({"disable": None}, "disable must be True or False, not None"),
        ({"backend": "no-such"}, "no-such.*aot_eager.*torchstrata"),
        ({"backend": 3}, "backend must be a name or a callable"),
        ({"options": ["fusion"]}, "mapping of names to values, not list"),
        ({"options": {"speed": True}}, "unknown option 'speed'.*fallback"),
        ({"options": {"fallback": "never"}}, "'fallback' is 'never'.*'eager' or 'error'"),
    ],
)
def test_bad_arguments_say_what_is_valid(arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        torchstrata.compile(lambda x: x, **arguments)


@pytest.mark.parametrize(
    ("given", "message"), [(3, "a torch.nn.Module or a class, not int"), (int, "instances of int")]
)
def test_not_callable(given, message) -> None:
    with pytest.raises(torchstrata.UsageError, match=message):
        torchstrata.compile(given)


def test_compile_fx_refuses_what_is_no_graph() -> None:
    with pytest.raises(torchstrata.UsageError, match="a torch.fx.GraphModule, not function"):
        torchstrata.compile_fx(lambda x: x, [])


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        ([], "has 1 placeholders \\(x\\), but example_inputs has 0 values"),
        ([torch.ones(3)] * 2, "example_inputs has 2 values"),
        (torch.ones(3), "must be a list or tuple .*, not Tensor"),
        (None, "must be a list or tuple .*, not NoneType"),
    ],
)
def test_compile_fx_names_what_examples_it_takes(examples, message) -> None:
    graph = torch.fx.symbolic_trace(lambda x: x + 1)
    with pytest.raises(torchstrata.UsageError, match=message):
        torchstrata.compile_fx(graph, examples)


def test_a_decorator_refuses_its_arguments_at_once() -> None:
    with pytest.raises(torchstrata.UsageError, match="fullgraph must be"):
        torchstrata.compile(fullgraph="no")


def test_disabled_is_the_original() -> None:
    model = Scale()
    assert torchstrata.compile(model, disable=True) is model
    assert torchstrata.compile(disable=True)(_fail) is _fail


def test_every_listed_backend_compiles() -> None:
    x = torch.randn(3)
    for name in torchstrata.list_backends():
        assert torch.equal(torchstrata.compile(lambda x: x + 2, backend=name)(x), x + 2), name


def test_decorated_class_compiles_its_instances() -> None:
    @torchstrata.compile
    class Shift(Scale):
        def forward(self, x):
            return super().forward(x) + 1

    @torchstrata.compile(fullgraph=True)
    class Add:
        def __call__(self, x):
            return x + 1

    x = torch.randn(3)
    assert torch.equal(Shift()(x), x * 2 + 1)
    assert torch.equal(Add()(x), x + 1)
    assert torchstrata.counters["graphs"] == 2


def test_compiled_method_is_part_of_the_graph_around_it() -> None:
    class Twice(torch.nn.Module):
        @torchstrata.compile
        def forward(self, x):
            return x * 2

    model, x = Twice(), torch.randn(3)
    assert torch.equal(torchstrata.compile(lambda x: model(x) + 1, fullgraph=True)(x), x * 2 + 1)
    assert torchstrata.counters["graphs"] == 1


def test_raising_backend_is_named() -> None:
    def broken(graph, example_inputs):
        raise RuntimeError("no luck")

    with pytest.raises(Exception, match=r"broken[\s\S]*no luck"):
        torchstrata.compile(lambda x: x + 1, backend=broken)(torch.ones(2))


def test_backend_that_returns_no_callable_is_named() -> None:
    def numeric(graph, example_inputs):
        return 3

    with pytest.raises(Exception, match=r"numeric[\s\S]*int"):
        torchstrata.compile(lambda x: x + 1, backend=numeric)(torch.ones(2))


def test_compiler_that_is_not_where_it_was_named_is_a_clear_error(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("STRATA_CXX", "/nowhere/c++")
    compiled = torchstrata.compile(lambda x: x.exp() + 17, options={"cache_dir": str(tmp_path)})
    with pytest.raises(Exception, match=r"/nowhere/c\+\+"):
        compiled(torch.ones(3))


def without_compiler(monkeypatch, tmp_path) -> None:
    for name in ("STRATA_CXX", "CXX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))


def test_machine_without_a_compiler_runs_eagerly_with_one_warning(monkeypatch, tmp_path) -> None:
    without_compiler(monkeypatch, tmp_path)
    functions = [
        torchstrata.compile(f, options={"cache_dir": str(tmp_path / "new")})
        for f in (torch.sin, lambda x: x.exp() + 17)
    ]
    x = torch.ones(3, requires_grad=True)
    with pytest.warns(torchstrata.FallbackWarning, match="can't find a C\\+\\+ compiler") as caught:
        results = [f(x) for f in functions]
    assert len(caught) == 1 and torchstrata.counters["fallbacks"] == 2
    assert torch.equal(results[0], x.sin()) and torch.equal(results[1], x.exp() + 17)
    results[1].sum().backward()
    assert torch.equal(x.grad, x.detach().exp())


@pytest.mark.parametrize("arguments", [{"fullgraph": True}, {"options": {"fallback": "error"}}])
def test_machine_without_a_compiler_is_an_error_on_request(
    monkeypatch, tmp_path, arguments
) -> None:
    without_compiler(monkeypatch, tmp_path)
    with pytest.raises(Exception, match=r"apt-get install g\+\+"):
        torchstrata.compile(lambda x: x.exp() + 18, **arguments)(torch.ones(3))


def test_unusable_cache_directory_becomes_a_temporary_one() -> None:
    compiled = torchstrata.compile(lambda x: x.exp() + 19, options={"cache_dir": "/proc/nowhere"})
    with pytest.warns(
        torchstrata.StoreWarning, match="/proc/nowhere.*STRATA_CACHE_DIR.*this process only"
    ) as caught:
        assert torch.equal(compiled(torch.ones(3)), torch.ones(3).exp() + 19)
        compiled(torch.ones(4))
    assert len(caught) == 1 and torchstrata.counters["fallbacks"] == 0


def test_cache_that_fails_later_becomes_a_temporary_one(tmp_path, monkeypatch) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    x = torch.rand(5, requires_grad=True)
    monkeypatch.setattr(Path, "write_bytes", full)
    for constant in (20, 21):
        compiled = torchstrata.compile(
            lambda x, constant=constant: (x.exp() + constant).sum(),
            options={"cache_dir": str(tmp_path), "fallback": "error", "verify": False},
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            compiled(x).backward()
        assert len(caught) == (constant == 20)
    assert torchstrata.counters["fallbacks"] == 0


def test_unusable_dump_is_one_warning(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    options = {"dump": str(tmp_path / "file"), "fallback": "error"}
    with pytest.warns(torchstrata.StoreWarning, match="STRATA_DUMP.*can't be written") as caught:
        for constant in (22, 23):
            compiled = torchstrata.compile(lambda x, c=constant: x.exp() + c, options=options)
            assert torch.equal(compiled(torch.ones(3)), torch.ones(3).exp() + constant)
    assert len(caught) == 1 and torchstrata.counters["fallbacks"] == 0


def test_failure_inside_gives_eager_and_one_warning(monkeypatch) -> None:
    import primops

    monkeypatch.setattr(primops, "decompose", _fail)
    compiled = torchstrata.compile(lambda x: x + 17.25)  # no other test keeps its program
    x = torch.ones(3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            assert torch.equal(compiled(x), x + 17.25)
    messages = [
        str(w.message) for w in caught if issubclass(w.category, torchstrata.FallbackWarning)
    ]
    assert len(messages) == 1
    assert "primops failed" in messages[0] and "a bug of ours" in messages[0]
    assert torchstrata.counters["fallbacks"] == 1


@pytest.mark.parametrize("arguments", [{"fullgraph": True}, {"options": {"fallback": "error"}}])
def test_failure_inside_is_an_error_on_request(monkeypatch, arguments) -> None:
    import primops

    monkeypatch.setattr(primops, "decompose", _fail)

    def user_function(x):
        return x + 18.25  # the user's line

    with pytest.raises(Exception, match=r"primops failed[\s\S]*test_compile\.py"):
        torchstrata.compile(user_function, **arguments)(torch.ones(3))


def _fail(*args, **kwargs):
    raise AssertionError("a bug of ours")


def test_fullgraph_shows_the_users_line() -> None:
    def user_function(x):
        print("hello")
        return x + 1

    with pytest.raises(Exception, match=r"test_compile\.py"):
        torchstrata.compile(user_function, fullgraph=True)(torch.ones(3))


def test_dump_holds_every_stage(tmp_path) -> None:
    x = torch.randn(4, requires_grad=True)
    torchstrata.compile(lambda x: x.exp().sum(), options={"dump": str(tmp_path)})(x).backward()
    names = sorted(path.name for path in tmp_path.rglob("*") if path.is_file())
    assert "10-captured.py" in names
    for stage in ("30-prims.py", "40-loops.txt", "50-kernels.txt", "60-host.py"):
        assert f"forward-{stage}" in names and f"backward-{stage}" in names
    assert any(name.startswith("20-") for name in names)


def test_dumped_graphs_can_be_read_again(tmp_path) -> None:
    x = torch.randn(4, requires_grad=True)
    torchstrata.compile(lambda x: x.exp().sum(), options={"dump": str(tmp_path)})(x).backward()
    forms = {
        "10-captured": (bytecode_dynamo.parse_captured, bytecode_dynamo.format_captured),
        "20-joint": (aotgrad.parse_functional, aotgrad.format_functional),
        "20-forward": (aotgrad.parse_functional, aotgrad.format_functional),
        "20-backward": (aotgrad.parse_functional, aotgrad.format_functional),
        "forward-30-prims": (primops.text.parse_graph, primops.text.format_graph),
        "backward-30-prims": (primops.text.parse_graph, primops.text.format_graph),
    }
    for name, (parse, write) in forms.items():
        (path,) = tmp_path.rglob(f"{name}.py")
        text = path.read_text()
        assert "test_compile.py" in text
        assert write(parse(text)) == text


@pytest.mark.parametrize("strict", [False, True])
def test_a_compiled_module_inside_is_exported(strict):
    model = torch.nn.Sequential(torchstrata.compile(torch.nn.Linear(4, 3)), torch.nn.Tanh())
    x = torch.randn(2, 4)
    expected = model(x)
    exported = torch.export.export(model, (x,), strict=strict)
    assert exported.graph.find_nodes(op="call_function", target=torch.ops.aten.linear.default)
    torch.testing.assert_close(exported.module()(x), expected)
