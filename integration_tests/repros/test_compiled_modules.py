"""Compiled modules: the call is the original's, with its ``forward`` of now, and everything else is
the original.
"""

from __future__ import annotations

import collections.abc
import copy
import functools
import gc
import inspect
import io
import pickle
import types
import weakref
from typing import Any, ClassVar

import bytecode_dynamo
import pytest
import torch

from integration_tests.repros.compiled_modules import Backend, Scale, Shift, X, runs

# -- what runs -------------------------------------------------------------------------------------


def test_forward_of_the_class_is_replaced(compiler: Any, backend: Backend) -> None:
    class Model(Scale):
        pass

    compiled = compiler(Model())
    runs(backend, compiled, X * 2)
    Model.forward = lambda self, x: x - self.weight  # type: ignore[method-assign, assignment]
    runs(backend, compiled, X - 2)
    del Model.forward
    runs(backend, compiled, X * 2)


def test_forward_of_torch_is_replaced(
    compiler: Any, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = torch.nn.Linear(4, 4)
    compiled = compiler(model)
    runs(backend, compiled, model(X))
    monkeypatch.setattr(torch.nn.Linear, "forward", lambda self, x: x @ self.weight)
    runs(backend, compiled, X @ model.weight)


def test_class_is_replaced(compiler: Any, backend: Backend) -> None:
    model = Scale()
    compiled = compiler(model)
    runs(backend, compiled, X * 2)
    model.__class__ = Shift
    assert isinstance(compiled, Shift)
    runs(backend, compiled, X + 2)
    compiled.__class__ = Scale
    assert type(model) is Scale
    runs(backend, compiled, X * 2)


@pytest.mark.parametrize(
    "forward",
    [
        lambda model: types.MethodType(lambda self, x: x - self.weight, model),
        lambda model: functools.partial(lambda k, x: x - k, 2),
        lambda model: lambda x: x - 2,
        lambda model: functools.partial(torch.sub, other=torch.tensor(2)),
        lambda model: bytecode_dynamo.optimize("eager")(lambda x: x - 2),
    ],
    ids=["method", "partial", "lambda", "builtin", "compiled"],
)
@pytest.mark.parametrize("before", [True, False])
def test_forward_of_the_instance_is_replaced(
    compiler: Any, backend: Backend, forward: Any, before: bool
) -> None:
    model = Scale()
    compiled = compiler(model)
    if before:
        runs(backend, compiled, X * 2)
        compiled.forward = forward(model)
    else:
        model.forward = forward(model)
    runs(backend, compiled, X - 2)
    del compiled.forward
    runs(backend, compiled, X * 2)


def test_graph_module_is_recompiled(compiler: Any, backend: Backend) -> None:
    model = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.ReLU()))
    compiled = compiler(model)
    runs(backend, compiled, X.relu())
    output = next(iter(model.graph.find_nodes(op="output")))
    with model.graph.inserting_before(output):
        output.args = (model.graph.call_function(torch.neg, output.args),)
    compiled.recompile()
    runs(backend, compiled, -X.relu())


def test_module_stays_eager(compiler: Any, backend: Backend) -> None:
    model = Scale()
    names = set(vars(model))
    compiled = compiler(model)
    compiled(X)
    before = backend.calls
    assert torch.equal(model(X), X * 2) and model.forward.__func__ is Scale.forward
    assert (
        backend.calls == before
        and compiled is not model
        and set(vars(model)) == names
        and type(model) is Scale
    )


def test_call_of_the_class_is_replaced(compiler: Any, backend: Backend) -> None:
    class Model(Scale):
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return super().__call__(x) + 1

    compiled = compiler(Model())
    assert torch.equal(compiled(X), X * 2 + 1)
    assert backend.calls == 1
    assert torch.equal(compiled.forward(X), X * 2)


def test_whole_graphs(compiler: Any) -> None:
    class Model(Scale):
        def forward(self, x: torch.Tensor, k: int = 1) -> torch.Tensor:
            print(end="")
            return x * 2

    for call in (lambda model: model(X), lambda model: model.forward(X)):
        with pytest.raises(bytecode_dynamo.Unsupported, match="print"):
            call(compiler(Model(), fullgraph=True))
    scale = Scale()
    compiled = compiler(scale, fullgraph=True)
    assert torch.equal(compiled(X), X * 2)
    scale.__class__ = Model
    with pytest.raises(bytecode_dynamo.Unsupported, match="print"):
        compiled(X)
    hooked = compiler(torch.nn.ReLU(), fullgraph=True)
    hooked.register_forward_hook(lambda *_: print(end=""))
    assert torch.equal(hooked(X), X.relu())


