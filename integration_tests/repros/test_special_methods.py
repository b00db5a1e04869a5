"""What special methods give is checked and converted as the interpreter does; class methods written
in C, and odd classes.
"""

from __future__ import annotations

import collections
import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torchstrata


class Number(int):
    """An int of a class of its own."""


class Text(str):
    """A str of a class of its own."""


class Index:
    def __index__(self) -> int:
        return 3


RESULTS = {
    "text": "a", "int": 3, "negative": -1, "float": 2.5, "none": None, "true": True, "zero": 0,
    "large": 2**70,
    "number": Number(4), "text class": Text("q"), "list": [1], "bytes": b"b", "index": Index(),
    "complex": 1j,
    "not implemented": NotImplemented,
}  # fmt: skip

USES: dict[str, tuple[Callable[[Any], Any], ...]] = {
    "__len__": (len, bool, operator.length_hint, lambda o: 1 if o else 2),
    "__bool__": (bool, lambda o: 1 if o else 2, lambda o: not o, lambda o: any([o]),
    lambda o: list(filter(None, [o]))),
    "__index__": (operator.index, lambda o: list(range(9))[o] if abs(operator.index(o)) < 9 else 0,
    hex, int, float, complex),
    "__str__": (str, lambda o: f"{o}", "{}".format),
    "__repr__": (repr, str, lambda o: f"{o!r}", lambda o: str([o])),
    "__hash__": (hash, lambda o: o in {1: 2}, lambda o: len({o})),
    "__contains__": (lambda o: 3 in o, lambda o: 3 not in o, lambda o: operator.contains(o, 3)),
    "__int__": (int, lambda o: int(o) + 1),
    "__float__": (float, math.sqrt, complex),
    "__complex__": (complex,),
    "__format__": (lambda o: f"{o}", lambda o: format(o, "x")),
    "__iter__": (list, iter, lambda o: 3 in o, lambda o: [*o]),
    "__bytes__": (bytes,),
    "__length_hint__": (operator.length_hint,),
    "__round__": (round,),
    "__trunc__": (math.trunc,),
    "__floor__": (math.floor,),
    "__ceil__": (math.ceil,),
    "__divmod__": (lambda o: divmod(o, 2),),
    "__eq__": (lambda o: o == 3, lambda o: o != 3, lambda o: o in [3]),
    "__init__": (lambda o: type(o)(),),
}  # fmt: skip


def _outcome(call: Callable[..., Any], *args: Any) -> Any:
    try:
        found = call(*args)[1]
    except (TypeError, ValueError, OverflowError) as error:
        return type(error), str(error)
    return type(found), found if isinstance(
        found, (int, str, float, bytes, list, tuple, complex)
    ) else None


@pytest.mark.parametrize("name", USES)
def test_results_of_special_methods(name: str) -> None:
    wrong: list[Any] = []
    for kind, result in RESULTS.items():
        body = {name: lambda self, *args, result=result: result}
        if name == "__hash__":
            body["__eq__"] = operator.is_
        value = object.__new__(type("Made", (), body))
        for k, use in enumerate(USES[name]):

            def f(x: torch.Tensor, use: Any = use, value: Any = value) -> Any:
                return x + 1, use(value)

            expected = _outcome(f, torch.ones(2))
            found = _outcome(torchstrata.compile(f, backend="eager"), torch.ones(2))
            if found != expected:
                wrong.append((kind, k, expected, found))
    assert not wrong


class Meta(type):
    def __len__(cls) -> Any:
        return "a"


class Measured(metaclass=Meta):
    pass


class Items(list[Any]):
    def __len__(self) -> Any:
        return "a"


class Truth(int):
    def __bool__(self) -> Any:
        return 3


class Words(str):
    def __str__(self) -> Any:
        return 3


@pytest.mark.parametrize(
    "use",
    [
        lambda: len(Measured), lambda: bool(Measured), lambda: len(Items()), lambda: bool(Items()),
        lambda: bool(Truth(1)),
        lambda: str(Words("a")), lambda: f"{Words('a')}",
    ],
)  # fmt: skip
def test_results_of_classes_that_extend_others(use: Callable[[], Any]) -> None:
    def f(x: torch.Tensor) -> Any:
        return x + 1, use()

    assert _outcome(torchstrata.compile(f), torch.ones(2)) == _outcome(f, torch.ones(2))


