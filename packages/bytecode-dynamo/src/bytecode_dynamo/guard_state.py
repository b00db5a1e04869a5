"""The state of the thread and process that captured graphs depend on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch.overrides import _get_current_function_mode_stack

AUTOCAST_DEVICES = ("cpu", "cuda")


def _autocast() -> tuple[Any, ...]:
    if not torch._C._is_any_autocast_enabled():
        return ()
    states = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in AUTOCAST_DEVICES]
    return (*states, torch.is_autocast_cache_enabled())


def _function_modes() -> tuple[Any, ...]:
    if not torch._C._len_torch_function_stack():
        return ()
    return tuple(_get_current_function_mode_stack())


@dataclass(frozen=True, slots=True)
class GlobalState:
    """Grad and inference mode, autocast, default dtype, deterministic algorithms, and the stacks of modes.

    The default device is a torch function mode. ``autocast`` is empty when no autocast is on.
    """

    grad_mode: bool
    inference_mode: bool
    autocast: tuple[Any, ...]
    default_dtype: torch.dtype
    deterministic: bool
    deterministic_warn_only: bool
    function_modes: tuple[Any, ...]
    torch_function_enabled: bool
    dispatch_modes: int
    functorch_active: bool

    @classmethod
    def now(cls) -> GlobalState:
        """The state of this thread."""
        return cls(
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            _autocast(),
            torch.get_default_dtype(),
            torch._C._get_deterministic_algorithms(),
            torch._C._get_deterministic_algorithms_warn_only(),
            _function_modes(),
            torch._C._is_torch_function_enabled(),
            torch._C._len_torch_dispatch_stack(),
            torch._C._are_functorch_transforms_active(),
        )

    def difference(self, now: GlobalState) -> str | None:
        """The first thing that differs, as one line."""
        for item in fields(self):
            old, new = getattr(self, item.name), getattr(now, item.name)
            if old != new:
                return f"{item.name.replace('_', ' ')} was {old}, now {new}"
        return None

    def probes(self) -> list[tuple[Callable[[], Any], Any]]:
        """Built-in functions without arguments and what each has to return: together they say that the state is this one,
        except for the details of an autocast or a function mode that is on (``needs_python``)."""
        return [
            (torch.is_grad_enabled, self.grad_mode),
            (torch.is_inference_mode_enabled, self.inference_mode),
            (torch._C._is_any_autocast_enabled, bool(self.autocast)),
            (torch.get_default_dtype, self.default_dtype),
            (torch._C._get_deterministic_algorithms, self.deterministic),
            (torch._C._get_deterministic_algorithms_warn_only, self.deterministic_warn_only),
            (torch._C._len_torch_function_stack, len(self.function_modes)),
            (torch._C._is_torch_function_enabled, self.torch_function_enabled),
            (torch._C._len_torch_dispatch_stack, self.dispatch_modes),
            (torch._C._are_functorch_transforms_active, self.functorch_active),
        ]

    @property
    def needs_python(self) -> bool:
        """Whether the probes do not say everything."""
        return bool(self.autocast or self.function_modes)