def test_run_takes_compiled_modules(compiler: Any, backend: Backend) -> None:
    compiled = compiler(torch.nn.ReLU())
    compiled(X)
    assert torch.equal(bytecode_dynamo.run(compiled)(X), X.relu()) and backend.calls == 2


# -- who sees the original -------------------------------------------------------------------------


def test_self_and_hooks_see_the_original(compiler: Any) -> None:
    class Model(Scale):
        def forward(self, x: torch.Tensor, k: int = 1) -> torch.Tensor:
            seen.append(self)
            return x * NAMES[self] + WEAK[self]

    model = Model()
    seen: list[Any] = []
    NAMES, WEAK = {model: 3}, weakref.WeakKeyDictionary({model: 1})
    compiled = compiler(model)
    handles = [
        compiled.register_forward_pre_hook(lambda module, args: seen.append(module)),
        compiled.register_forward_hook(lambda module, args, result: seen.append(module)),
    ]
    assert torch.equal(compiled(X), X * 3 + 1)
    assert [each is model for each in seen] == [True] * 3
    assert NAMES[compiled] == 3 and WEAK[compiled] == 1
    for handle in handles:
        handle.remove()
    compiled(X)
    assert len(seen) == 4 and not model._forward_hooks


def test_hooks_on_gradients(compiler: Any) -> None:
    model = Scale()
    compiled = compiler(model)
    seen: list[Any] = []
    compiled.register_full_backward_hook(
        lambda module, into, out: seen.append((module, out[0].sum().item()))
    )
    compiled(X.clone().requires_grad_()).sum().backward()
    assert [(module is model, total) for module, total in seen] == [(True, 4.0)]
    torch.testing.assert_close(model.weight.grad, X.sum().reshape(1))


def test_hooks_on_state_outlive_the_compiled_module(compiler: Any) -> None:
    model = Scale()
    seen: list[Any] = []
    compiled = compiler(model)
    compiled._register_load_state_dict_pre_hook(
        lambda module, *_: seen.append(module), with_module=True
    )
    compiled.register_state_dict_post_hook(lambda module, *_: seen.append(module))
    compiled.load_state_dict(compiled.state_dict())
    del compiled
    model.load_state_dict(model.state_dict())
    assert len(seen) == 4 and all(each is model for each in seen)


def test_lifetimes(compiler: Any) -> None:
    model = Scale()
    compiled = compiler(model)
    compiled(X)
    ends = [weakref.ref(compiled), weakref.ref(model)]
    gc.disable()
    try:
        del compiled
        assert ends[0]() is None and ends[1]() is model
        del model
        assert ends[1]() is None
    finally:
        gc.enable()


# -- classes ---------------------------------------------------------------------------------------


class Meta(type):
    made: ClassVar[list[str]] = []

    def __new__(cls, name: str, bases: Any, namespace: Any) -> Any:
        cls.made.append(name)
        return super().__new__(cls, name, bases, namespace)


class Strict(torch.nn.Module, metaclass=Meta):
    __slots__ = ("place",)
    subclasses: ClassVar[list[type]] = []

    def __init_subclass__(cls) -> None:
        cls.subclasses.append(cls)

    def __class_getitem__(cls, item: Any) -> Any:
        return cls, item

    def __getattr__(self, name: str) -> Any:
        return 7 if name == "seven" else super().__getattr__(name)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.seven * self.place


def test_no_class_is_made(compiler: Any, backend: Backend) -> None:
    model = Strict()
    model.place = 2
    made, subclasses = list(Meta.made), Strict.__subclasses__()
    compiled = compiler(model)
    runs(backend, compiled, X * 14)
    compiled.place = 3
    assert model.place == 3 and compiled.seven == 7
    runs(backend, compiled, X * 21)
    assert (Meta.made, Strict.__subclasses__(), Strict.subclasses) == (made, subclasses, [])
    assert (
        isinstance(compiled, Strict)
        and compiled.__class__ is Strict
        and compiled.__class__[int] == (Strict, int)
    )
    with pytest.raises(AttributeError, match="'Strict' object has no attribute 'other'"):
        _ = compiled.other


