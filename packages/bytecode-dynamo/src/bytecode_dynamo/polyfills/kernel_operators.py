"""Launches of Triton kernels as torch operators, whose schema says which tensors are written."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .kernel_writes import written_parameters

_LIBRARY = torch.library.Library("bytecode_dynamo", "FRAGMENT")
_defined: dict[str, torch._ops.OpOverload] = {}


def layers(kernel: Any) -> list[Any]:
    """The layers of a kernel, outermost first: autotuners, heuristics, the function."""
    found = [kernel]
    while hasattr(found[-1].fn, "arg_names"):
        found.append(found[-1].fn)
    return found


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch but for its tensors, numbers and grid.

    Attributes:
        kernel: what the program indexes by a grid.
        types: the parameters that are arguments of the operator, in order, with their types in its
            schema.
        constants: the other arguments: constant expressions, and options such as ``num_warps``.
        positional: the parameters that the program gave by position.
        configs: what the autotuner may choose among; one empty mapping without one.
    """

    kernel: Any
    types: Mapping[str, str]
    constants: Mapping[str, Any]
    positional: tuple[str, ...]
    configs: tuple[Mapping[str, Any], ...]

    def run(self, *args: Any) -> None:
        """Launch on values in the order of ``types``, then three extents of the grid for each
        configuration.
        """
        *values, extents = args
        given = {**self.constants, **dict(zip(self.types, values))}
        positional = [given.pop(name) for name in self.positional]
        grids = [tuple(extents[i : i + 3]) for i in range(0, len(extents), 3)]
        self.kernel[self._grid(grids)](*positional, **given)

    def _grid(self, grids: list[tuple[int, ...]]) -> Any:
        if len(grids) == 1:
            return grids[0]

        def grid(meta: Mapping[str, Any]) -> tuple[int, ...]:
            return next(
                extents
                for config, extents in zip(self.configs, grids)
                if all(meta[name] == value for name, value in config.items() if name in meta)
            )

        return grid

    def operator(self) -> torch._ops.OpOverload:
        """The operator. Its name encodes the kernel's code and this object, for any process."""
        base = layers(self.kernel)[-1]
        told = (
            _code_of(self.kernel),
            dict(self.types),
            dict(self.constants),
            self.positional,
            list(map(dict, self.configs)),
        )
        name = f"{base.fn.__name__}_{hashlib.sha256(repr(told).encode()).hexdigest()[:16]}"
        if name not in _defined:
            _LIBRARY.define(
                f"{name}({', '.join([*self._parameters(), 'SymInt[] launch_grid'])}) -> ()"
            )
            _LIBRARY.impl(name, self.run, "CompositeExplicitAutograd")
            _LIBRARY.impl(name, _nothing, "Meta")
            _LIBRARY.impl(name, torch.library.fallthrough_kernel, "Autograd")
            _defined[name] = getattr(torch.ops.bytecode_dynamo, name).default
        return _defined[name]

    def _parameters(self) -> Sequence[str]:
        written = _written(self.kernel)
        parameters = []
        for position, (name, kind) in enumerate(self.types.items()):
            is_written = kind == "Tensor" and (written is None or name in written)
            parameters.append(f"Tensor(a{position}!) {name}" if is_written else f"{kind} {name}")
        return parameters


def _nothing(*args: Any) -> None:
    """The effect of a launch on fake tensors: none."""


def _code_of(kernel: Any) -> list[str]:
    """A text that identifies a kernel's code."""
    *outer, base = layers(kernel)
    hooks = any(_has_hooks(layer) for layer in outer)
    key = (
        None
        if hooks or any(hasattr(layer, "values") for layer in outer)
        else getattr(base, "cache_key", None)
    )
    if key is None:  # the interpreter's own, or a decorated function
        key = _KEYS.setdefault(id(kernel), (kernel, uuid.uuid4().hex))[1]
    return [key, *(f"{type(layer).__name__}({getattr(layer, 'keys', '')})" for layer in outer)]


_KEYS: dict[int, tuple[Any, str]] = {}


def _has_hooks(layer: Any) -> bool:
    set_by_user = (getattr(layer, f"user_defined_{when}_hook", False) for when in ("pre", "post"))
    return any(set_by_user) or any(c.pre_hook is not None for c in getattr(layer, "configs", ()))


def _written(kernel: Any) -> frozenset[str] | None:
    """The parameters that a launch may write through; None for all."""
    *outer, base = layers(kernel)
    if any(map(_has_hooks, outer)) or getattr(base, "pre_run_hooks", None):
        return None
    reset = {name for layer in outer for name in getattr(layer, "reset_to_zero", ())}
    return written_parameters(base.fn) | reset
