"""Fake kernels of custom operators (``torch.library.register_fake``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._library import fake_impl, simple_registry

from symshapes.rules.data_dependent import require_unbacked


class Context:
    """The result of ``torch.library.get_ctx()`` in a fake kernel."""

    def __init__(self, mode: Any, func: Any) -> None:
        self._mode = mode
        self._func = func

    def new_dynamic_size(self, *, min: int = 0, max: int | None = None) -> Any:
        """A fresh data-dependent size. Raises ValueError for bounds that no size has."""
        if type(min) is not int or not isinstance(max, int | None) or min < 0:
            raise ValueError(
                f"new_dynamic_size(min={min}, max={max}): expected integers, of which min is not "
                f"below zero"
            )
        require_unbacked(self._mode, self._func)
        return self._mode.shape_env.create_unbacked(lower=min, upper=max)

    def create_unbacked_symint(self, *, min: int = 2, max: int | None = None) -> Any:
        """The deprecated name, with ``min=2``."""
        return self.new_dynamic_size(min=min, max=max)


def fake_kernel(func: Any) -> Callable[..., Any] | None:
    """The kernel registered for ``func``, if any."""
    return simple_registry.singleton.find(func.name()).fake_impl.kernel


def run_registered(
    mode: Any, kernel: Callable[..., Any], func: Any, args: tuple, kwargs: dict[str, Any]
) -> Any:
    """Runs the kernel on the fakes themselves, with a context for data-dependent sizes."""
    context = Context(mode, func)
    with mode, fake_impl.set_ctx_getter(lambda: context):
        return kernel(*args, **kwargs)