def test_class_reads_like_the_original(compiler: Any) -> None:
    model = Scale()
    compiled = compiler(model)
    assert (
        isinstance(compiled, Scale) and isinstance(compiled, torch.nn.Module) and callable(compiled)
    )
    assert not isinstance(compiled, collections.abc.Iterable) and not isinstance(compiled, Shift)
    cls = type(compiled)
    assert (cls.__name__, cls.__qualname__, cls.__module__) == (
        Scale.__name__,
        Scale.__qualname__,
        Scale.__module__,
    )
    assert cls.forward is Scale.forward and type(cls(3.0)) is Scale and isinstance(model, cls)
    assert (
        repr(compiled) == repr(model)
        and str(compiled) == str(model)
        and dir(compiled) == dir(model)
    )
    assert compiled.__doc__ == "Scales." and compiled._orig_mod is compiled.__wrapped__ is model
    assert (
        compiled == model
        and model == compiled
        and hash(compiled) == hash(model)
        and compiled != Scale()
    )


def test_classes_that_objects_say_they_have_reach_graphs(compiler: Any) -> None:
    class Proxy:
        __class__ = property(lambda self: Scale)  # type: ignore[assignment]

    def function(x: torch.Tensor, proxy: Any) -> Any:
        return (
            x + 1,
            isinstance(proxy, Scale),
            isinstance(proxy, Shift),
            proxy.__class__,
            type(proxy),
        )

    assert compiler(function, fullgraph=True)(X, Proxy())[1:] == function(X, Proxy())[1:]
    compiled = compiler(Scale())
    assert compiler(function, fullgraph=True)(X, compiled)[1:] == function(X, compiled)[1:]


def test_signatures(compiler: Any) -> None:
    model = Scale()
    compiled = compiler(model)
    for read in (inspect.signature, inspect.getfullargspec, inspect.getdoc, inspect.getsource):
        assert read(compiled.forward) == read(model.forward)
        assert read(type(compiled).forward) == read(Scale.forward)
    assert inspect.signature(compiled) == inspect.signature(model) and inspect.getdoc(
        compiled
    ) == inspect.getdoc(model)
    for name in (
        "__name__",
        "__qualname__",
        "__module__",
        "__doc__",
        "__annotations__",
        "__defaults__",
        "__kwdefaults__",
    ):
        assert getattr(compiled.forward, name) == getattr(model.forward, name)
    assert compiled.forward.__wrapped__ == model.forward and compiled.forward.__self__ is model
    assert inspect.signature(compiled.train) == inspect.signature(model.train)


# -- attributes and protocols ----------------------------------------------------------------------


def test_attributes_reach_the_original(compiler: Any, backend: Backend) -> None:
    model = Scale()
    compiled = compiler(model)
    compiled.extra = [1]
    compiled.bias = torch.nn.Parameter(torch.ones(1))
    compiled.inner = torch.nn.Linear(2, 2)
    compiled.register_buffer("table", torch.ones(2))
    assert (
        model.extra is compiled.extra
        and model.bias is compiled.bias
        and compiled.inner is model.inner
    )
    assert set(model.state_dict()) == {
        "weight",
        "bias",
        "steps",
        "table",
        "inner.weight",
        "inner.bias",
    }
    model.late = 5
    assert compiled.late == 5 and "late" in vars(compiled)
    for name in ("late", "bias", "inner", "table"):
        delattr(compiled, name)
        assert not hasattr(model, name)
    with pytest.raises(AttributeError, match="'Scale' object has no attribute 'late'"):
        _ = compiled.late
    compiled.weight = torch.nn.Parameter(torch.tensor([5.0]))
    runs(backend, compiled, X * 5)
    assert model.calls == 2 and compiled.calls == 2


def test_descriptors_win_over_the_dictionary(compiler: Any) -> None:
    class Model(Scale):
        @property
        def kept(self) -> str:
            return self.__dict__.setdefault("kept", "") + "property"

        @kept.setter
        def kept(self, value: str) -> None:
            self.__dict__["kept"] = value

    compiled = compiler(Model())
    compiled.kept = "set to "
    assert compiled.kept == "set to property" and vars(compiled)["kept"] == "set to "


