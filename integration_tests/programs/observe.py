"""What a user can see of values: a flat description, with the same number for the same object."""

from __future__ import annotations

import collections
import enum
import functools
import math
import types
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

Described = list[tuple[str, Any]]
HOOKS = {name for name in vars(torch.nn.Module()) if "hook" in name}
PLAIN = (int, str, bytes, type(None), torch.dtype, torch.Size, torch.device)


@dataclass
class Observer:
    """Describes values of one copy of a program."""

    namespace: dict[str, Any]
    numbers: dict[int, int] = field(default_factory=dict)
    storages: list[tuple[int, int]] = field(default_factory=list)
    alive: list[Any] = field(default_factory=list)
    lines: Described = field(default_factory=list)

    def add(self, path: str, value: Any) -> None:
        self.lines.append((path, value))

    def known(self, path: str, value: Any) -> bool:
        """Whether the object has been described; numbers it otherwise."""
        if id(value) in self.numbers:
            self.add(path, ("same as", self.numbers[id(value)]))
            return True
        self.numbers[id(value)] = len(self.numbers)
        self.alive.append(value)
        return False

    def describe(self, path: str, value: Any) -> None:
        """Adds the lines of a value."""
        if isinstance(value, (np.generic, complex)):  # NumPy's float64 is a float, too
            self.add(
                path,
                (
                    type(value).__name__,
                    value.real.item() if isinstance(value, np.generic) else str(value),
                ),
            )
        elif isinstance(value, (float, *PLAIN)):
            self.add(
                path,
                (type(value).__name__, value if type(value) in (int, float, bool) else str(value)),
            )
        elif isinstance(value, enum.Enum):
            self.add(path, ("enum", value.name))
        elif isinstance(value, type):
            self.add(path, ("class", value.__name__))
            if value.__module__ == self.namespace["__name__"] and not self.known(path + "!", value):
                self.attributes(
                    path, {k: v for k, v in vars(value).items() if not k.startswith("__")}
                )
        elif not self.known(path, value):
            self.describe_object(path, value)

    def describe_object(self, path: str, value: Any) -> None:
        self.add(path, ("object", type(value).__name__))
        match value:
            case torch.Tensor():
                self.tensor(path, value)
            case np.ndarray():
                # Strides of an array without elements lead nowhere, as its memory, which is its
                # base's or none: NumPy itself has other ones for slices than for copies.
                self.add(
                    path,
                    (
                        str(value.dtype),
                        value.shape,
                        value.strides if value.size else None,
                        value.flags.writeable,
                    ),
                )
                if value.size:
                    self.memory(path, value)
                self.add(
                    path, torch.from_numpy(value.copy()) if value.dtype != object else str(value)
                )
            case list() | tuple() | collections.deque():
                self.add(path, ("length", len(value)))
                for number, item in enumerate(value):
                    self.describe(f"{path}[{number}]", item)
                self.attributes(path, getattr(value, "__dict__", {}))
            case dict():
                self.attributes(path, value)
            case set() | frozenset():
                self.add(path, ("set", sorted(map(repr, value))))
            case BaseException():
                self.attributes(path, vars(value))
            case functools.partial():
                self.describe(path + ".func", value.func)
                self.describe(path + ".args", value.args)
                self.attributes(path, value.keywords)
            case types.FunctionType():
                self.function(path, value)
            case types.MethodType():
                self.describe(path + ".self", value.__self__)
            case _ if type(value).__module__ == self.namespace["__name__"] or isinstance(
                value, torch.nn.Module
            ):
                for name in getattr(type(value), "__slots__", ()):
                    self.describe(f"{path}.{name}", getattr(value, name, None))
                self.attributes(
                    path,
                    {k: v for k, v in getattr(value, "__dict__", {}).items() if k not in HOOKS},
                )
            case torch.optim.Optimizer():
                self.describe(path + ".groups", value.param_groups)
                self.describe(path + ".state", list(value.state.values()))

    def function(self, path: str, value: types.FunctionType) -> None:
        self.add(path, value.__name__)
        if value.__globals__ is not self.namespace:
            return
        for number, cell in enumerate(value.__closure__ or ()):
            try:
                self.describe(f"{path}.cell{number}", cell.cell_contents)
            except ValueError:
                self.add(path, "empty cell")
        self.describe(path + ".defaults", value.__defaults__)
        self.attributes(path, {k: v for k, v in vars(value).items() if k != "__wrapped__"})

    def attributes(self, path: str, values: dict[Any, Any]) -> None:
        self.add(path, ("keys", [str(k) for k in values]))
        for key, item in values.items():
            self.describe(f"{path}.{key}", item)

    def memory(self, path: str, value: Any) -> None:
        """Which memory a tensor or array uses."""
        if isinstance(value, np.ndarray):
            while isinstance(value.base, np.ndarray):
                value = value.base
            is_of_tensor = isinstance(value.base, torch.Tensor)
            memory, empty = value.base.untyped_storage() if is_of_tensor else value, not value.size
        else:
            memory, empty = value.untyped_storage(), not value.numel()
        if not empty:
            # A storage may begin inside an array: one that was made of a part of it.
            start = memory.ctypes.data if isinstance(memory, np.ndarray) else memory.data_ptr()
            end = start + (memory.nbytes if isinstance(memory, np.ndarray) else memory.nbytes())
            known = (k for k, (low, high) in enumerate(self.storages) if start < high and low < end)
            number, fresh = next(known, len(self.storages)), len(self.storages)
            is_gradient = path.endswith(".grad")
            if number == fresh or is_gradient:
                self.storages.append((start, end))
            self.add(path, ("memory", number, "fresh" if is_gradient and number == fresh else ""))

    def tensor(self, path: str, value: torch.Tensor) -> None:
        self.add(path, ("tensor", value.dtype, tuple(value.shape), value.is_inference()))
        try:
            self.add(path, ("autograd", value.requires_grad, value.is_leaf))
        except RuntimeError:  # a view that may no longer be used
            self.add(path, "unusable view")
            return
        # The layout contract of gradients says nothing of dimensions of one element.
        strides = [
            None if n == 1 and path.endswith(".grad") else s
            for n, s in zip(value.shape, value.stride())
        ]
        self.add(path, ("stride", strides if value.numel() else None))
        self.memory(path, value)
        self.add(path, value.detach().clone())
        if value.is_leaf or value.retains_grad:
            self.describe(path + ".grad", value.grad)


