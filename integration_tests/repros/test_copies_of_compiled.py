"""Copies and pickles of what is compiled are compiled; equal calls of ``compile`` share a cache."""

from __future__ import annotations

import copy
import functools
import gc
import io
import multiprocessing
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import bytecode_dynamo
import pytest
import torch
import torchstrata

X = torch.ones(2)


@pytest.fixture(autouse=True)
def _reset() -> None:
    torchstrata.reset()


def count() -> int:
    return bytecode_dynamo.counters["graphs"]


def plain(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@torchstrata.compile(backend="eager", dynamic=False)
def decorated(x: torch.Tensor) -> torch.Tensor:
    return x * 3


def backend(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
    return graph.forward


class Scale(torch.nn.Module):
    def __init__(self, factor: float = 2.0) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([factor]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight

    @torchstrata.compile(backend="eager")
    def twice(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight * 2

    @staticmethod
    @torchstrata.compile(backend="eager")
    def static(x: torch.Tensor) -> torch.Tensor:
        return x + 1


class WithState(Scale):
    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "was_copied": True}


def loaded(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


COPIES = {"deepcopy": copy.deepcopy, "copy": copy.copy, "pickle": loaded}


def check_is_compiled(made: Any, expected: torch.Tensor) -> None:
    before = count()
    assert torch.equal(made(X), expected) and count() == before + 1
    made(X)
    assert count() == before + 1


# -- one cache -------------------------------------------------------------------------------------


def test_one_function_has_one_cache_for_equal_options() -> None:
    compiled = [torchstrata.compile(plain, backend="eager") for _ in range(3)]
    assert all(torch.equal(call(X), X * 2) for call in compiled)
    assert count() == 1
    torchstrata.compile(plain, backend=backend)(X)
    torchstrata.compile(plain, backend="eager", dynamic=True)(X)
    torchstrata.compile(plain, backend="eager", fullgraph=True)(X)
    assert count() == 4
    bytecode_dynamo.optimize("eager", on_error="eager")(plain)(X)
    assert count() == 4
    bytecode_dynamo.optimize("eager", on_error="error")(plain)(X)
    assert count() == 5


def test_options_of_the_stack_are_compared() -> None:
    kept = []
    for options in ({}, {"patterns": True}, {"patterns": False}, {"numerics": "eager"}, {}):
        kept.append(torchstrata.compile(plain, options=options))
        kept[-1](X)
    assert count() == 3
    torchstrata.compile(plain, mode="default")(X)
    torchstrata.compile(plain, backend="inductor")(X)
    assert count() == 3


def test_one_module_has_one_cache_while_it_is_compiled() -> None:
    model = Scale()
    first, second = (torchstrata.compile(model, backend="eager") for _ in range(2))
    assert first is not second
    assert torch.equal(first(X), X * 2) and torch.equal(second(X), X * 2) and count() == 1
    torchstrata.compile(Scale(), backend="eager")(X)
    assert count() == 2


@pytest.mark.parametrize("target", [torch.sin, torch.nn.functional.gelu, Scale().forward])
def test_other_callables_have_one_cache(target: Any) -> None:
    first, second = (torchstrata.compile(target, backend="eager") for _ in range(2))
    assert torch.equal(first(X), target(X)) and torch.equal(second(X), target(X))
    assert count() == 1


def test_reset_starts_anew() -> None:
    before = torchstrata.compile(plain, backend="eager")
    before(X)
    torchstrata.reset()
    after = torchstrata.compile(plain, backend="eager")
    assert after.optimizer is not before.optimizer
    assert torch.equal(before(X), X * 2) and torch.equal(after(X), X * 2) and count() == 2


def test_closures_are_apart() -> None:
    def times(k: int) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: x * k

    for k in range(12):  # more than config.recompile_limit
        assert torch.equal(torchstrata.compile(times(k), backend="eager")(X), X * k)
    assert count() == 12


def test_wrappers_are_apart() -> None:
    first = torchstrata.compile(plain, backend="eager")
    first(X)

    @functools.wraps(plain)
    def wrapper(x: torch.Tensor) -> torch.Tensor:
        return plain(x) + 1

    assert torch.equal(torchstrata.compile(wrapper, backend="eager")(X), X * 2 + 1)
    assert torch.equal(torchstrata.compile(plain, backend="eager")(X), X * 2) and count() == 2


def test_functions_and_backends_die() -> None:
    def local(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    for _ in range(20):
        made = lambda graph, inputs: graph.forward  # noqa: E731
        torchstrata.compile(local, backend=made)(X)
    dead = weakref.ref(local)
    del local, made
    gc.collect()
    assert dead() is None


# -- copies and pickles ----------------------------------------------------------------------------


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("cls", [Scale, WithState])
def test_modules(how: str, cls: type[Scale]) -> None:
    compiled = torchstrata.compile(cls(), backend="eager")
    compiled(X)
    made = COPIES[how](compiled)
    assert isinstance(made, cls) and made.__wrapped__ is not compiled.__wrapped__
    assert getattr(made, "was_copied", False) is (cls is WithState)
    assert (made.weight is compiled.weight) is (how == "copy")
    check_is_compiled(made, X * 2)
    if how != "copy":
        with torch.no_grad():
            made.weight.fill_(5)
        assert torch.equal(made(X), X * 5) and torch.equal(compiled(X), X * 2)


@pytest.mark.parametrize("how", COPIES)
def test_modules_inside_of_modules(how: str) -> None:
    inner = torchstrata.compile(Scale(), backend="eager")
    outer = torch.nn.Sequential(inner, inner, Scale(3.0))
    assert sorted(outer.state_dict()) == ["0.weight", "1.weight", "2.weight"]
    made = COPIES[how](outer)
    with torch.no_grad():
        assert torch.equal(made(X), X * 12)
    assert count() == 1 and made[0] is made[1] and (made[0] is inner) is (how == "copy")


def test_torch_save() -> None:
    file = io.BytesIO()
    torch.save(torchstrata.compile(Scale(4.0), backend="eager", fullgraph=True), file)
    file.seek(0)
    check_is_compiled(torch.load(file, weights_only=False), X * 4)


def test_averaged_model() -> None:
    averaged = torch.optim.swa_utils.AveragedModel(torchstrata.compile(Scale(), backend="eager"))
    check_is_compiled(averaged, X * 2)


def test_functions() -> None:
    for how in COPIES.values():
        assert how(decorated) is decorated
        assert how(Scale.twice) is Scale.twice and how(Scale.static) is Scale.static
    compiled = torchstrata.compile(plain, backend="eager")
    assert copy.copy(compiled) is compiled and copy.deepcopy(compiled) is compiled
    made = loaded(compiled)
    assert made is not compiled and made.__wrapped__ is plain
    check_is_compiled(made, X * 2)
    assert torch.equal(compiled(X), X * 2) and count() == 1


def test_options_of_pickles() -> None:
    made = loaded(torchstrata.compile(plain, backend=backend, dynamic=False, fullgraph=True))
    assert made.optimizer.policy.backend is backend
    assert made.optimizer.policy.dynamic is False and made.optimizer.policy.fullgraph
    made = loaded(torchstrata.compile(plain, options={"numerics": "eager"}))
    assert made.optimizer.policy.backend.settings.numerics == "eager"
    check_is_compiled(made, X * 2)


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_forward_compiled_in_place(how: str) -> None:
    model = Scale()
    model.forward = torchstrata.compile(model.forward, backend="eager")
    made = COPIES[how](model)
    with torch.no_grad():
        made.weight.fill_(5)
    check_is_compiled(made, X * 5)
    assert torch.equal(model(X), X * 2)


def test_methods_and_partials() -> None:
    model = Scale()
    made = copy.deepcopy(torchstrata.compile(model.forward, backend="eager"))
    assert made.__wrapped__.__self__ is not model
    check_is_compiled(made, X * 2)
    check_is_compiled(loaded(torchstrata.compile(functools.partial(plain), backend="eager")), X * 2)
    check_is_compiled(loaded(torchstrata.compile(torch.neg, backend="eager")), -X)
    check_is_compiled(copy.copy(model).twice, X * 4)


def test_what_cannot_be_pickled_is_named() -> None:
    def closure(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    for value in (closure, torchstrata.compile(closure)):
        with pytest.raises(
            (AttributeError, pickle.PicklingError), match=r"local object '.*closure'"
        ):
            pickle.dumps(value)
    by_value = torchstrata.compile(plain, backend=lambda graph, inputs: graph.forward)
    with pytest.raises((AttributeError, pickle.PicklingError), match="lambda"):
        pickle.dumps(by_value)
    assert copy.deepcopy(by_value) is by_value


def _run(compiled: Any, x: torch.Tensor) -> tuple[list[float], int]:
    return compiled(x).tolist(), count()


def test_spawned_processes() -> None:
    given = [torchstrata.compile(Scale(7.0), backend="eager"), decorated, Scale().twice]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = [pool.apply(_run, (one, X)) for one in given]
    assert found == [([7.0, 7.0], 1), ([3.0, 3.0], 2), ([4.0, 4.0], 3)]