def test_getattribute_of_the_class(compiler: Any, backend: Backend) -> None:
    class Model(torch.nn.ReLU):
        def __getattribute__(self, name: str) -> Any:
            return "other" if name == "inplace_name" else super().__getattribute__(name)

    model = Model()
    compiled = compiler(model)
    vars(model)["inplace_name"] = "plain"
    assert compiled.inplace_name == model.inplace_name == "other" and compiled.eval() is compiled
    assert torch.equal(compiled(X), X.relu())


def test_modes_and_types(compiler: Any, backend: Backend) -> None:
    model = Scale()
    compiled = compiler(model)
    for returned in (
        compiled.eval(),
        compiled.train(),
        compiled.to("cpu"),
        compiled.double(),
        compiled.requires_grad_(False),
    ):
        assert returned is compiled
    assert model.training and model.weight.dtype == torch.float64 and not model.weight.requires_grad
    runs(backend, compiled, X.double() * 2, X.double())
    assert compiled.half() is compiled and model.weight.dtype == torch.float16
    assert (
        compiled.apply(lambda module: setattr(module, "seen", module)) is compiled
        and model.seen is model
    )


def test_traversal(compiler: Any) -> None:
    model = torch.nn.Sequential(Scale(), torch.nn.ReLU())
    compiled = compiler(model)
    assert [name for name, _ in compiled.named_parameters()] == ["0.weight"]
    assert all(a is b for a, b in zip(compiled.modules(), model.modules(), strict=True))
    assert dict(compiled.named_modules()) == dict(model.named_modules())
    assert compiled.get_submodule("0") is model[0] and compiled[0] is model[0]


def test_containers(compiler: Any, backend: Backend) -> None:
    model = torch.nn.Sequential(torch.nn.ReLU(), Scale())
    compiled = compiler(model)
    assert len(compiled) == 2 and list(compiled) == list(model) and model[0] in compiled
    assert (
        isinstance(compiled, collections.abc.Iterable)
        and compiled
        and not compiler(torch.nn.Sequential())
    )
    runs(backend, compiled, X.relu() * 2)
    compiled[0] = torch.nn.Tanh()
    assert compiled.append(Scale(3.0)) is compiled
    runs(backend, compiled, X.tanh() * 6)
    del compiled[2]
    assert len(model) == 2 and type(compiled[:1]) is torch.nn.Sequential
    compiled += torch.nn.Sequential(Scale(4.0))
    assert len(model) == 3 and compiled is not model
    runs(backend, compiled, X.tanh() * 8)


def test_operators_and_contexts(compiler: Any) -> None:
    class Model(Scale):
        def __add__(self, other: float) -> float:
            return 1 + other

        def __radd__(self, other: float) -> float:
            return 2 + other

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            self.left = True

        def __del__(self) -> None:
            ended.append(1)

        __iter__ = None

    ended: list[int] = []
    model = Model()
    compiled = compiler(model)
    assert (compiled + 1, 1 + compiled) == (2, 3)
    with compiled as entered:
        assert entered is compiled
    assert model.left
    with pytest.raises(TypeError, match="not iterable"):
        iter(compiled)
    del compiled, entered
    assert not ended


def test_methods_call_compiled(compiler: Any, backend: Backend) -> None:
    compiled = compiler(Scale())
    assert torch.equal(compiled.twice(X), X * 4) and backend.calls == 2


def test_state_and_copies(compiler: Any) -> None:
    model = Scale()
    compiled = compiler(model)
    compiled(X)
    buffer = io.BytesIO()
    torch.save(compiled.state_dict(), buffer)
    buffer.seek(0)
    other = compiler(Scale(9.0))
    assert str(other.load_state_dict(torch.load(buffer))) == "<All keys matched successfully>"
    assert torch.equal(other(X), X * 2)
    for made in (
        copy.deepcopy(compiled),
        pickle.loads(pickle.dumps(compiled)),
        copy.copy(compiled),
    ):
        assert type(made).__wrapped__ is Scale and made.__wrapped__ is not model
        assert torch.equal(made(X), X * 2)
