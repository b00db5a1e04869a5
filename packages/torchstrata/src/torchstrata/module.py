"""A module whose calls are compiled and whose state is the original's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_is_traced = torch.compiler.is_dynamo_compiling  # by torch's own compiler, which looks into Python functions only


class CompiledModule:
    """Mixed into a subclass of the original's class. The instance shares the original's ``__dict__``, so that attributes,
    parameters, ``state_dict``, ``train()`` and ``eval()`` are the original's; only calls differ. Pickling and copying give the
    original's copy."""

    __wrapped__: torch.nn.Module

    @staticmethod
    def wrap(model: torch.nn.Module, optimize: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Any:
        """Returns a module like ``model`` whose ``forward`` runs through ``optimize``."""
        original = model.__wrapped__ if isinstance(model, CompiledModule) else model
        cls = type(original)
        plain, forward = original.forward, optimize(original.forward)
        namespace = {
            "__wrapped__": original,
            "forward": lambda self, *args, **kwargs: (plain if _is_traced() else forward)(*args, **kwargs),
            "__module__": cls.__module__,
            "__qualname__": cls.__qualname__,
            "__doc__": cls.__doc__,
        }
        compiled = object.__new__(type(cls.__name__, (CompiledModule, cls), namespace))
        object.__setattr__(compiled, "__dict__", original.__dict__)
        return compiled

    @property
    def _orig_mod(self) -> torch.nn.Module:
        """The original, under the name that programs for torch.compile look for."""
        return self.__wrapped__

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _identity, (self.__wrapped__,)


def _identity(module: torch.nn.Module) -> torch.nn.Module:
    return module