def differences(expected: Described, actual: Described, exact: bool) -> list[str]:
    """What differs, in words."""
    found = []
    for (path, one), (other_path, other) in zip(expected, actual):
        if path != other_path:
            found.append(f"{path} is {other_path}")
        elif not same(one, other, exact):
            found.append(f"{path}: {one} is {other}")
        if len(found) > 3:
            break
    if not found and len(expected) != len(actual):
        longer = max(expected, actual, key=len)
        found.append(
            f"{len(expected)} lines are {len(actual)}: {longer[min(len(expected), len(actual))]}"
        )
    return found


def same(one: Any, other: Any, exact: bool) -> bool:
    """Equal, numbers up to rounding; a gradient may have memory of its own that is not so in eager
    mode (docs/semantics.md).
    """
    if type(other) is tuple and other[0] == "memory" and other[-1] == "fresh":
        return type(one) is tuple and one[0] == "memory"
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        if not one.dtype.is_floating_point:
            return torch.equal(one, other)
        coarse = one.dtype in (torch.bfloat16, torch.float16)
        rtol = 1e-6 if exact else 3e-2 if coarse else 2e-4
        return torch.allclose(
            one.double(),
            other.double(),
            rtol=rtol,
            atol=0.1 * rtol if exact else rtol,
            equal_nan=True,
        )
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == 2 == len(other):
        (kind, x), (other_kind, y) = one, other
        if kind == other_kind and type(x) is float is type(y):
            return (
                x == y
                or (math.isnan(x) and math.isnan(y))
                or math.isclose(x, y, rel_tol=1e-6 if exact else 1e-3, abs_tol=1e-4)
            )
    return type(one) is type(other) and one == other
