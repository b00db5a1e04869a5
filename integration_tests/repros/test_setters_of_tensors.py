"""Assignment to attributes of tensors, of subclasses above all: setters, properties, flags and
layouts changed in place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torchstrata
from torch.overrides import TorchFunctionMode

LOG: list[str] = []


def _note(func: Any) -> None:
    if getattr(func, "__name__", "") == "__set__":
        LOG.append(func.__self__.__name__)


class Plain(torch.Tensor):
    """Sees torch calls, and does what torch does."""


class Seeing(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        _note(func)
        return super().__torch_function__(func, types, args, kwargs or {})


class Doubling(torch.Tensor):
    """What is assigned to ``data`` is doubled by the override."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") == "__set__" and func.__self__.__name__ == "data":
            args = (args[0], args[1] * 2)
        return super().__torch_function__(func, types, args, kwargs or {})


class Properties(torch.Tensor):
    @property
    def scale(self) -> int:
        return self.__dict__.get("_scale", 1)

    @scale.setter
    def scale(self, value: int) -> None:
        self._scale = value * 2

    @scale.deleter
    def scale(self) -> None:
        self._scale = 77


class OwnData(torch.Tensor):
    @property
    def data(self) -> Any:
        return torch.Tensor.data.__get__(self)

    @data.setter
    def data(self, value: Any) -> None:
        torch.Tensor.data.__set__(self, value * 2)


class OwnSetattr(torch.Tensor):
    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value + 1 if name == "scale" else value)


class Slotted(torch.Tensor):
    __slots__ = ("scale",)


class Weight(torch.nn.Parameter):
    @property
    def scale(self) -> int:
        return self.__dict__.get("_scale", 1)

    @scale.setter
    def scale(self, value: int) -> None:
        self._scale = value + 1


CLASSES = (torch.Tensor, Plain, Seeing, Doubling, Properties, OwnData, OwnSetattr, Slotted, Weight)


def data(w: Any) -> Any:
    w.data = torch.ones(4)
    return w * 2


def data_in_place(w: Any) -> Any:
    w.data += 3
    return w * 2


def requires_grad(w: Any) -> Any:
    w.requires_grad = True
    return w * 2


def requires_grad_by_method(w: Any) -> Any:
    w.requires_grad_()
    return w * 2


def number_as_flag(w: Any) -> Any:
    w.requires_grad = 1
    return w * 2


def gradient(w: Any) -> Any:
    w.grad = torch.ones(2, 3)
    return w * 2


def no_gradient(w: Any) -> Any:
    w.grad = None
    return w * 2


def scale(w: Any) -> Any:
    w.scale = 3
    return w * w.scale


def without_scale(w: Any) -> Any:
    w.scale = 3
    del w.scale
    return w * getattr(w, "scale", 9)


def transposed(w: Any) -> Any:
    with torch.no_grad():
        w.t_()
    return w * 2


def unsqueezed(w: Any) -> Any:
    with torch.no_grad():
        w.unsqueeze_(0)
    return w * 2


def resized(w: Any) -> Any:
    with torch.no_grad():
        w.resize_(3, 2)
    return w * 2


def strided(w: Any) -> Any:
    with torch.no_grad():
        w.as_strided_((2,), (1,))
    return w * 2


def flag_of_result(w: Any) -> Any:
    v = w * 2
    v.requires_grad = True
    return v


def data_of_result(w: Any) -> Any:
    v = w * 2
    v.data = torch.ones(3)
    return v


def scale_of_result(w: Any) -> Any:
    v = w * 2
    v.scale = 3
    return v, v.scale


def by_descriptor(w: Any) -> Any:
    torch.Tensor.data.__set__(w, torch.ones(3))
    torch.Tensor.requires_grad.__set__(w, True)
    return w * 2


def by_setattr(w: Any) -> Any:
    setattr(w, "data", torch.ones(3))  # noqa: B010
    return w * 2


def names(w: Any) -> Any:
    w.names = ("a", "b")
    return w.names


def into_a_plain_tensor(w: Any) -> Any:
    t = torch.zeros(2, 3)
    t.data = w
    return t


def gradient_of_a_plain_tensor(w: Any) -> Any:
    t = torch.zeros(2, 3)
    t.grad = w.detach()
    return t, t.grad


PROGRAMS = (
    data, data_in_place, requires_grad, requires_grad_by_method, number_as_flag, gradient,
    no_gradient, scale, without_scale,
    transposed, unsqueezed, resized, strided, flag_of_result, data_of_result, scale_of_result,
    by_descriptor, by_setattr, names,
    into_a_plain_tensor, gradient_of_a_plain_tensor,
)  # fmt: skip


def _state(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_state, value))
    if not isinstance(value, torch.Tensor):
        return value
    with torch._C.DisableTorchFunctionSubclass():
        held = {name: held for name, held in value.__dict__.items() if not name.startswith("__")}
        kind = (
            type(value),
            value.dtype,
            tuple(value.shape),
            value.stride(),
            value.requires_grad,
            value.is_leaf,
        )
        return (
            kind,
            value.tolist(),
            value._version,
            held,
            _state(value.grad) if value.is_leaf else None,
        )


def _run(compile_: Callable[..., Any], program: Callable[..., Any], cls: type) -> list[Any]:
    LOG.clear()
    plain = torch.arange(6.0).reshape(2, 3)
    w = cls(plain) if cls is Weight else plain.as_subclass(cls)
    call, found = compile_(program), []
    for _ in range(2):
        try:
            found.append(_state(call(w)))
        except (RuntimeError, TypeError, AttributeError) as error:
            found.append((type(error), str(error)))
        found += [_state(w), list(LOG)]
    return found


@pytest.mark.filterwarnings("ignore:Named tensors")
@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_assignment(program: Callable[..., Any], cls: type) -> None:
    torchstrata.reset()
    expected = _run(lambda f: f, program, cls)
    assert _run(lambda f: torchstrata.compile(f, backend="eager"), program, cls) == expected


@pytest.mark.parametrize(
    "program", (data, requires_grad, scale, transposed), ids=lambda program: program.__name__
)
def test_assignment_through_the_stack(program: Callable[..., Any]) -> None:
    torchstrata.reset()
    assert _run(torchstrata.compile, program, Seeing) == _run(lambda f: f, program, Seeing)


class Noting(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        _note(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "program", (data, requires_grad, gradient), ids=lambda program: program.__name__
)
def test_modes_see_assignment(program: Callable[..., Any]) -> None:
    def inside(w: Any) -> Any:
        with Noting():
            return program(w)

    torchstrata.reset()
    expected = _run(lambda f: f, inside, torch.Tensor)
    assert _run(torchstrata.compile, inside, torch.Tensor) == expected


@pytest.mark.parametrize(
    "relayout", [lambda x: x.squeeze_(0), lambda x: x.t_(), lambda x: x.unsqueeze_(0)]
)
@pytest.mark.parametrize("backend", ["eager", "torchstrata"])
def test_a_gradient_that_is_assigned_before_the_sizes_change(relayout, backend):
    """The gradient was assigned at the end, to a tensor that it does not fit any more."""

    def function(x):
        x.grad = torch.ones_like(x)
        return relayout(x).sum()

    found = []
    for call in (function, torchstrata.compile(function, backend=backend)):
        x = torch.ones(1, 4)
        found.append((call(x), x, x.grad.shape))
    torch.testing.assert_close(found[1], found[0])