class Ordered(collections.OrderedDict[Any, Any]):
    pass


FROM_KEYS: dict[str, Callable[[torch.Tensor], Any]] = {
    "named": lambda x: collections.OrderedDict.fromkeys(["a", "b"], value=x),
    "both named": lambda x: collections.OrderedDict.fromkeys(iterable="ab", value=x),
    "subclass": lambda x: Ordered.fromkeys("ab", value=x),
    "by place": lambda x: dict.fromkeys("ab", x),
    "none": lambda x: (x + 1, collections.OrderedDict.fromkeys("ab")),
}


@pytest.mark.parametrize("name", FROM_KEYS)
def test_dicts_from_keys(name: str) -> None:
    x, f = torch.ones(2), FROM_KEYS[name]
    expected, found = f(x), torchstrata.compile(f)(x)
    assert type(found) is type(expected)
    torch.testing.assert_close(found, expected)


def test_dict_takes_no_names() -> None:
    with pytest.raises(TypeError, match="no keyword arguments"):
        torchstrata.compile(lambda x: dict.fromkeys("ab", value=x + 1))(torch.ones(2))


@pytest.mark.filterwarnings("ignore:TypedStorage")
@pytest.mark.parametrize(
    "cls", [torch.BoolStorage, torch.FloatStorage, torch.TypedStorage, torch.UntypedStorage]
)
def test_instances_of_storages(cls: type) -> None:
    def f(x: torch.Tensor, storage: Any) -> Any:
        return x + 1, isinstance(x, cls), isinstance(storage, cls), isinstance([x], (int, cls))

    x = torch.ones(2)
    for storage in (x.storage(), x.untyped_storage(), torch.ones(2, dtype=torch.bool).storage(), 3):
        assert torchstrata.compile(f)(x, storage)[1:] == f(x, storage)[1:]


def test_parameters_that_are_not_initialized() -> None:
    def f(x: torch.Tensor) -> Any:
        p = torch.nn.UninitializedParameter()
        layer = torch.nn.LazyLinear(3)
        return x + 1, p.is_leaf, p.requires_grad, p.grad_fn, layer.weight.is_leaf, layer(x).shape

    x = torch.ones(2, 4)
    assert torchstrata.compile(f)(x)[1:] == f(x)[1:]


def _in_no_grad(x: torch.Tensor) -> Any:
    with torch.no_grad():
        return x.detach(), x.view(-1)


def _of_result(x: torch.Tensor) -> Any:
    y = x * 2
    return y, y.detach(), y.view(-1)


VIEWS: dict[str, Callable[[torch.Tensor], Any]] = {
    "detached": lambda x: x.detach(),
    "data": lambda x: x.data,
    "view of detached": lambda x: x.detach().view(-1),
    "detached view": lambda x: x[0].detach(),
    "written": lambda x: x.detach().add_(1),
    "twice": lambda x: (x.detach(), x.detach()),
    "parts": lambda x: x.detach().split(1),
    "no gradient": _in_no_grad,
    "of a result": _of_result,
    "view": lambda x: x.view(-1),
    "questions": lambda x: (
        x.detach()._base is x,
        x._is_view(),
        x.view(-1)._is_view(),
        x.detach()._is_view(),
        x + 1,
    ),
}


def _seen(result: Any, x: torch.Tensor) -> Any:
    if isinstance(result, (tuple, list)):
        return [
            *(_seen(part, x) for part in result),
            [a._base is b for a in result for b in result if torch.is_tensor(a)],
        ]
    if not isinstance(result, torch.Tensor):
        return result
    base = result._base
    kind = (result._is_view(), result.requires_grad, result.is_leaf, result._version)
    return base is x, None if base is None else base.shape, kind, result.data_ptr() == x.data_ptr()


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "torchstrata"])
def test_what_is_a_view_of_what(name: str, backend: str) -> None:
    f = VIEWS[name]
    for requires_grad in (False, True):
        for is_view in (False, True):
            seen: list[Any] = []
            torchstrata.reset()
            for call in (f, torchstrata.compile(f, backend=backend)):
                x = torch.arange(6.0).reshape(2, 3).clone().requires_grad_(requires_grad)
                x = x.view(2, 3) if is_view else x
                seen.append(_seen(call(x), x))
            assert seen[0] == seen[1]
