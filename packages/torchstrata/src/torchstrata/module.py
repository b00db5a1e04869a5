"""A module whose calls are compiled and whose state is the original's."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch

_is_traced = torch.compiler.is_dynamo_compiling  # by torch's own compiler, which looks into Python functions only


class _Wrapped:
    """``__wrapped__``: the original of a compiled module, and the class of the original for its class."""

    def __get__(self, instance: Any, owner: Any) -> Any:
        return type(owner._original) if instance is None else owner._original


def _forward_like(plain: Callable[..., Any], compiled: Callable[..., Any]) -> Callable[..., Any]:
    """A method that calls ``compiled`` and shows the signature of ``plain``, a bound method."""

    def forward(*args: Any, **kwargs: Any) -> Any:  # no parameter of its own: the defaults below are for reading
        return (plain if _is_traced() else compiled)(*args[1:], **kwargs)

    function: Any = getattr(plain, "__func__", plain)
    functools.update_wrapper(forward, function)
    if isinstance(function, types.FunctionType):
        forward.__defaults__, forward.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    return forward


class CompiledModule:
    """Mixed into a subclass of the original's class. The instance shares the original's ``__dict__``, so that attributes,
    parameters, ``state_dict``, ``train()`` and ``eval()`` are the original's; only calls differ. Pickling and copying give the
    original's copy."""

    _original: torch.nn.Module
    __wrapped__: Any = _Wrapped()

    @staticmethod
    def wrap(model: torch.nn.Module, optimize: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Any:
        """Returns a module like ``model`` whose ``forward`` runs through ``optimize``."""
        original = model.__wrapped__ if isinstance(model, CompiledModule) else model
        cls = type(original)
        namespace = {
            "_original": original,
            "forward": _forward_like(original.forward, optimize(original.forward)),
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
